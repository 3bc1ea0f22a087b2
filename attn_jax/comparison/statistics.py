"""Statistics over seeds: intervals, tests, corrections and power, of differences paired by seed.

All of it covers what changes with the seed (initial weights, data order, masking); the choice of
the held-out text is the subject of items.py. One seed has no interval and earns no claim.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import exp, lgamma, sqrt

import numpy as np
from scipy.special import nctdtr, nctdtrinc, stdtr, stdtrit  # scipy.stats takes two seconds

from attn_jax.comparison.runs import Json, Number

CONFIDENCE = 0.95
ALPHA = 0.05  # share of false claims that is put up with
POWER = 0.8  # chance to find a difference that is there
MOST_SEEDS = 1000  # where the search for enough seeds ends
MOST_T = 1e4  # of which the noncentral distribution is inverted
EXACT_SIGNS = 12  # seeds of which all sign patterns are counted; of more, a sample


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
    reach = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * sd / sqrt(n)
    return {"n": n, "mean": mean, "sd": sd, "low": mean - reach, "high": mean + reach}


def paired(a: Sequence[Number], b: Sequence[Number]) -> list[float]:
    """Returns `a - b`, seed by seed; raises ValueError if one has more seeds."""
    return [float(x - y) for x, y in zip(a, b, strict=True)]


def paired_t(differences: Sequence[Number]) -> float | None:
    """Tests whether paired differences have mean 0.

    Returns:
      Student's two-sided p, or None where it is not defined: for one seed, and where all seeds
      differ by the same amount, which shows no spread to measure the mean against.
    """
    t = _t(differences)
    return None if t is None else float(2 * stdtr(len(differences) - 1, -abs(t)))


def equivalence(differences: Sequence[Number], margin: float) -> float | None:
    """Tests whether the mean of paired differences lies within `margin` of 0.

    Two one-sided t-tests (Schuirmann 1987): a small p claims that it does.

    Args:
      differences: one a seed.
      margin: the largest difference that does not matter, above 0.

    Returns:
      The larger of both p, or None where a t-test is not defined.
    """
    sides = [_t([sign * x + margin for x in differences]) for sign in (1, -1)]
    if None in sides:
        return None
    return float(max(stdtr(len(differences) - 1, -t) for t in sides))


def sign_flip(differences: Sequence[Number], trials: int = 10_000, key: int = 0) -> float:
    """Tests by permutation whether paired differences are as likely positive as negative.

    If arms do not matter, each seed's difference might as well have had the other sign. Up to
    12 seeds all 2^n sign patterns are counted, so p is at least 2 / 2^n: five seeds cannot reach
    0.05. Of more seeds a sample of patterns is counted.

    Args:
      differences: one a seed.
      trials: patterns to sample.
      key: of the sample.

    Returns:
      The two-sided p of the absolute mean.
    """
    d = np.asarray(differences, float)
    exact = len(d) <= EXACT_SIGNS
    if exact:
        signs = np.array(list(product((1, -1), repeat=len(d))))
    else:
        signs = np.random.default_rng(key).choice((1, -1), (trials, len(d)))
    reached = np.abs(signs @ d) >= abs(d.sum()) * (1 - 1e-12)
    # A sample counts the pattern that was observed too, so p is never 0.
    return float(reached.mean() if exact else (reached.sum() + 1) / (trials + 1))


def least_sign_flip(n: int) -> float:
    """Returns the least p that `sign_flip` counts for `n` seeds, of up to 12."""
    return 2 / 2**n


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusts p-values for their number, by Holm's step-down method (Holm 1979).

    Args:
      p_values: of all tests of a family; None is no test and stays None.

    Returns:
      Adjusted p-values in the same order: those up to 0.05 are claims, of which with 95 %
      probability none is false.
    """
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * p))
        adjusted[i] = highest
    return adjusted


