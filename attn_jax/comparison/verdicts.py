"""Arms compared pair by pair: the tests of every difference, and what it allows to claim.

The claim rests on the paired t-test over seeds, corrected by Holm for all comparisons of the
study. Where single items were kept, the interval over seeds and text is shown beside it.
"""

from collections.abc import Iterator
from itertools import combinations

from attn_jax.comparison.items import Items, bootstrap_interval, randomisation
from attn_jax.comparison.metrics import Metric, matching, metric_of
from attn_jax.comparison.runs import Json, Number
from attn_jax.comparison.statistics import (
    ALPHA,
    detectable_difference,
    effect_size,
    equivalence,
    holm,
    paired,
    paired_t,
    seeds_for_parity,
    seeds_needed,
    sign_flip,
    summarize,
)
from attn_jax.comparison.wording import number, p_text

Scores = dict[str, dict[str, list[Number]]]  # arm -> metric -> one number a seed


def compare_arms(
    scores: Scores, margins: dict[str, Number], items: dict[str, dict[str, Items]]
) -> list[Json]:
    """Compares every two arms in every metric that both have.

    Args:
      scores: arm -> metric -> one number a seed, in the same order of seeds.
      margins: metric, or a pattern of metrics -> the difference that does not matter; 0 for no
        claim of parity. Only these metrics are compared, each once: by its own entry, else by the
        first pattern that covers it.
      items: arm -> metric -> what its items scored, where that was kept.

    Returns:
      One dict a metric and pair. `metric`, `a`, `b`; of `a - b`: what `summarize` returns,
      `effect` (what `effect_size` returns), `detectable` (the difference that so many seeds find);
      `p`, `holm`, `sign_flip_p`; `margin`, `equivalence_p`, `equivalence_holm`; `text` (interval
      over seeds and items, and `p` of the randomisation of items) or None; `outcome` ("ahead",
      "on par", "undecided", "no spread" or "one seed"), `ahead` (an arm or None), `more_seeds`
      (None if more than 1,000, or decided) and the `verdict` in words.
    """
    rows = list(_tested(scores, margins, items))
    for test, adjusted in (("p", "holm"), ("equivalence_p", "equivalence_holm")):
        for row, p in zip(rows, holm([row[test] for row in rows]), strict=True):
            row[adjusted] = p
    families = {test: sum(row[test] is not None for row in rows) for test in ("p", "equivalence_p")}
    for row in rows:
        metric = metric_of(row["metric"])
        row["outcome"] = _outcome(row)
        row["ahead"] = _ahead(row, metric) if row["outcome"] == "ahead" else None
        undecided = row["outcome"] == "undecided"
        row["more_seeds"] = _more_seeds(row, families) if undecided else None
        row["verdict"] = verdict(row, metric)
    return rows


def verdict(row: Json, metric: Metric) -> str:
    """Says in words what a row of `compare_arms` allows to claim."""
    a, b = row["a"], row["b"]
    outcome = row["outcome"]
    if outcome == "one seed":
        return f"{a} against {b}: one seed, no claim"
    if outcome == "no spread":
        gap = number(row["mean"], metric.digits + 1)
        return f"{a} against {b}: no claim, all seeds differ by the same {gap} {metric.unit}"
    if outcome == "ahead":
        return _beats(row, metric)
    seeds = f"{row['n']} seeds"
    if outcome == "on par":
        margin = f"{row['margin']:g} {metric.unit}"
        found = f"{_gap(row, metric)}, {seeds}, Holm {p_text(row['equivalence_holm'])}"
        return f"{a} and {b} are on par within {margin}: difference {found}"
    found = f"difference {_gap(row, metric)}, {seeds}, Holm {p_text(row['holm'])}"
    return f"{a} against {b} is undecided: {_needed(row)} ({found})"


def _tested(
    scores: Scores, margins: dict[str, Number], items: dict[str, dict[str, Items]]
) -> Iterator[Json]:
    left = list(dict.fromkeys(name for own in scores.values() for name in own))
    for pattern, margin in margins.items():
        for name in matching(pattern, left):
            if name != pattern and name in margins:
                continue  # its own entry counts
            left.remove(name)
            for a, b in combinations([arm for arm, own in scores.items() if name in own], 2):
                yield {
                    "metric": name,
                    "a": a,
                    "b": b,
                    **_tests(paired(scores[a][name], scores[b][name]), float(margin)),
                    "text": _over_text([items[arm].get(name) for arm in (a, b)]),
                }


def _tests(differences: list[float], margin: float) -> Json:
    found = summarize(differences)
    several = found["n"] > 1
    return {
        **found,
        "effect": effect_size(differences),
        "detectable": detectable_difference(found["sd"], found["n"]) if several else None,
        "p": paired_t(differences),
        "sign_flip_p": sign_flip(differences) if several else None,
        "margin": margin,
        "equivalence_p": equivalence(differences, margin) if margin else None,
    }


def _over_text(arms: list[Items | None]) -> Json | None:
    a, b = arms
    if a is None or b is None or a.count != b.count or a.count < 2:
        return None
    low, high = bootstrap_interval(a, b)
    return {"low": low, "high": high, "p": randomisation(a, b)}


def _outcome(row: Json) -> str:
    if row["n"] == 1:
        return "one seed"
    if row["p"] is None:
        return "no spread"
    if row["holm"] <= ALPHA:
        return "ahead"
    on_par = row["equivalence_holm"] is not None and row["equivalence_holm"] <= ALPHA
    return "on par" if on_par else "undecided"


def _ahead(row: Json, metric: Metric) -> str:
    return row["a"] if (row["mean"] > 0) == metric.higher_is_better else row["b"]


def _more_seeds(row: Json, families: dict[str, int]) -> int | None:
    """How many more would decide with 80 % power, if difference and deviation stay as they are."""
    gap, sd = abs(row["mean"]), row["sd"]
    enough = [seeds_needed(gap / sd, ALPHA / families["p"])]
    if row["equivalence_p"] is not None and gap < row["margin"]:
        alpha = ALPHA / families["equivalence_p"]
        enough.append(seeds_for_parity(gap / sd, row["margin"] / sd, alpha))
    least = min((n for n in enough if n is not None), default=None)
    return None if least is None else max(1, least - row["n"])


def _needed(row: Json) -> str:
    more = row["more_seeds"]
    if more is None:
        return "more than 1,000 seeds needed"
    return f"{more} more {'seed' if more == 1 else 'seeds'} needed"


def _beats(row: Json, metric: Metric) -> str:
    digits = metric.digits + 1
    loser = row["b"] if row["ahead"] == row["a"] else row["a"]
    low, high = sorted(abs(row[end]) for end in ("low", "high"))
    gap = f"{number(abs(row['mean']), digits)} [{number(low, digits)}, {number(high, digits)}]"
    found = f"{row['ahead']} beats {loser} by {gap} {metric.unit}, {row['n']} seeds"
    said = f"{found}, Holm {p_text(row['holm'])}"
    if abs(row["mean"]) < row["margin"]:
        said += f"; less than the {row['margin']:g} {metric.unit} that matter"
    text = row["text"]
    if text and text["low"] <= 0 <= text["high"]:
        sign = 1 if row["mean"] > 0 else -1
        low, high = (
            number(end, digits) for end in sorted((sign * text["low"], sign * text["high"]))
        )
        said += f"; other text might not show it (over seeds and text [{low}, {high}])"
    return said


def _gap(row: Json, metric: Metric) -> str:
    mean, low, high = (number(row[name], metric.digits + 1) for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}] {metric.unit}"
