"""Runs as command lines, for a scheduler."""

import shlex

from attn_jax.comparison.arms import Run
from attn_jax.config import Config, diff

DEFAULT = "configs/default.py"  # whose config is Config()


def command(run: Run) -> str:
    """Returns the line that trains a run, from the root of the repository, in its directory.

    It spells out every field that is not at its default, so it stays the same run whatever becomes
    of the study's file.
    """
    changes = diff(Config(), run.config).items()
    flags = [f"--config.{name}={value}" for name, (_, value) in changes]
    start = ["python", "-m", "experiments.train"]
    return shlex.join([*start, f"--config={DEFAULT}", f"--workdir={run.directory}", *flags])
