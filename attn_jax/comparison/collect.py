"""Reads the finished runs of a study into one plain dict, from which the report is rendered."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import isfinite, nan
from pathlib import Path
from typing import Any

from attn_jax.comparison.arms import Run, check_runs, is_finished
from attn_jax.comparison.budgets import BUDGETS, describe_budgets
from attn_jax.comparison.items import Items
from attn_jax.comparison.kept_items import read_items
from attn_jax.comparison.metrics import MARGINS, OWN_BITS, matching
from attn_jax.comparison.runs import Json, Number, read_curves, read_results
from attn_jax.comparison.statistics import summarize
from attn_jax.comparison.verdicts import compare_arms
from attn_jax.config import flatten
from attn_jax.errors import InputError
from attn_jax.evaluation.results import MASKS, flat_numbers
from attn_jax.files import read_json, write_whole

BASELINES = ("unigram", "trigram", "copy")  # prefixes of scores that need no model


@dataclass(frozen=True)
class _Arm:
    """What the runs of one arm left, one entry a seed."""

    runs: list[Run]
    ledgers: list[Json]
    results: list[Json]
    curves: dict[str, list[list[Json]]]  # "train" and "evaluation" -> seed -> lines
    items: dict[str, Items]  # metric -> what single items scored, where all seeds kept it


def collect(runs: list[Run]) -> Json:
    """Collects the finished runs of one study.

    Returns:
      A dict ready for JSON. Over arms: `declared` (field -> arm -> value), `budgets` and `metrics`
      (arm -> name -> summary with `values`, one a seed), `masks` (arm -> bits under each mask),
      `curves` ("train" and "evaluation" -> name -> arm -> mean, min and max a step),
      `differences` (what `compare_arms` returns), `diverged` (of an arm and metric without a
      number: how many of its `seeds` diverged) and `overtakes` between two arms. Of the study:
      `name`, `question`, `arms`, `seeds`, `matched` and `differ` (budgets in words),
      `not_compared` (margins without numbers), `baselines`, `items`, `signatures`, `examples`,
      `provenance`.

    Raises:
      InputError: no run is finished, or `check_runs` refuses them.
    """
    check_runs(runs)
    finished = [run for run in runs if is_finished(run)]
    if not finished:
        raise InputError("none of the runs is finished, so there is nothing to report")
    study = finished[0].study
    arms = {name: _read([run for run in finished if run.arm == name]) for name in study.arms}
    budgets = {name: _budgets(arm) for name, arm in arms.items()}
    metrics = {name: _metrics(arm) for name, arm in arms.items()}
    masks = {name: _masks(arm) for name, arm in arms.items() if _masks(arm)}
    differences = _differences(arms, metrics, study.margins)
    curves = {"train": _curves(arms, "train"), "evaluation": _curves(arms, "evaluation")}
    return {
        "name": study.name,
        "question": study.question,
        "arms": list(arms),
        "seeds": sorted({run.seed for run in finished}),
        "declared": _declared(arms, study.declared),
        "budgets": budgets,
        **describe_budgets(_means(budgets)),
        "metrics": metrics,
        "differences": differences,
        "diverged": list(_diverged(arms)),
        "not_compared": _not_compared(study.margins, differences),
        "curves": curves,
        "masks": masks,
        "overtakes": list(_overtakes(masks, curves["evaluation"].get(OWN_BITS, {}))),
        **_shared_facts(arms),
        "examples": _examples(arms),
        "provenance": _provenance(arms),
    }


def write_comparison(path: Path, collected: dict[str, Json]) -> None:
    """Writes `{study: collected}` as comparison.json, whole or not at all."""
    write_whole(path, json.dumps(collected, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _read(runs: list[Run]) -> _Arm:
    runs = sorted(runs, key=lambda run: run.seed)
    logged = [read_curves(run.directory) for run in runs]
    return _Arm(
        runs,
        [read_json(run.directory / "ledger.json") for run in runs],
        [read_results(run.directory, run.config) for run in runs],
        {kind: [lines[kind] for lines in logged] for kind in ("train", "evaluation")},
        read_items([(run.directory, run.config.train.steps) for run in runs]),
    )


def _over_seeds(values: list[Number]) -> Json:
    return {"values": values, **summarize(values), "min": min(values), "max": max(values)}


def _budgets(arm: _Arm) -> dict[str, Json]:
    for run, ledger in zip(arm.runs, arm.ledgers, strict=True):
        for name in (*BUDGETS, "seconds"):
            value = ledger.get(name)
            if type(value) not in (int, float) or not 0 <= value <= 1e300:
                path = run.directory / "ledger.json"
                raise InputError(f"{path}: {name} = {value!r}: expected a number, 0 or above")
    return {
        name: _over_seeds([ledger[name] for ledger in arm.ledgers])
        for name in (*BUDGETS, "seconds")
    }


def _means(budgets: dict[str, dict[str, Json]]) -> dict[str, dict[str, Number]]:
    return {arm: {name: x["mean"] for name, x in own.items()} for arm, own in budgets.items()}


def _metrics(arm: _Arm) -> dict[str, Json]:
    """Summarizes every number that all seeds of an arm have."""
    seeds = [flat_numbers(results) for results in arm.results]
    for run, numbers in zip(arm.runs, seeds, strict=True):
        for name, value in numbers.items():
            if not isfinite(value):
                raise InputError(f"run {run}: {name} = {value} is not a finite number")
    names = [name for name in seeds[0] if all(name in numbers for numbers in seeds)]
    return {name: _over_seeds([numbers[name] for numbers in seeds]) for name in names}


def _diverged(arms: dict[str, _Arm]) -> Iterator[Json]:
    """The accuracies that an arm lacks because classifiers of some of its seeds diverged."""
    for name, arm in arms.items():
        lost = Counter(
            f"{evaluator}/{mask}/accuracy"
            for results in arm.results
            for evaluator, found in results.items()
            for mask in MASKS
            if isinstance(found.get(mask), dict) and found[mask].get("diverged")
        )
        for metric, count in lost.items():
            yield {"arm": name, "metric": metric, "diverged": count, "seeds": len(arm.runs)}


def _not_compared(margins: dict[str, Number], differences: list[Json]) -> list[str]:
    """The study's own margins, not those of every study, that no two arms have a number for."""
    compared = [row["metric"] for row in differences]
    own = [name for name, margin in margins.items() if MARGINS.get(name) != margin]
    return [name for name in own if not matching(name, compared)]


