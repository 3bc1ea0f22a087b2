"""Statistics over seeds: mean, deviation, and Student's t interval.

An interval covers what changes with the seed (initial weights, data order, masking); it does not
cover the choice of the held-out text. One seed has no interval and earns no claim.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit  # scipy.stats takes two seconds to import

from attn_jax.comparison.runs import Json, Number

CONFIDENCE = 0.95


def summarize(values: Sequence[Number]) -> Json:
    """Summarizes one number per seed.

    Args:
      values: at least one number.

    Returns:
      `n`, `mean`, the sample standard deviation `sd` and the two-sided 95 % interval of the mean,
      `low` to `high`, by Student's t; the last three are None for a single value.
    """
    n = len(values)
    mean = float(np.mean(values))
    if n == 1:
        return {"n": 1, "mean": mean, "sd": None, "low": None, "high": None}
    sd = float(np.std(values, ddof=1))
    reach = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * sd / n**0.5
    return {"n": n, "mean": mean, "sd": sd, "low": mean - reach, "high": mean + reach}


def paired_difference(a: Sequence[Number], b: Sequence[Number]) -> Json:
    """Summarizes `a - b`, paired by seed; returns what `summarize` returns."""
    return summarize([x - y for x, y in zip(a, b, strict=True)])


def verdict(difference: Json) -> str:
    """Says in words what a summarized difference allows to claim."""
    if difference["n"] == 1:
        return "one seed, no claim"
    if difference["low"] > 0:
        return "higher"
    return "lower" if difference["high"] < 0 else "not told apart"
