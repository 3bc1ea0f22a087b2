"""The baselines: a unigram and a Kneser-Ney trigram, against slow dictionaries."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from attn_jax.evaluation.ngram import NGrams

V = 9


def flat(documents):
    lengths = np.array([len(document) for document in documents])
    return np.concatenate(documents), np.cumsum(lengths) - lengths


def random_documents(seed=0, count=30):
    """Short documents, of one token and more, with some ids much likelier than others."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(V - 1, 0.5))  # the last id is never seen
    return [rng.choice(V - 1, size=rng.integers(1, 12), p=weights) for _ in range(count)]


class SlowTrigram:
    """Interpolated Kneser-Ney as in Chen and Goodman (1999), one probability at a time."""

    def __init__(self, documents):
        self.three = Counter(
            tuple(map(int, d[i : i + 3])) for d in documents for i in range(len(d) - 2)
        )
        # How many different tokens stand before a pair; one more where it begins a document.
        before = defaultdict(set)
        for a, b, c in self.three:
            before[b, c].add(a)
        for d in documents:
            if len(d) > 1:
                before[int(d[0]), int(d[1])].add("start")
        self.two = Counter({pair: len(tokens) for pair, tokens in before.items()})
        self.one = Counter(c for _, c in self.two)
        self.discount = {
            n: self._discount(counts) for n, counts in ((3, self.three), (2, self.two))
        }

    @staticmethod
    def _discount(counts):
        n1, n2 = (sum(c == n for c in counts.values()) for n in (1, 2))
        return n1 / (n1 + 2 * n2)

    def _interpolate(self, counts, discount, context, token, lower):
        of_context = {gram[-1]: c for gram, c in counts.items() if gram[:-1] == context}
        total = sum(of_context.values())
        if not total:
            return lower
        left = discount * len(of_context)
        return (max(of_context.get(token, 0) - discount, 0) + left * lower) / total

    def probability(self, before, last, token):
        total = sum(self.one.values())
        share = 1 / (1 + total)
        one = (1 - share) * self.one[token] / total + share / V
        two = self._interpolate(self.two, self.discount[2], (last,), token, one)
        if before < 0:
            return two
        return self._interpolate(self.three, self.discount[3], (before, last), token, two)


@pytest.fixture(scope="module")
def documents():
    return random_documents()


def all_contexts():
    before, last, ids = np.meshgrid(np.arange(-1, V), np.arange(V), np.arange(V), indexing="ij")
    return before.ravel(), last.ravel(), ids.ravel()


def test_unigram_by_hand():
    ngrams = NGrams(*flat([np.array([0, 1, 1]), np.array([1])]), 3)
    np.testing.assert_allclose(ngrams.unigram(np.arange(3)), [2 / 7, 4 / 7, 1 / 7])  # add one


def test_trigram_equals_a_slow_dictionary(documents):
    fast = NGrams(*flat(documents), V).trigram(*all_contexts())
    slow = SlowTrigram(documents)
    expected = [
        slow.probability(*map(int, context)) for context in zip(*all_contexts(), strict=True)
    ]
    np.testing.assert_allclose(fast, expected, rtol=1e-12)
    assert len(np.unique(fast.round(12))) > 100


def test_every_distribution_sums_to_one_and_is_positive(documents):
    ngrams = NGrams(*flat(documents), V)
    probabilities = ngrams.trigram(*all_contexts()).reshape(V + 1, V, V)
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-12)
    assert (probabilities > 0).all()  # the id that was never seen, too
    assert ngrams.unigram(np.arange(V)).sum() == pytest.approx(1)


def test_unseen_contexts_back_off(documents):
    ngrams, ids = NGrams(*flat(documents), V), np.arange(V)
    after = lambda before, last: ngrams.trigram(np.full(V, before), np.full(V, last), ids)  # noqa: E731
    unseen = V - 1
    for last in range(V - 1):
        np.testing.assert_allclose(after(unseen, last), after(-1, last))
    np.testing.assert_allclose(after(0, unseen), after(1, unseen))
    assert abs(after(-1, 0) - after(-1, 1)).max() > 0.01  # a seen one matters


def test_documents_do_not_run_into_each_other():
    halves = [np.array([0, 1, 2])] * 9, [np.array([3, 4, 5])] * 9
    ngrams = NGrams(*flat([x for pair in zip(*halves, strict=True) for x in pair]), V)
    found = lambda *context: float(ngrams.trigram(*(np.array([x]) for x in context))[0])  # noqa: E731
    assert found(0, 1, 2) > 0.8
    assert found(1, 2, 3) < 0.3  # 9 times side by side, never in one document
    assert found(1, 2, 3) == found(-1, 2, 3)


def test_order_is_worth_something_on_structured_text():
    """Every token follows from the two before it; alone, all are about as likely."""
    rng = np.random.default_rng(1)

    def document():
        ids = list(rng.integers(0, V, 2))
        while len(ids) < 30:
            ids.append((ids[-2] + 2 * ids[-1]) % V)
        return np.array(ids)

    ngrams, held_out = NGrams(*flat([document() for _ in range(60)]), V), document()
    bits = lambda p: -np.log2(p).mean()  # noqa: E731
    trigram = bits(ngrams.trigram(held_out[:-2], held_out[1:-1], held_out[2:]))
    unigram = bits(ngrams.unigram(held_out[2:]))
    assert trigram < 0.5 < 2 < unigram


def test_large_vocabularies_do_not_overflow():
    """Codes of trigrams are up to V^3, beyond 32 bits for 2,000 pieces."""
    big = 50_000
    ids = np.array([0, big - 2, big - 1, 0, big - 2, big - 1], np.int32)
    ngrams = NGrams(ids, np.array([0]), big)
    found = ngrams.trigram(*(np.array([x], np.int32) for x in (0, big - 2, big - 1)))
    assert found > 0.3
