"""What single items scored, as runs keep it beside the results of their evaluation."""

from pathlib import Path

import numpy as np

from attn_jax.comparison.items import Items
from attn_jax.comparison.runs import Json
from attn_jax.config import Config, diff
from attn_jax.errors import InputError, nearest
from attn_jax.files import read_json
from attn_jax.training.run_directory import finished_ledger, items_path, read_config


def read_items(runs: list[tuple[Path, int]]) -> dict[str, Items]:
    """Returns what single items scored, by `evaluator/metric`, of the runs of one arm.

    Args:
      runs: directory and step of every seed.

    Returns:
      The metrics that every run kept; none where a run is older than such files.

    Raises:
      InputError: a file is broken, or its items are not as many as those of the other runs.
    """
    paths = [items_path(directory, step) for directory, step in runs]
    if not paths or not all(path.exists() for path in paths):
        return {}
    stored = [_by_metric(read_json(path)) for path in paths]
    found = {}
    for name in [name for name in stored[0] if all(name in own for own in stored)]:
        try:
            numbers = np.array([own[name] for own in stored], float)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{paths[0]}: {name}: not as many numbers as in {paths[-1]}"
            ) from error
        found[name] = Items(numbers.reshape(*numbers.shape[:2], -1))
    return found


def arm_items(root: Path, arm: str, metric: str, least: int) -> tuple[str, str, Items]:
    """Returns the items of one arm of a finished comparison, with the arm and metric found.

    Args:
      root: holds `ARM/seed-N`.
      arm: its name; empty means the first.
      metric: its name; empty means the first that was kept.
      least: items that are needed.

    Raises:
      InputError: there is no such arm, no such metric, or too few items, or its runs differ in
        more than their seeds.
    """
    arms = sorted({path.parent.parent.name for path in root.glob("*/seed-*/eval")})
    if not arms:
        raise InputError(f"workdir = {str(root)!r}: holds no ARM/seed-N of an evaluated run")
    arm = arm or arms[0]
    if arm not in arms:
        raise InputError(f"arm = {arm!r}: not in {root}{nearest(arm, arms)}")
    paths = root.glob(f"{arm}/seed-*")
    configs = {path: read_config(path) for path in sorted(paths)}
    runs = [(path, config.train.steps) for path, config in configs.items()]
    finished = [run for run in runs if finished_ledger(*run)]
    _refuse_unlike([(path, configs[path]) for path, _ in finished])
    found = read_items(finished)
    if not found:
        raise InputError(f"arm = {arm!r}: no finished run in {root} kept scores of single items")
    metric = metric or next(iter(found))
    if metric not in found:
        raise InputError(f"metric = {metric!r}: not kept in {root}{nearest(metric, list(found))}")
    if found[metric].count < least:
        count = found[metric].count
        raise InputError(
            f"metric = {metric!r}: {count} items, needs {least}, and fewer with a smaller group"
        )
    return arm, metric, found[metric]


def _refuse_unlike(runs: list[tuple[Path, Config]]) -> None:
    """Raises InputError if runs of an arm differ in more than their seeds."""
    for path, config in runs[1:]:
        first, first_config = runs[0]
        for name, (a, b) in diff(first_config, config).items():
            if name != "train.seed":
                raise InputError(f"runs {first} and {path} differ in {name}: {a!r} against {b!r}")


def _by_metric(stored: Json) -> Json:
    return {f"{group}/{name}": v for group, own in stored.items() for name, v in own.items()}
