"""A causal decoder (GPT) on the embedded English prose.

python -m experiments.train --config=configs/lm_decoder.py --workdir=runs/lm_decoder
"""

from attn_jax.config import Config
from configs import compare_masking


def get_config() -> Config:
    return compare_masking.get_config().arm_config("decoder")
