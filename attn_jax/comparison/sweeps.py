"""Sweeps: every arm of a study is tuned on the same grid, by validation, before it is compared.

The runs of a sweep have seeds of their own, so that the runs which are compared are not those that
were picked for their results. They are scored on the validation split, at the end of the schedule.
"""

from math import isfinite
from pathlib import Path

import numpy as np

from attn_jax.comparison.arms import (
    Run,
    Study,
    changes_loss,
    is_finished,
    parse_seeds,
    plan_run,
    refuse_unequal_facts,
)
from attn_jax.comparison.grid import GRID_METRICS, best, borders, points
from attn_jax.comparison.metrics import metric_of
from attn_jax.comparison.runs import Json, Number, read_results
from attn_jax.config import flatten, names_in, with_fields
from attn_jax.errors import InputError, WorkError, nearest
from attn_jax.training.run_directory import has_diverged

SECTIONS = ("model", "objective", "optimizer")  # other fields change the data or the budget


def plan_sweep(study: Study, seeds: str, root: Path) -> list[Run]:
    """Returns a run for every arm at every point of the study's grid; none without a grid.

    Args:
      study: a study that `plan` accepts.
      seeds: those of the final runs, comma-separated; empty means the study's own.
      root: directory of the comparison.

    Raises:
      InputError: one line naming the study and what is wrong with its grid.
    """
    if not study.grid:
        return []
    try:
        grid = _typed_grid(study)
        grid_seeds = parse_seeds(study.grid_seeds)
        _refuse_shared_seeds(grid_seeds, parse_seeds(seeds or study.seeds))
        _check_metric(study)
    except InputError as error:
        raise InputError(f"study {study.name!r}, grid: {error}") from error
    runs = [
        plan_run(study, arm, seed, root, point, split="validation")
        for seed in grid_seeds
        for point in points(grid)
        for arm in study.arms
    ]
    for run in runs:
        _refuse_unscored(run)
    return runs


def is_settled(run: Run) -> bool:
    """Tells whether a run of a sweep is finished, or has diverged, which counts as worst."""
    return is_finished(run) or has_diverged(run.directory)


def collect_sweep(runs: list[Run]) -> Json:
    """Collects the settled runs of one study's sweep and picks the best point of every arm.

    Returns:
      A dict ready for JSON: `metric`, `less_is_better`, `seeds`, `fields` (field -> values);
      `arms`: arm -> a list of `point`, `scores` (one a seed, None where it diverged) and `score`
      (their mean, or None); `best`: arm -> its point; `borders`: arm -> field -> "smallest" or
      "largest", where the best value is at a border of the grid.

    Raises:
      InputError: a run is not settled, or the runs did not see the same data.
      WorkError: all runs of an arm diverged.
    """
    study = runs[0].study
    for run in runs:
        if not is_settled(run):
            raise InputError(f"{run.directory}: this run of the sweep is not finished")
    refuse_unequal_facts([run for run in runs if is_finished(run)])
    grid = _typed_grid(study)
    less_is_better = not metric_of(study.grid_metric).higher_is_better
    arms = {arm: _scored([run for run in runs if run.arm == arm], grid) for arm in study.arms}
    picked = {}
    for arm, scored in arms.items():
        index = best([found["score"] for found in scored], less_is_better)
        if index is None:
            raise WorkError(
                f"study {study.name!r}, arm {arm!r}: the loss is not finite at any point of the "
                "grid; add points to it, such as lower learning rates, and start again"
            )
        picked[arm] = scored[index]["point"]
    return {
        "metric": study.grid_metric,
        "less_is_better": less_is_better,
        "seeds": sorted({run.seed for run in runs}),
        "fields": {name: list(values) for name, values in grid.items()},
        "arms": arms,
        "best": picked,
        "borders": {arm: borders(grid, point) for arm, point in picked.items()},
    }


