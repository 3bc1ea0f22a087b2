"""Unigram and interpolated Kneser-Ney trigram models: the baselines of the report."""

import numpy as np


class NGrams:
    """Counts over documents of token ids.

    The trigram model is interpolated Kneser-Ney with one discount per order, n1 / (n1 + 2 n2)
    (Ney et al. 1994; Chen and Goodman 1999). Its unigram is mixed with the uniform distribution,
    so every id has probability above zero.
    """

    def __init__(self, ids: np.ndarray, starts: np.ndarray, vocab_size: int):
        """Counts.

        Args:
          ids: all documents, one after the other.
          starts: index of the first token of each document.
          vocab_size: V.
        """
        self._V = vocab_size
        age = np.arange(len(ids)) - np.repeat(starts, np.diff(np.append(starts, len(ids))))
        ids = ids.astype(np.int64)
        self._unigrams = np.bincount(ids, minlength=vocab_size) + 1  # add one
        bigrams = (ids[:-1] * vocab_size + ids[1:])[age[1:] >= 1]
        trigrams = (ids[:-2] * vocab_size + ids[1:-1]) * vocab_size + ids[2:]
        self._three = _Order(trigrams[age[2:] >= 2], vocab_size)
        # Lower orders count in how many different contexts something was seen.
        self._two = _Order(
            np.concatenate([self._three.types % vocab_size**2, self._first(bigrams, age, ids)]),
            vocab_size,
        )
        self._one = np.bincount(self._two.types % vocab_size, minlength=vocab_size)

    def _first(self, bigrams: np.ndarray, age: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Returns the bigrams that start documents: no trigram ends with them."""
        second = np.flatnonzero(age == 1)
        return np.unique(ids[second - 1] * self._V + ids[second])

    def unigram(self, ids: np.ndarray) -> np.ndarray:
        """Returns the probability of each id, whatever its context."""
        return self._unigrams[ids] / self._unigrams.sum()

    def trigram(self, before: np.ndarray, last: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Returns the probability of each id after the tokens `before`, `last`.

        Args:
          before: the token two places to the left, or -1 where there is none.
          last: the token to the left.
          ids: the token itself.
        """
        # V^3 n-grams do not fit in int32, the type of ids elsewhere.
        before, last, ids = (np.asarray(x, np.int64) for x in (before, last, ids))
        uniform_share = 1 / (1 + self._one.sum())
        one = self._one[ids] / self._one.sum() * (1 - uniform_share) + uniform_share / self._V
        two = self._two.interpolate(last, ids, one)
        three = self._three.interpolate(before * self._V + last, ids, two)
        return np.where(before < 0, two, three)


class _Order:
    """Counts of one n-gram order, each n-gram one number `context * V + id`."""

    def __init__(self, codes: np.ndarray, vocab_size: int):
        self._V = vocab_size
        self.types, self._counts = np.unique(codes, return_counts=True)
        once, twice = (np.count_nonzero(self._counts == n) for n in (1, 2))
        self._discount = once / max(once + 2 * twice, 1)
        self._contexts, start = np.unique(self.types // vocab_size, return_index=True)
        self._totals = np.add.reduceat(self._counts, start)
        self._followers = np.diff(np.append(start, len(self.types)))

    def interpolate(self, context: np.ndarray, ids: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Returns the discounted share of each id in its context, plus what `lower` is left."""
        count = _look_up(self.types, self._counts, context * self._V + ids)
        total = _look_up(self._contexts, self._totals, context)
        followers = _look_up(self._contexts, self._followers, context)
        left = self._discount * followers
        known = (np.maximum(count - self._discount, 0) + left * lower) / np.maximum(total, 1)
        return np.where(total > 0, known, lower)


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the value of each wanted key, 0 where the sorted `keys` do not hold it."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