def effect_size(differences: Sequence[Number]) -> Json | None:
    """Returns the standardized mean of paired differences.

    Returns:
      `d` (Cohen's d_z, the mean over the standard deviation), `g` (the same with Hedges'
      correction for few seeds) and the 95 % interval of the true value, `low` to `high`, by the
      noncentral t distribution (None each where t is above 1e4, which it would take minutes to
      invert); None for fewer than three seeds or no spread.
    """
    n, t = len(differences), _t(differences)
    if n < 3 or t is None:
        return None
    tail, d = (1 - CONFIDENCE) / 2, t / sqrt(n)
    if abs(t) > MOST_T:
        return {"d": d, "g": _hedges(n - 1) * d, "low": None, "high": None}
    low, high = (float(nctdtrinc(n - 1, p, t)) / sqrt(n) for p in (1 - tail, tail))
    return {"d": d, "g": _hedges(n - 1) * d, "low": low, "high": high}


def power_of(effect: float, n: int, alpha: float = ALPHA, sides: int = 2) -> float:
    """Returns the chance that a paired t-test of `n` seeds finds a difference.

    Args:
      effect: the true difference over the standard deviation of differences, at least 0.
      n: seeds, at least 2.
      alpha: the p up to which it is found.
      sides: 2, or 1 for a test in the direction of the difference.
    """
    shift, df = effect * sqrt(n), n - 1
    limit = float(stdtrit(df, 1 - alpha / sides))
    # Where the tail is too small for the noncentral distribution to compute, it says nan.
    missed, wrong_side = np.nan_to_num(nctdtr(df, shift, [limit, -limit]))
    return float(1 - missed + (wrong_side if sides == 2 else 0))


def seeds_needed(effect: float, alpha: float = ALPHA, power: float = POWER) -> int | None:
    """Returns how many seeds find a difference with the given power; None beyond 1,000.

    Args:
      effect: the true difference over the standard deviation of differences, at least 0.
      alpha: the two-sided p up to which it is found.
      power: the chance to find it.
    """
    return _fewest(lambda n: power_of(effect, n, alpha), power)


def seeds_for_parity(
    effect: float, margin: float, alpha: float = ALPHA, power: float = POWER
) -> int | None:
    """Returns how many seeds show with the given power that a difference is within a margin.

    Both one-sided tests must succeed. The chance that one of them fails is at most the sum of
    both, which is used, so that the power is never less than it says.

    Args:
      effect: the true difference over the standard deviation of differences, at least 0.
      margin: the same of the margin, above the effect.
      alpha: the p up to which it is shown.
      power: the chance to show it.

    Returns:
      The number of seeds; None beyond 1,000.
    """
    near, far = margin - effect, margin + effect
    return _fewest(
        lambda n: power_of(near, n, alpha, sides=1) + power_of(far, n, alpha, sides=1) - 1, power
    )


def _fewest(power_with: Callable[[int], float], power: float) -> int | None:
    """Returns the least n, from 2 to 1,000, that has enough of a power that grows with it."""
    low, high = 1, MOST_SEEDS  # too few, enough
    if power_with(high) < power:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_with(middle) >= power else (middle, high)
    return high


def detectable_difference(
    sd: float, n: int, alpha: float = ALPHA, power: float = POWER
) -> float | None:
    """Returns the least difference that `n` seeds find with the given power, None for one seed.

    Args:
      sd: standard deviation of the paired differences.
      n: seeds.
      alpha: the p up to which it is found, two-sided.
      power: the chance to find it.
    """
    if n < 2:
        return None
    low, high = 0.0, 1.0
    while power_of(high, n, alpha) < power:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(middle, n, alpha) >= power else (middle, high)
    return high * sd


def _t(values: Sequence[Number]) -> float | None:
    """Returns the t of the mean, or None where the values show no spread."""
    if len(values) < 2:
        return None
    sd = np.std(values, ddof=1)
    if sd <= 1e-9 * np.max(np.abs(values)):  # equal up to rounding
        return None
    return float(np.mean(values) / (sd / sqrt(len(values))))


def _hedges(df: int) -> float:
    """Returns what takes the bias off a standardized mean, for `df` of at least 2."""
    return exp(lgamma(df / 2) - lgamma((df - 1) / 2)) / sqrt(df / 2)
