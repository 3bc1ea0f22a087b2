"""Tests over items against loops, scipy and sacrebleu."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from scipy import stats

from attn_jax.comparison.items import Items, bleu, bootstrap, bootstrap_interval, randomisation

HEAD = [
    "the",
    "old",
    "man",
    "and",
    "the",
    "sea",
    "were",
    "never",
    "far",
    "from",
    "home",
    "again",
    "today",
]


def mean_items(rng, seeds, items, shift=0.0):
    return Items(rng.normal(shift, 1, (seeds, items, 1)))


def sentences(rng, count, wrong):
    """Sentences of HEAD's words, some of them replaced by others."""
    chosen = [rng.permutation(HEAD)[: rng.integers(1, 12)] for _ in range(count)]
    return [
        " ".join("x" if rng.random() < wrong else str(word) for word in words) for words in chosen
    ]


def bleu_items(hypotheses, references):
    scorer = BLEU(effective_order=True)
    found = [scorer.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True)]
    return np.array([[x.sys_len, x.ref_len, *x.counts, *x.totals] for x in found], float)


@pytest.fixture(scope="module")
def texts():
    """References, and what a good and a bad system make of them."""
    rng = np.random.default_rng(0)
    references = sentences(rng, 80, 0)
    good, bad = (
        [" ".join(w if rng.random() > wrong else "x" for w in r.split()) for r in references]
        for wrong in (0.1, 0.16)
    )
    return references, good, bad


def test_bleu_of_sums_is_that_of_sacrebleu(texts):
    references, good, bad = texts
    for hypotheses in (good, bad):
        sums = bleu_items(hypotheses, references).sum(0)
        assert bleu(sums) == pytest.approx(BLEU().corpus_score(hypotheses, [references]).score)


@pytest.mark.parametrize(
    "counts",
    [
        [10, 12, 7, 3, 1, 0, 10, 9, 8, 7],  # one order without a match
        [10, 12, 7, 0, 0, 0, 10, 9, 8, 7],
        [10, 12, 0, 0, 0, 0, 10, 9, 8, 7],  # no match at all
        [3, 12, 3, 2, 1, 0, 3, 2, 1, 0],  # no 4-gram at all
        [0, 12, 0, 0, 0, 0, 0, 0, 0, 0],
        [14, 12, 9, 5, 4, 2, 14, 13, 12, 11],
    ],
)
def test_bleu_of_odd_counts_is_that_of_sacrebleu(counts):
    length, reference, matching, total = counts[0], counts[1], counts[2:6], counts[6:]
    expected = BLEU.compute_bleu(matching, total, length, reference, smooth_method="exp").score
    assert bleu(np.array([counts], float))[0] == pytest.approx(expected)


def test_randomisation_agrees_with_sacrebleu(texts):
    references, good, bad = texts
    a, b = (Items(bleu_items(h, references)[None]) for h in (good, bad))
    systems = [("good", good), ("bad", bad)]
    metrics = {"BLEU": BLEU(references=[references])}
    _, scores = PairedTest(systems, metrics, None, test_type="ar", n_samples=2000)()
    assert 0.001 < scores["BLEU"][1].p_value < 0.5
    assert randomisation(a, b, 2000) == pytest.approx(scores["BLEU"][1].p_value, abs=0.03)
    assert randomisation(a, b, 2000) == randomisation(b, a, 2000)


def test_randomisation_of_few_items_is_the_exact_permutation_test():
    rng = np.random.default_rng(1)
    a, b = mean_items(rng, 1, 10, 0.5), mean_items(rng, 1, 10)
    gaps = (a.numbers - b.numbers)[0, :, 0]
    exact = stats.permutation_test((gaps,), np.mean, permutation_type="samples").pvalue
    assert randomisation(a, b, 20_000) == pytest.approx(exact, abs=0.015)


def test_randomisation_swaps_an_item_in_all_seeds():
    rng = np.random.default_rng(2)
    one_a, one_b = mean_items(rng, 1, 30, 0.3), mean_items(rng, 1, 30)
    three_a, three_b = (Items(np.repeat(x.numbers, 3, axis=0)) for x in (one_a, one_b))
    assert randomisation(three_a, three_b, 500) == randomisation(one_a, one_b, 500)


