"""Trains one run, or goes on with it.

python -m experiments.train --config=configs/lm_decoder.py --workdir=DIR [--config.KEY=VALUE ...]
"""

from pathlib import Path

import jax
from absl import flags

from attn_jax import launch
from attn_jax.config import Config
from attn_jax.errors import InputError
from attn_jax.training.loop import train
from attn_jax.validation import validate

CONFIG = launch.define_config("Experiment, a file of configs/.")
WORKDIR = flags.DEFINE_string("workdir", None, "Run directory, made if need be.")
DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Join JAX's multi-process runtime.")
COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "HOST:PORT of process 0; this and the next two are found by JAX on TPU "
    "pods and under Slurm and Open MPI.",
)
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "All of them.", lower_bound=1)
PROCESS_ID = flags.DEFINE_integer("process_id", None, "This one's number.", lower_bound=0)
flags.mark_flags_as_required(["config", "workdir"])


def main() -> None:
    """Trains as the flags say."""
    if DISTRIBUTED.value:
        _join()
    for flag in (COORDINATOR, NUM_PROCESSES, PROCESS_ID):
        if flag.present and not DISTRIBUTED.value:
            raise InputError(f"{flag.name} = {flag.value!r}: read with --distributed only")
    config = validate(launch.config_value(CONFIG, Config))
    ledger = train(config, Path(WORKDIR.value))
    if jax.process_index() == 0:
        print(
            f"{WORKDIR.value}: step {ledger['step']}, {ledger['seconds']:.0f} s of training; "
            f"results are in eval/{ledger['step']}.json"
        )


def _join() -> None:
    try:
        jax.distributed.initialize(COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value)
    except Exception as error:  # JAX has many for a wrong address or number
        needed = "--coordinator=HOST:PORT, --num_processes and --process_id"
        raise InputError(f"distributed: {error}; set {needed}") from error


if __name__ == "__main__":
    launch.run(main)
