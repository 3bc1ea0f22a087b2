"""A prefix LM (T5, UniLM) on the embedded English prose.

python -m experiments.train --config=configs/lm_prefix.py --workdir=runs/lm_prefix
"""

from attn_jax.config import Config
from configs import compare_masking


def get_config() -> Config:
    return compare_masking.get_config().arm_config("prefix")