def _differences(
    arms: dict[str, _Arm], metrics: dict[str, dict[str, Json]], margins: dict[str, Number]
) -> list[Json]:
    scores = {
        arm: {name: summary["values"] for name, summary in own.items()}
        for arm, own in metrics.items()
    }
    return compare_arms(scores, margins, {name: arm.items for name, arm in arms.items()})


def _curves(arms: dict[str, _Arm], kind: str) -> dict[str, dict[str, Json]]:
    """Returns metric -> arm -> steps with the mean, min and max over seeds."""
    curves: dict[str, dict[str, Json]] = {}
    for name, arm in arms.items():
        seeds = arm.curves[kind]
        for metric in _logged(seeds[0]):
            curves.setdefault(metric, {})[name] = _curve(seeds, metric)
    return curves


def _logged(lines: list[Json]) -> list[str]:
    names = {name: None for line in lines for name in line if isinstance(line[name], Number)}
    return [name for name in names if name != "step"]


def _curve(seeds: list[list[Json]], metric: str) -> Json:
    """Of one arm: one point a step that every seed has logged."""
    logged = [
        {line["step"]: line[metric] for line in lines if isfinite(line.get(metric, nan))}
        for lines in seeds
    ]
    steps = [step for step in logged[0] if all(step in values for values in logged)]
    points = [[values[step] for values in logged] for step in steps]
    return {
        "steps": steps,
        "mean": [sum(point) / len(point) for point in points],
        "min": [min(point) for point in points],
        "max": [max(point) for point in points],
    }


