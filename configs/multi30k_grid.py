"""Ways to translate Multi30k English-German, at a sixth of the updates of multi30k_tiny.py.

An encoder-decoder (4 + 4 layers), the same with one stack for both sides, half its depth (2 + 2),
and single stacks that read `source <sep> target` from both sides (prefix) or left to right
(causal), the causal one also with loss on the source. A prefix LM cannot have that loss: its source
tokens have seen each other.

Matched: data, order, updates, and, of encoder-decoder and single stacks, parameters within 1 %: 10
layers without cross-attention are as many as 4 + 4 with it. A single stack then spends 1.5 times
the FLOPs, as each token passes all of its layers; with loss on the source, which needs the
vocabulary there too, 2 times. The report has all four budgets.

Expected: prefix ahead of causal (T5, Raffel et al. 2020, table 2: by 1.05 to 1.34 BLEU on WMT
English-German) and the encoder-decoder within -0.01 to +0.55 of prefix; there the arms had equal
FLOPs, and the encoder-decoder twice the parameters. On loss on the source the literature disagrees.

Settings are those of multi30k_tiny.py, with rotary positions, which learn faster, and a third of
the dropout, as four passes over the pairs do not overfit.

Each run is judged once, after its last update, by beam 5 on test.2016; to choose anything, set
--config.base.eval.split=validation. Of the three BLEUs the published ones compare with "BLEU,
tokenized".

Time: two hours on two slow cores, two seeds each. So far only the encoder-decoder, prefix and
causal were run with both seeds (docs/results.md).

python -m experiments.compare --config=configs/multi30k_grid.py --workdir=runs/multi30k_grid
"""

from attn_jax.comparison.arms import Study
from configs import multi30k_tiny

STEPS = 400
LM_LAYERS = 10  # as many parameters as 4 layers with and 4 without cross-attention


def get_config() -> Study:
    base = multi30k_tiny.get_config()
    base.optimizer.warmup_steps = base.optimizer.warmup_steps * STEPS // base.train.steps
    base.optimizer.final_share = 0.02  # as each run is judged by its last update alone
    base.train.steps = STEPS
    base.model.positions = "rotary"
    base.model.dropout = 0.1
    base.train.eval_every = 0  # nothing is chosen along the way
    base.eval.split = "test"
    base.eval.max_items = 0
    base.eval.beam_size = 5
    lm = {"model.architecture": "decoder", "model.num_layers": LM_LAYERS}
    causal = lm | {"objective.name": "causal_translation"}
    return Study(
        name="translation grid",
        question="What does translation lose with fewer parameters, or without an encoder?",
        base=base,
        arms={
            "encoder-decoder": {},
            "shared": {"model.share_sides": True},
            "half-depth": {"model.num_layers": 2},
            "prefix": lm | {"objective.name": "prefix_translation"},
            "causal": causal,
            "causal-source-loss": causal | {"objective.source_loss": 1.0},
        },
        declared=(
            "model.architecture",
            "model.num_layers",
            "model.share_sides",
            "objective.name",
            "objective.source_loss",
        ),
        margins={"translation/bleu_tokenized": 0.5},
        seeds="0,1",
    )
