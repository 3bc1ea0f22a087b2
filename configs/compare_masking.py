"""What BERT-style and GPT-style masking do to the same text.

An encoder (masked LM), a decoder (causal LM) and a prefix LM of the same size read the same prose
of the World English Bible in the same order; then each predicts the same held-out positions under
every mask. 1,100 updates of 1,024 tokens are enough for encoder and decoder to come below a
trigram model; docs/results.md has 6,000, in 42 minutes.

python -m experiments.compare --config=configs/compare_masking.py --workdir=runs/masking
"""

from attn_jax.comparison.arms import Study
from attn_jax.config import Config


def get_config() -> Study:
    base = Config()
    base.tokenizer.vocab_size = 1000
    base.data.length = 64
    base.data.batch_tokens = 1024
    base.model.num_layers = 2
    base.optimizer.name = "muon"
    base.optimizer.learning_rate = 1.2e-2
    base.optimizer.warmup_steps = 40
    base.train.steps = 1100
    base.train.log_every = 20
    base.train.eval_every = 200
    base.train.checkpoint_every = 550
    base.eval.evaluators = "loss,shared_positions,attention"
    base.eval.curve = "shared_positions"
    return Study(
        name="masking",
        question="What do both sides, or only the left one, tell about the same words?",
        base=base,
        arms={
            "encoder": {"model.architecture": "encoder", "objective.name": "masked_lm"},
            "decoder": {"model.architecture": "decoder", "objective.name": "causal_lm"},
            "prefix": {"model.architecture": "decoder", "objective.name": "prefix_lm"},
        },
        declared=("model.architecture", "objective.name"),
        seeds="0,1",
    )
