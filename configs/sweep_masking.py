"""Whether one learning rate is fair to all three arms of compare_masking.py.

Encoder, decoder and prefix LM are each tuned on the same five learning rates around the one that
compare_masking.py uses, with 300 updates, and then compared at their best with two other seeds:
21 short runs, an estimated 9 minutes on two cores. If the learning rate there is fair, no arm gains
more than about 0.05 bits elsewhere on the grid.

python -m experiments.compare --config=configs/sweep_masking.py --workdir=runs/sweep
"""

from attn_jax.comparison.arms import Study
from configs import compare_masking


def get_config() -> Study:
    study = compare_masking.get_config()
    study.name = "sweep"
    study.question = "Does each way of masking need a learning rate of its own?"
    study.base.train.steps = 300
    study.base.train.eval_every = 100
    study.base.train.checkpoint_every = 150
    study.grid = {"optimizer.learning_rate": (3e-3, 6e-3, 1.2e-2, 2.4e-2, 4.8e-2)}
    study.grid_metric = "shared_positions/own_bits"
    return study
