"""A trained run, ready for evaluation or generation."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from attn_jax.config import Config
from attn_jax.data.tokenizers import Tokenizer, load_tokenizer
from attn_jax.errors import InputError
from attn_jax.models.transformer import build_model
from attn_jax.objectives import Objective, make_objective
from attn_jax.training.checkpoints import Checkpoints
from attn_jax.training.run_directory import read_config
from attn_jax.training.state import split_model


@dataclass(frozen=True)
class TrainedRun:
    """What a run directory holds at one step, or on average over several.

    steps: those whose parameters were averaged, the newest last.
    """

    config: Config
    tokenizer: Tokenizer
    objective: Objective
    graph: nnx.GraphDef
    params: dict
    steps: list[int]

    @property
    def step(self) -> int:
        """The newest step."""
        return self.steps[-1]

    @property
    def fingerprint(self) -> str:
        """A digest of the parameters."""
        total = hashlib.sha256()
        for leaf in jax.tree.leaves(self.params):
            total.update(np.asarray(leaf).tobytes())
        return total.hexdigest()[:16]


def restore_run(workdir: Path, step: int = 0, average_last: int = 1) -> TrainedRun:
    """Reads a run directory.

    Args:
      workdir: of the run.
      step: of the checkpoint; 0 means the newest.
      average_last: how many checkpoints up to that one are averaged (Junczys-Dowmunt et al. 2016).

    Raises:
      InputError: this is not a run directory, or has no such checkpoints.
    """
    config = read_config(workdir)
    if not (workdir / "tokenizer").exists() or not (workdir / "checkpoints").exists():
        raise InputError(f"workdir = {workdir}: has no checkpoint yet")
    tokenizer = load_tokenizer(workdir / "tokenizer")
    shapes = nnx.eval_shape(lambda: build_model(config.model, tokenizer.vocab_size))
    graph, like = split_model(shapes)
    with Checkpoints(workdir, config.train) as checkpoints:
        steps = checkpoints.steps_up_to(step, average_last)
        params = checkpoints.restore_params(like, steps[0])
        for number, step in enumerate(steps[1:], 2):  # never more than two of them in memory
            other = checkpoints.restore_params(like, step)
            params = jax.tree.map(lambda mean, x, n=number: mean + (x - mean) / n, params, other)
    objective = make_objective(config.objective, tokenizer.vocabulary)
    return TrainedRun(config, tokenizer, objective, graph, jax.device_put(params), steps)
