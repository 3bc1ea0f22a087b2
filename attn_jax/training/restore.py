"""A trained run, ready for evaluation or generation."""

from dataclasses import dataclass
from pathlib import Path

import jax
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
    """What a run directory holds, at one step."""

    config: Config
    tokenizer: Tokenizer
    objective: Objective
    graph: nnx.GraphDef
    params: dict
    step: int


def restore_run(workdir: Path, step: int = 0) -> TrainedRun:
    """Reads a run directory.

    Args:
      workdir: of the run.
      step: of the checkpoint; 0 means the newest.

    Raises:
      InputError: this is not a run directory, or has no such checkpoint.
    """
    config = read_config(workdir)
    if not (workdir / "tokenizer").exists() or not (workdir / "checkpoints").exists():
        raise InputError(f"workdir = {workdir}: has no checkpoint yet")
    tokenizer = load_tokenizer(workdir / "tokenizer")
    shapes = nnx.eval_shape(lambda: build_model(config.model, tokenizer.vocab_size))
    graph, like = split_model(shapes)
    with Checkpoints(workdir) as checkpoints:
        params, step = checkpoints.restore_params(like, step)
    objective = make_objective(config.objective, tokenizer.specials, tokenizer.vocab_size)
    return TrainedRun(config, tokenizer, objective, graph, jax.device_put(params), step)
