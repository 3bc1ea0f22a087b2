"""An encoder-decoder that translates the embedded CLDR phrases, English to German.

python -m experiments.train --config=configs/translate.py --workdir=runs/translate
"""

from attn_jax.config import Config
from configs import compare_translation


def get_config() -> Config:
    return compare_translation.get_config().arm_config("encoder-decoder")
