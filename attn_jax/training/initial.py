"""Training that starts from the parameters of another run (`train.init_from`)."""

import json
from dataclasses import dataclass
from pathlib import Path

from flax import nnx

from attn_jax.config import Config, flatten
from attn_jax.errors import InputError
from attn_jax.files import read_json, write_whole
from attn_jax.models.transformer import build_model
from attn_jax.training.checkpoints import parameter_shapes
from attn_jax.training.restore import restore_run
from attn_jax.training.state import split_model

# The same parameters mean the same under other values of these; shapes are compared as well.
FREE = ("architecture", "max_length", "window", "dropout", "dtype")
FREE += ("attention", "scan_layers", "remat")


@dataclass(frozen=True)
class Start:
    """Parameters, their digest, and the checkpoint that they are from."""

    params: dict
    fingerprint: str
    directory: Path
    step: int

    def record(self, workdir: Path) -> None:
        """Writes init.json: a run that is started again takes the same checkpoint."""
        values = {"run": str(self.directory), "step": self.step, "parameters": self.fingerprint}
        write_whole(workdir / "init.json", json.dumps(values) + "\n")


def read_start(config: Config, workdir: Path) -> Start:
    """Reads the checkpoint that `train.init_from` and `train.init_step` name.

    Raises:
      InputError: there is no such checkpoint, or its tokenizer or model is another, or its
        parameters are not those with which the run in `workdir` began; names what.
    """
    directory = config.train.init_directory
    recorded = workdir / "init.json"
    record = read_json(recorded) if recorded.exists() else {"step": config.train.init_step}
    step = record.get("step")
    if type(step) is not int:
        raise InputError(f"{recorded}: names no step; remove it to begin anew")
    try:
        run = restore_run(directory, step)
    except InputError as error:
        raise InputError(f"train.init_from: {error}") from error
    _refuse_other(directory, _facts(run.config), _facts(config))
    shapes = nnx.eval_shape(lambda: build_model(config.model, run.tokenizer.vocab_size))
    _, like = split_model(shapes)
    _refuse_other(directory, parameter_shapes(run.params), parameter_shapes(like))
    start = Start(run.params, run.fingerprint, directory, run.step)
    if record.get("parameters", start.fingerprint) != start.fingerprint:
        raise InputError(
            f"train.init_from = {directory}: its parameters at step {step} are not those with "
            f"which this run began; remove {recorded} to begin anew"
        )
    return start


def _facts(config: Config) -> dict[str, object]:
    fixed = ("model.", "tokenizer.")
    free = {f"model.{name}" for name in FREE}
    return {k: v for k, v in flatten(config).items() if k.startswith(fixed) and k not in free}


def _refuse_other(directory: Path, there: dict[str, object], here: dict[str, object]) -> None:
    for name in {**here, **there}:
        old, new = there.get(name, "missing"), here.get(name, "missing")
        if old != new:
            raise InputError(f"train.init_from = {directory}: {name} is {old} there and {new} here")