def test_bootstrap_agrees_with_a_loop():
    """Which draws the seeds, too."""
    rng = np.random.default_rng(3)
    a, b = mean_items(rng, 3, 12, 0.4), mean_items(rng, 3, 12)
    gaps, found = (a.numbers - b.numbers)[:, :, 0], []
    for _ in range(6000):
        seeds = rng.integers(0, 3, 3)
        items = rng.integers(0, 12, 12)
        found.append(np.mean([gaps[s, i] for s in seeds for i in items]))
    ours = bootstrap(a, b, 6000)
    assert ours.mean() == pytest.approx(np.mean(found), abs=0.02)
    variance = ours.mean(1).var() + ours.var(axis=1).mean() / 3
    assert variance**0.5 == pytest.approx(np.std(found), rel=0.05)
    assert ours.mean(1).std() == pytest.approx(gaps.mean(0).std() / 12**0.5, rel=0.05)


def test_percentiles_of_one_seed_are_those_of_scipy():
    rng = np.random.default_rng(4)
    a, b = mean_items(rng, 1, 50, 0.4), mean_items(rng, 1, 50)
    gaps = (a.numbers - b.numbers)[0, :, 0]
    expected = stats.bootstrap((gaps,), np.mean, method="percentile", rng=0).confidence_interval
    found = bootstrap_interval(a, b, 9999)
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_without_items_that_differ_the_interval_is_students():
    gaps = np.array([0.1, 0.4, 0.25])
    a = Items(np.repeat(gaps[:, None, None], 20, axis=1))
    b = Items(np.zeros_like(a.numbers))
    found = bootstrap_interval(a, b, 20_000)
    expected = stats.t.interval(0.95, 2, gaps.mean(), stats.sem(gaps))
    np.testing.assert_allclose(found, expected, rtol=0.02)


def test_without_seeds_that_differ_the_interval_is_that_of_the_items():
    """Two seeds are few, but it is not they that make the error."""
    rng = np.random.default_rng(6)
    gaps = rng.normal(0.3, 1, 200)
    a = Items(np.repeat(gaps[None, :, None], 2, axis=0))
    found = bootstrap_interval(a, Items(np.zeros_like(a.numbers)), 20_000)
    expected = stats.t.interval(0.95, 199, gaps.mean(), stats.sem(gaps))
    np.testing.assert_allclose(found, expected, rtol=0.05)


def test_a_lucky_choice_of_text_does_not_average_out_over_seeds():
    """All seeds share the items' part of the difference, so more seeds do not narrow it."""
    rng = np.random.default_rng(5)
    shared = rng.normal(0, 1, (1, 40, 1))
    b = Items(np.zeros((8, 40, 1)))
    spread = bootstrap(Items(np.repeat(shared, 8, axis=0)), b).mean(1).std()
    assert spread == pytest.approx(shared.std() / 40**0.5, rel=0.06)


def test_bootstrap_of_bleu_agrees_with_a_loop_over_seeds():
    """Ten counts an item, three seeds: each seed's counts stay its own."""
    rng = np.random.default_rng(7)
    references = sentences(rng, 6, 0)
    a, b = (
        Items(np.array([bleu_items(sentences(rng, 6, wrong), references) for _ in range(3)]))
        for wrong in (0.1, 0.5)
    )
    assert a.numbers.shape == (3, 6, 10)
    drawn = np.random.default_rng(0).multinomial(6, np.full(6, 1 / 6), 4)
    expected = [
        [
            float(
                np.diff(
                    [
                        bleu(sum(w * x for w, x in zip(weights, of_seed, strict=True)))
                        for of_seed in pair
                    ]
                )[0]
            )
            for pair in zip(b.numbers, a.numbers, strict=True)
        ]
        for weights in drawn
    ]
    np.testing.assert_allclose(bootstrap(a, b, 4), expected, rtol=1e-6)
    assert np.std(expected) > 0.1
