"""A/A calibration: tests are tried where there is nothing to find.

One arm's seeds, or its items, are split at random into two groups that differ in nothing but
chance. A test that calls them different at 5 % more often than in 5 of 100 splits is not to be
trusted.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from scipy.special import betaincinv

from attn_jax.comparison.items import Items, bootstrap_interval, randomisation
from attn_jax.comparison.runs import Json
from attn_jax.comparison.statistics import ALPHA, least_sign_flip, paired, paired_t, sign_flip

RESAMPLES = 500  # of a bootstrap or a randomisation: enough to tell 5 %, as it is done so often
LEAST_SEEDS = 4  # of an arm whose seeds are split: two groups of two


@dataclass(frozen=True)
class Rate:
    """How often a test called two groups of one arm different."""

    null: str  # what was split: "seeds" or "items"
    test: str
    covers: str  # what may differ by chance without it being called a difference
    called: int
    splits: int
    low: float  # of the 95 % interval of the rate (Clopper and Pearson 1934)
    high: float
    offered: bool  # whether a claim about this null may rest on the test
    reachable: bool  # whether its p can be as small as 5 % in groups of this size

    @property
    def passes(self) -> bool:
        """Whether 5 % lies within the interval of the rate, or above it."""
        return self.low <= ALPHA


def _t(a: Items, b: Items) -> bool:
    p = paired_t(paired(a.scores.tolist(), b.scores.tolist()))
    return p is not None and p <= ALPHA


def _signs(a: Items, b: Items) -> bool:
    return sign_flip(paired(a.scores.tolist(), b.scores.tolist())) <= ALPHA


def _bootstrap(a: Items, b: Items) -> bool:
    low, high = bootstrap_interval(a, b, RESAMPLES)
    return low > 0 or high < 0


def _randomisation(a: Items, b: Items) -> bool:
    return randomisation(a, b, RESAMPLES) <= ALPHA


# name -> the test, what it covers, and the nulls that it is offered for
TESTS: dict[str, tuple[Callable[[Items, Items], bool], str, tuple[str, ...]]] = {
    "paired t": (_t, "seeds", ("seeds", "items")),
    "sign flips": (_signs, "seeds", ("seeds", "items")),
    "hierarchical bootstrap": (_bootstrap, "seeds and text", ("seeds", "items")),
    "randomisation of items": (_randomisation, "text", ("items",)),
}


def items_needed(group: int) -> int:
    """Returns how many items can be dealt: two for each of twice `group` hands."""
    return 2 * 2 * group


def calibrate(arm: Items, splits: int, group: int, key: int = 0) -> list[Rate]:
    """Counts how often each test calls two groups of one arm different at 5 %.

    Splitting items: the items of a randomly drawn run are dealt into twice `group` hands, each
    played as a run of fewer items; two groups of them differ only in the text. Splitting seeds,
    where there are four or more: half of them against the other half, paired at random; their
    models differ too. A test of text alone is shown there as well, but not offered.

    Args:
      arm: the items of all its seeds, at least `items_needed(group)`.
      splits: how often to split.
      group: runs in each group when items are split.
      key: of the splits.
    """
    nulls = {"items": _deal_items(arm, splits, group, key)}
    if len(arm.numbers) >= LEAST_SEEDS:
        nulls["seeds"] = _split_seeds(arm, splits, key)
    return [rate for null, pairs in nulls.items() for rate in rates(null, pairs)]


def rates(null: str, pairs: Iterator[tuple[Items, Items]]) -> list[Rate]:
    """Counts how often each test calls the two groups of a pair different.

    Args:
      null: "seeds" or "items", what the groups differ in by chance.
      pairs: two groups of items each, drawn from the same distribution.
    """
    calls, seeds, found = [], 0, []
    for a, b in pairs:
        calls.append([test(a, b) for test, _, _ in TESTS.values()])
        seeds = len(a.numbers)
    for (name, (_, covers, nulls)), own in zip(TESTS.items(), np.transpose(calls), strict=True):
        called, total = int(own.sum()), len(own)
        ends = binomial_interval(called, total)
        reachable = name != "sign flips" or least_sign_flip(seeds) <= ALPHA
        found.append(Rate(null, name, covers, called, total, *ends, null in nulls, reachable))
    return found


def binomial_interval(called: int, total: int) -> tuple[float, float]:
    """Returns the exact 95 % interval of a rate (Clopper and Pearson 1934)."""
    low = betaincinv(called, total - called + 1, 0.025) if called else 0.0
    high = betaincinv(called + 1, total - called, 0.975) if called < total else 1.0
    return float(low), float(high)


def table(found: list[Rate]) -> str:
    """Returns the rates as a table for a terminal."""
    rows = [("split", "test", "covers", "called different", "95 % interval", "at most 5 %")]
    for rate in found:
        share = f"{rate.called} of {rate.splits} ({100 * rate.called / rate.splits:.1f} %)"
        ends = f"{100 * rate.low:.1f} to {100 * rate.high:.1f} %"
        rows.append((rate.null, rate.test, rate.covers, share, ends, _verdict(rate)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def _verdict(rate: Rate) -> str:
    if not rate.reachable:
        return "cannot reach 5 %"
    return "yes" if rate.passes else "NO" if rate.offered else "no, and not offered here"


def as_json(found: list[Rate]) -> list[Json]:
    """Returns the rates as plain values."""
    return [asdict(rate) | {"passes": rate.passes} for rate in found]


def _deal_items(arm: Items, splits: int, group: int, key: int) -> Iterator[tuple[Items, Items]]:
    rng = np.random.default_rng([key, 0])
    size = arm.count // (2 * group)
    for _ in range(splits):
        run = arm.numbers[rng.integers(len(arm.numbers))]
        dealt = rng.permutation(arm.count)[: 2 * group * size].reshape(2, group, size)
        yield Items(run[dealt[0]]), Items(run[dealt[1]])


def _split_seeds(arm: Items, splits: int, key: int) -> Iterator[tuple[Items, Items]]:
    rng = np.random.default_rng([key, 1])
    half = len(arm.numbers) // 2
    for _ in range(splits):
        order = rng.permutation(len(arm.numbers)).tolist()
        yield arm.seeds(order[:half]), arm.seeds(order[half : 2 * half])
