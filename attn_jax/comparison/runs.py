"""What a finished run leaves in its directory, read back as plain values."""

from pathlib import Path
from typing import Any

from attn_jax.config import Config, names_in
from attn_jax.errors import InputError
from attn_jax.files import read_json
from attn_jax.training.metrics import read_metrics
from attn_jax.training.run_directory import eval_path

Json = dict[str, Any]
Number = int | float


def read_curves(directory: Path) -> dict[str, list[Json]]:
    """Returns the logged lines, "train" and "evaluation", each in step order.

    A run that was stopped and resumed logs the steps after its checkpoint a second time: of equal
    steps the last line counts.
    """
    by_step: dict[str, dict[int, Json]] = {"train": {}, "evaluation": {}}
    for line in read_metrics(directory):
        kind = "train" if line["split"] == "train" else "evaluation"
        by_step[kind][line["step"]] = line
    return {kind: [lines[step] for step in sorted(lines)] for kind, lines in by_step.items()}


def read_results(directory: Path, config: Config) -> Json:
    """Returns `{evaluator: results}` of the evaluation after the last update.

    Raises:
      InputError: those of an evaluator of the config are not there.
    """
    path = eval_path(directory, config.train.steps)
    results = read_json(path).get("results")
    if not isinstance(results, dict):
        raise InputError(f"{path}: holds no results")
    for name in names_in(config.eval.evaluators):
        if not isinstance(results.get(name), dict):
            raise InputError(f"{path}: holds no results of {name!r}, an evaluator of this run")
    return results