def _masks(arm: _Arm) -> Json:
    """Bits a token of one arm under every mask, and which of these masks is its own."""
    shared = [results.get("shared_positions", {}) for results in arm.results]
    if not all("own_mask" in found for found in shared):
        return {}
    measured = [mask for mask in MASKS if all(mask in found for found in shared)]
    bits = {mask: _over_seeds([found[mask]["bits"] for found in shared]) for mask in measured}
    return {"own_mask": shared[0]["own_mask"], **bits}


def _overtakes(masks: dict[str, Json], curves: dict[str, Json]) -> Iterator[Json]:
    """For every arm with a wider view: the first step at which it needs fewer bits than another."""
    views = {name: found["own_mask"] for name, found in masks.items()}
    for wide, narrow in combinations(sorted(views, key=lambda a: -MASKS.index(views[a])), 2):
        if views[wide] == views[narrow] or not {wide, narrow} <= curves.keys():
            continue
        below = dict(zip(curves[narrow]["steps"], curves[narrow]["mean"], strict=True))
        points = zip(curves[wide]["steps"], curves[wide]["mean"], strict=True)
        step = next((step for step, bits in points if bits < below.get(step, bits)), None)
        yield {"wide": wide, "narrow": narrow, "step": step}


def _declared(arms: dict[str, _Arm], declared: tuple[str, ...]) -> Json:
    flat = {name: flatten(arm.runs[0].config) for name, arm in arms.items()}
    return {item: {name: flat[name][item] for name in arms} for item in declared}


def _shared_facts(arms: dict[str, _Arm]) -> Json:
    """What every run shares: scores without any model, and how much was scored."""
    baselines: Json = {}
    items: Json = {}
    signatures: Json = {}
    for arm in arms.values():
        for evaluator, found in arm.results[0].items():
            items[evaluator] = found.get("items", items.get(evaluator))
            baselines |= {k: v for k, v in found.items() if k.split("_")[0] in BASELINES}
            shown = (f"{name}_signature" for name in ("bleu", "chrf"))
            signatures |= {name: found[name] for name in shown if name in found}
    items = {evaluator: n for evaluator, n in items.items() if n is not None}
    return {"baselines": baselines, "items": items, "signatures": signatures}


def _examples(arms: dict[str, _Arm]) -> Json:
    """Of the first seed: predictions and translations side by side, and attention by arm."""
    first = {name: arm.results[0] for name, arm in arms.items()}
    return {
        "predictions": _aligned(first, "shared_positions", ("left", "target", "right")),
        "translations": _aligned(first, "translation", ("source", "reference")),
        "attention": {name: r["attention"] for name, r in first.items() if "attention" in r},
    }


def _aligned(results: dict[str, Json], evaluator: str, key: tuple[str, ...]) -> list[Json]:
    """Joins the samples of all arms on the fields in `key`; keeps those that every arm has."""
    samples = {
        name: {tuple(sample[k] for k in key): sample for sample in found[evaluator]["samples"]}
        for name, found in results.items()
        if "samples" in found.get(evaluator, {})
    }
    common = [k for k in next(iter(samples.values()), {}) if all(k in s for s in samples.values())]
    return [
        dict(zip(key, values, strict=True))
        | {"arms": {name: _without(found[values], key) for name, found in samples.items()}}
        for values in common
    ]


def _without(sample: Json, key: tuple[str, ...]) -> Json:
    return {name: value for name, value in sample.items() if name not in key}


def _provenance(arms: dict[str, _Arm]) -> list[Json]:
    """Per run: where it ran, from what code, and the command that started it."""
    return [
        _origin(run, ledger)
        for arm in arms.values()
        for run, ledger in zip(arm.runs, arm.ledgers, strict=True)
    ]


def _origin(run: Run, ledger: Json) -> Json:
    stored: dict[str, Any] = read_json(run.directory / "config.json")
    names = ("command", "git_commit", "versions")
    return {
        "arm": run.arm,
        "seed": run.seed,
        "device": ledger.get("device"),
        "padding_share": ledger.get("padding_share"),
        **{name: stored.get(name) for name in names},
    }
