"""Characters of Shakespeare at nanoGPT's smallest size, under three masks.

The decoder is nanoGPT's recipe for a CPU (https://github.com/karpathy/nanoGPT): 0.8M parameters,
2,000 updates of 12 rows of 64 characters, validation loss 1.88 nats a character. The encoder and
the prefix LM have the same parameters to the byte. 9 runs, about 15 minutes on two CPU cores.

Put tiny Shakespeare in data/tinyshakespeare and split off the last tenth, as nanoGPT does:

head -c 1003854 input.txt > train.txt; tail -c +1003855 input.txt > valid.txt

python -m experiments.compare --config=configs/shakespeare.py --workdir=runs/shakespeare
"""

from attn_jax.comparison.arms import Study
from attn_jax.config import Config

FOLDER = "data/tinyshakespeare"


def get_config() -> Study:
    base = Config()
    base.model.positions = "learned"
    base.model.max_length = 64
    base.data.name = "text_files"
    base.data.train_files = f"{FOLDER}/train.txt"
    base.data.validation_files = base.data.test_files = f"{FOLDER}/valid.txt"
    base.data.document = "file"
    base.data.length = 64
    base.data.batch_tokens = 12 * 64
    base.tokenizer.name = "char"
    base.optimizer.learning_rate = 1e-3
    base.optimizer.final_share = 0.1
    base.optimizer.b2 = 0.99
    base.optimizer.weight_decay = 0.1
    base.train.steps = 2000
    base.train.eval_every = 250
    base.train.checkpoint_every = 1000
    base.eval.evaluators = "loss,shared_positions"
    base.eval.max_items = 0
    return Study(
        name="shakespeare",
        question="What do three masks make of the same characters and the same parameters?",
        base=base,
        arms={
            "decoder": {"model.architecture": "decoder", "objective.name": "causal_lm"},
            "encoder": {"model.architecture": "encoder", "objective.name": "masked_lm"},
            "prefix": {"model.architecture": "decoder", "objective.name": "prefix_lm"},
        },
        declared=("model.architecture", "objective.name"),
        seeds="0,1,2",
    )
