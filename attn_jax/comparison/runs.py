"""What a finished run leaves in its directory, read back as plain values."""

import json
from pathlib import Path
from typing import Any

from attn_jax.comparison.files import read_json, read_text
from attn_jax.config import Config, from_dict
from attn_jax.errors import InputError

Json = dict[str, Any]
Number = int | float


def stored_config(directory: Path) -> Config:
    """Returns the config that the run in `directory` was started with."""
    path = directory / "config.json"
    stored = read_json(path)
    try:
        return from_dict(stored["config"])
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{path}: holds no config") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_metrics(directory: Path) -> dict[str, list[Json]]:
    """Returns the logged lines, "train" and "evaluation", each in step order.

    A run that was stopped and resumed logs the steps after its checkpoint a second time: of equal
    steps the last line counts.
    """
    path = directory / "metrics.jsonl"
    by_step: dict[str, dict[int, Json]] = {"train": {}, "evaluation": {}}
    for number, text in enumerate(read_text(path).splitlines(), start=1):
        try:
            line = json.loads(text)
            kind = "train" if line["split"] == "train" else "evaluation"
            by_step[kind][line["step"]] = line
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}, line {number}: not a line of metrics") from error
    return {kind: [lines[step] for step in sorted(lines)] for kind, lines in by_step.items()}


def eval_path(directory: Path, step: int) -> Path:
    """Returns where the evaluation after `step` updates lies."""
    return directory / "eval" / f"{step}.json"


def read_results(directory: Path, step: int) -> Json:
    """Returns `{evaluator: results}` of the evaluation after `step` updates."""
    path = eval_path(directory, step)
    stored = read_json(path)
    if not isinstance(stored.get("results"), dict):
        raise InputError(f"{path}: holds no results")
    return stored["results"]
