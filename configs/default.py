"""The default of every field: a causal decoder on the embedded English prose, to be set by flags.

The command lines of `experiments.compare --print_commands` begin with it.

python -m experiments.train --config=configs/default.py --workdir=runs/default
"""

from attn_jax.config import Config


def get_config() -> Config:
    return Config()
