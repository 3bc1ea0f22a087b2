"""metrics.jsonl, and beside it the same numbers for TensorBoard and Weights & Biases."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

from attn_jax.errors import InputError
from attn_jax.files import read_json_lines, write_whole


class MetricsLog:
    """Appends one JSON object a logged step.

    On resume, lines after the restored step are dropped, and TensorBoard's files are written anew
    from what is left, so neither shows a step twice.
    """

    def __init__(self, workdir: Path, from_step: int, wandb: bool = False):
        from tensorboard.summary import Writer

        self._path = workdir / "metrics.jsonl"
        kept = [line for line in read_metrics(workdir) if line["step"] <= from_step]
        write_whole(self._path, "".join(json.dumps(line) + "\n" for line in kept))
        shutil.rmtree(workdir / "tensorboard", ignore_errors=True)
        self._writer = Writer(str(workdir / "tensorboard"))
        self._wandb = _start_wandb(workdir) if wandb else None
        for line in kept:
            self._mirror(line)
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Writes one line; `values` are plain numbers."""
        line = {"step": step, "split": split, **values}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._mirror(line)

    def close(self) -> None:
        """Flushes everything."""
        self._file.close()
        self._writer.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _mirror(self, line: dict[str, Any]) -> None:
        values = {f"{line['split']}/{k}": v for k, v in line.items() if k not in ("step", "split")}
        for name, value in values.items():
            self._writer.add_scalar(name, value, line["step"])
        if self._wandb is not None:
            self._wandb.log(values, step=line["step"])


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl, each with `step` and `split`; none if there is no file.

    Raises:
      InputError: a line, other than a last one that a crash cut short, is something else.
    """
    path = workdir / "metrics.jsonl"
    lines = read_json_lines(path)
    for number, line in enumerate(lines, 1):
        if type(line.get("step")) is not int or "split" not in line:
            raise InputError(f"{path}:{number}: not a line of metrics")
    return lines


def refuse_missing_wandb() -> None:
    """Raises InputError where Weights & Biases is not installed."""
    if importlib.util.find_spec("wandb") is None:
        raise InputError("train.wandb = True: needs `pip install wandb`")


def _start_wandb(workdir: Path) -> Any:
    import wandb

    return wandb.init(project="attn_jax", name=workdir.name, dir=str(workdir))
