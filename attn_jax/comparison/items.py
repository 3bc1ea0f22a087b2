"""Tests over held-out items: what a difference owes to the choice of the text.

A run is scored on N items (places, sentences), and each leaves K numbers whose sums make the
score: K = 1 for a mean, ten counts for BLEU. All runs are scored on the same items. Letters: S
seeds, N items, K numbers, R resamples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
from jaxtyping import Float, Shaped
from scipy.special import stdtrit

from attn_jax.comparison.statistics import ALPHA, CONFIDENCE

RESAMPLES = 2000  # of a bootstrap
TRIALS = 10_000  # of a randomisation test
CHUNK = 250  # resamples whose weights are held at once


@dataclass(frozen=True)
class Items:
    """What the items of the runs of one arm left."""

    numbers: Float[np.ndarray, "S N K"]

    @property
    def count(self) -> int:
        """How many items were scored."""
        return self.numbers.shape[1]

    def score(self, sums: Float[np.ndarray, "*any K"]) -> Float[np.ndarray, "*any"]:
        """Returns scores from sums over `count` items: BLEU of ten sums, else the mean."""
        return bleu(sums) if sums.shape[-1] == 10 else sums[..., 0] / self.count

    def seeds(self, chosen: list[int]) -> "Items":
        """Returns the items of some of the seeds."""
        return Items(self.numbers[chosen])

    @property
    def scores(self) -> Float[np.ndarray, " S"]:
        """The score of every seed."""
        return self.score(self.numbers.sum(1))


def bleu(sums: Float[np.ndarray, "*any 10"]) -> Float[np.ndarray, "*any"]:
    """Returns corpus BLEU, in points, as sacrebleu computes it (Papineni 2002; Post 2018).

    Args:
      sums: of lengths of hypotheses and references, then of matching and of all 1- to 4-grams.
    """
    length, reference = sums[..., 0], sums[..., 1]
    matching, total = sums[..., 2:6], sums[..., 6:10]
    # An order without a match counts half a match, a second one a quarter, and so on.
    halvings = np.cumsum(matching == 0, axis=-1)
    smoothed = np.where(matching == 0, 0.5**halvings, matching)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(smoothed / total).sum(-1) / 4
        penalty = np.minimum(0, 1 - reference / length)
        score = 100 * np.exp(logs + penalty)
    return np.where((matching.sum(-1) > 0) & (total.min(-1) > 0), score, 0.0)


def randomisation(a: Items, b: Items, trials: int = TRIALS, key: int = 0) -> float:
    """Tests whether two arms' outputs differ on this text, by approximate randomisation.

    If it does not matter which arm an output comes from, then neither does swapping the outputs
    for some of the items (Noreen 1989; Riezler and Maxwell 2005). This asks about the runs at
    hand, each item swapped in all seeds at once: it says nothing of other seeds.

    Args:
      a: one arm's items.
      b: the other's, of the same seeds and items.
      trials: random sets of swapped items.
      key: of the sets.

    Returns:
      The two-sided p, at least 1 / (trials + 1).
    """
    sums_a, sums_b = a.numbers.sum(1), b.numbers.sum(1)
    change = b.numbers - a.numbers
    observed = abs((a.score(sums_a) - a.score(sums_b)).mean())
    reached = 0
    rng = np.random.default_rng(key)
    for size in _chunks(trials):
        moved = _weigh(rng.random((size, a.count)) < 0.5, change)
        gaps = (a.score(sums_a + moved) - a.score(sums_b - moved)).mean(1)
        reached += int(np.sum(np.abs(gaps) >= observed * (1 - 1e-9)))
    return (reached + 1) / (trials + 1)


def bootstrap(
    a: Items, b: Items, resamples: int = RESAMPLES, key: int = 0
) -> Float[np.ndarray, "R S"]:
    """Resamples the items of two arms, one draw for all runs.

    The items are not drawn for each seed anew: all seeds were scored on the same ones, so a lucky
    choice of text does not average out over seeds (Owen 2007, the pigeonhole bootstrap; its
    variance is never too small). What drawing the seeds too would add needs no drawing: it is the
    variance between them.

    Args:
      a: one arm's items.
      b: the other's, of the same seeds and items.
      resamples: how often the items are drawn.
      key: of the draws.

    Returns:
      The difference `a - b` of every seed, each keeping its pair of runs.
    """
    rng = np.random.default_rng(key)
    found = []
    for size in _chunks(resamples):
        weights = rng.multinomial(a.count, np.full(a.count, 1 / a.count), size)
        scores = [a.score(_weigh(weights, items.numbers)) for items in (a, b)]
        found.append(scores[0] - scores[1])
    return np.concatenate(found)


def bootstrap_interval(
    a: Items, b: Items, resamples: int = RESAMPLES, key: int = 0
) -> tuple[float, float]:
    """Returns a 95 % interval of the difference `a - b` over seeds and items.

    Of one seed only items are resampled, of which there are many: the percentiles. With few
    seeds percentiles are too narrow (five normal seeds: 84 % in place of 95). So there the
    resamples give two variances, of the items and of the seeds, and each its own reach by
    Student's t, put together as the root of the sum of squares (in the manner of Graybill and Wang
    1980): Student's interval over seeds where items make no difference, and the items' own where
    seeds make none.
    """
    gaps = bootstrap(a, b, resamples, key)
    seeds, difference = len(a.scores), float((a.scores - b.scores).mean())
    if seeds == 1:
        low, high = np.quantile(gaps, [ALPHA / 2, 1 - ALPHA / 2])
        return float(low), float(high)
    by_item = float(gaps.mean(1).var(ddof=1))
    by_seed = float(gaps.var(axis=1, ddof=1).mean() / seeds)
    t_item, t_seed = (float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) for n in (a.count, seeds))
    reach = sqrt(t_item**2 * by_item + t_seed**2 * by_seed)
    return difference - reach, difference + reach


def _weigh(
    weights: Shaped[np.ndarray, "R N"], numbers: Float[np.ndarray, "S N K"]
) -> Float[np.ndarray, "R S K"]:
    """Sums over items, each as often as it was drawn."""
    s, n, k = numbers.shape
    flat = weights.astype(float) @ numbers.transpose(1, 0, 2).reshape(n, s * k)
    return flat.reshape(-1, s, k)


def _chunks(total: int) -> Iterator[int]:
    for start in range(0, total, CHUNK):
        yield min(CHUNK, total - start)
