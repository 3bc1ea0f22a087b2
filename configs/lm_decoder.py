"""A causal decoder (GPT) on the embedded English prose.

Expected: see docs. Command:
  python -m experiments.train --config=configs/lm_decoder.py --workdir=runs/lm_decoder
"""

from attn_jax.config import Config


def get_config() -> Config:
    config = Config()
    config.eval.evaluators = "loss,shared_positions,attention"
    return config
