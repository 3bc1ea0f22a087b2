"""One parameter tree under three objectives, scored under both masks: causal, masked, mixed.

Masked next-token prediction hides 30 % of the tokens and reads each out one place before, as a
causal LM would, so all arms have the same parameters and the same readout. Charpentier and Samuel
2024 (https://arxiv.org/abs/2410.24159) report BLiMP accuracies (bidirectional / causal) of 74.6 /
76.6 for causal only, 83.9 / 79.2 for both alike and 84.3 / 66.6 for masked only: a masked model
collapses under the causal mask, and the mixture loses almost nothing in either mode.

Put WikiText-2 in data/wikitext2 (train.txt.gz, valid.txt.gz, test.txt.gz) and BLiMP.zip in
data/blimp. 9 runs of 7 million tokens: about 100 minutes on two CPU cores.

python -m experiments.compare --config=configs/compare_objectives.py --workdir=runs/objectives
"""

from attn_jax.comparison.arms import Study
from attn_jax.config import Config

FOLDER = "data/wikitext2"


def get_config() -> Study:
    base = Config()
    base.data.name = "text_files"
    base.data.train_files = f"{FOLDER}/train.txt.gz"
    base.data.validation_files = f"{FOLDER}/valid.txt.gz"
    base.data.test_files = f"{FOLDER}/test.txt.gz"
    base.data.batch_tokens = 4096
    base.tokenizer.vocab_size = 4000
    base.optimizer.name = "muon"
    base.optimizer.learning_rate = 8e-3
    base.train.steps = 1800
    base.train.checkpoint_every = 600
    base.eval.evaluators = "loss,shared_positions,minimal_pairs"
    base.eval.minimal_pairs = "data/blimp/BLiMP.zip"
    base.eval.scoring = "causal,pll,fused"
    base.eval.max_items = 100  # pairs of each of the 67 paradigms
    return Study(
        name="objectives",
        question="What does a model that fills in masks know left to right, and the other way?",
        base=base,
        arms={
            "causal": {"objective.name": "causal_lm"},
            "masked": {"objective.name": "masked_next_token"},
            "mixed": {"objective.name": "mixture"},
        },
        declared=("objective.name",),
        seeds="0,1,2",
    )
