"""Trains one run, or goes on with it.

python -m experiments.train --config=configs/lm_decoder.py --workdir=DIR [--config.KEY=VALUE ...]
"""

from pathlib import Path

import jax
from absl import flags
from ml_collections import config_flags

from attn_jax import launch
from attn_jax.config import Config, validate
from attn_jax.training.loop import train

CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment, a file of configs/.")
WORKDIR = flags.DEFINE_string("workdir", None, "Run directory, made if need be.")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Join JAX's multi-process runtime (its coordinator is auto-detected)."
)
flags.mark_flags_as_required(["config", "workdir"])


def main() -> None:
    """Trains as the flags say."""
    if DISTRIBUTED.value:
        jax.distributed.initialize()
    config = validate(launch.config_value(CONFIG, Config))
    ledger = train(config, Path(WORKDIR.value))
    print(f"{WORKDIR.value}: step {ledger['step']}, {ledger['seconds']:.0f} s of training")


if __name__ == "__main__":
    launch.run(main)