def _scored(runs: list[Run], grid: dict[str, tuple]) -> list[Json]:
    scored = []
    for point in points(grid):
        scores = [_score(run) for run in runs if run.point == point]
        score = None if None in scores else float(np.mean(scores))
        scored.append({"point": point, "scores": scores, "score": score})
    return scored


def _score(run: Run) -> Number | None:
    if not is_finished(run):
        return None
    evaluator, _, name = run.study.grid_metric.partition("/")
    results = read_results(run.directory, run.config)
    score = results[evaluator][name]
    return score if isfinite(score) else None


def _typed_grid(study: Study) -> dict[str, tuple]:
    """Returns the grid with values of the fields' types; refuses one that cannot be swept."""
    known, grid = flatten(study.base), {}
    for name, values in study.grid.items():
        if name not in known:
            raise InputError(f"unknown config field {name!r}{nearest(str(name), known)}")
        if name.partition(".")[0] not in SECTIONS:
            raise InputError(f"{name}: expected a field of {', '.join(SECTIONS)}")
        if not isinstance(values, tuple | list) or len(values) < 2:
            raise InputError(f"{name} = {values!r}: expected a tuple of two values or more")
        setting = [arm for arm, changes in study.arms.items() if name in changes]
        if setting or name in study.declared:
            how = f"set by arm {setting[0]!r}" if setting else "declared as a difference of arms"
            raise InputError(f"{name}: is {how}, and the grid is the same for all arms")
        grid[name] = tuple(flatten(with_fields(study.base, {name: v}))[name] for v in values)
        if len(set(grid[name])) < len(values):
            raise InputError(f"{name} = {values!r}: a value is given twice")
    return grid


def _refuse_shared_seeds(grid_seeds: list[int], seeds: list[int]) -> None:
    for seed in grid_seeds:
        if seed in seeds:
            raise InputError(
                f"grid_seeds: {seed} is also one of seeds, whose runs must not be those that were "
                "picked for their results"
            )


def _check_metric(study: Study) -> None:
    metric = study.grid_metric
    if metric not in GRID_METRICS:
        allowed = ", ".join(GRID_METRICS)
        hint = nearest(metric, GRID_METRICS)
        raise InputError(f"grid_metric = {metric!r}: expected one of {allowed}{hint}")
    for name in study.grid:
        if metric == "loss/loss" and changes_loss(name):
            raise InputError(
                f"{name} changes what the loss is over: grid_metric = 'loss/loss' cannot compare "
                "its values"
            )


def _refuse_unscored(run: Run) -> None:
    evaluator = run.study.grid_metric.partition("/")[0]
    if evaluator not in names_in(run.config.eval.evaluators):
        raise InputError(
            f"study {run.study.name!r}, grid_metric = {run.study.grid_metric!r}: needs "
            f"{evaluator!r} in eval.evaluators, which is {run.config.eval.evaluators!r}"
        )
    if run.study.grid_metric == "loss/loss" and run.config.objective.name == "mixture":
        raise InputError(
            f"study {run.study.name!r}, grid_metric = 'loss/loss': arm {run.arm!r} has "
            "objective.name = 'mixture', which has two losses; expected another metric"
        )


def described(sweep: Json) -> list[str]:
    """Says in a line for every arm to what it was tuned, and then what to be warned of."""
    tuned = {
        arm: ", ".join(f"{name} = {value}" for name, value in point.items())
        for arm, point in sweep["best"].items()
    }
    return [*(f"tuned {arm}: {point}" for arm, point in tuned.items()), *warnings(sweep)]


def warnings(sweep: Json) -> list[str]:
    """Says where the best value is at a border of the grid, so that a better one may lie beyond."""
    return [
        f"The best {name} of the {arm}, {sweep['best'][arm][name]}, is the {end} of the grid: "
        "better values may lie beyond."
        for arm, found in sweep["borders"].items()
        for name, end in found.items()
    ]
