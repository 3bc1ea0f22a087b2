"""Textbook cases, scipy's tests as oracles, and simulations."""

import numpy as np
import pytest
from scipy import stats

from attn_jax.comparison.statistics import (
    detectable_difference,
    effect_size,
    equivalence,
    holm,
    paired,
    paired_t,
    power_of,
    seeds_for_parity,
    seeds_needed,
    sign_flip,
    summarize,
)

# Student (1908), after Cushny and Peebles: additional hours of sleep by two drugs, ten patients.
DEXTRO = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
LAEVO = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
# Darwin's maize (Fisher 1935): crossed minus self-fertilized, eighths of an inch, 15 pairs.
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_interval_against_a_case_by_hand():
    # sd = sqrt(5 / 3); t(0.975, 3) = 3.182446; reach = 3.182446 * 1.290994 / 2 = 2.054260
    found = summarize([1, 2, 3, 4])
    assert found["n"] == 4
    assert found["mean"] == 2.5
    assert found["sd"] == pytest.approx(1.290994, abs=1e-6)
    assert found["low"] == pytest.approx(0.445740, abs=1e-6)
    assert found["high"] == pytest.approx(4.554260, abs=1e-6)


def test_two_seeds_have_a_wide_interval():
    # t(0.975, 1) = 12.7062; reach = 12.7062 * sqrt(2) / sqrt(2)
    assert summarize([1, 3])["high"] == pytest.approx(2 + 12.7062, abs=1e-4)


def test_one_value_has_no_interval_and_no_test():
    assert summarize([7.0]) == {"n": 1, "mean": 7.0, "sd": None, "low": None, "high": None}
    assert paired_t([7.0]) is None
    assert equivalence([0.0], 1.0) is None
    assert effect_size([7.0]) is None
    assert detectable_difference(1.0, 1) is None


def test_unpaired_values_are_refused():
    with pytest.raises(ValueError, match="zip"):
        paired([1.0, 2.0], [1.0])


def test_paired_t_of_the_sleep_data():
    differences = paired(LAEVO, DEXTRO)
    assert np.mean(differences) == pytest.approx(1.58)
    assert paired_t(differences) == pytest.approx(0.002833, abs=1e-6)  # as published
    assert paired_t(differences) == pytest.approx(stats.ttest_rel(LAEVO, DEXTRO).pvalue)
    assert paired_t([-x for x in differences]) == pytest.approx(paired_t(differences))


def test_equal_differences_show_no_spread():
    assert paired_t([0.5, 0.5]) is None
    assert paired_t([0.1 + 0.2, 0.3, 0.3]) is None  # equal up to rounding
    assert equivalence([0.0, 0.0], 1.0) is None
    assert effect_size([0.5, 0.5, 0.5]) is None


def test_sign_flip_of_darwins_maize():
    # Fisher counted 863 of 32,768 patterns on either side: p = 0.0527.
    exact = stats.permutation_test(
        (DARWIN,), np.sum, permutation_type="samples", n_resamples=np.inf
    )
    assert exact.pvalue == pytest.approx(2 * 863 / 2**15, rel=1e-3)
    assert sign_flip(DARWIN, trials=20_000) == pytest.approx(exact.pvalue, abs=0.006)


def test_exact_sign_flip_equals_that_of_scipy():
    values = paired(LAEVO, DEXTRO)
    exact = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip(values) == pytest.approx(exact.pvalue)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_sign_flip_of_few_seeds_is_never_small(n):
    assert sign_flip([10.0 + i for i in range(n)]) == 2 / 2**n > 0.05


def test_equivalence_is_two_one_sided_tests():
    values = [0.11, -0.2, 0.05, 0.3, -0.02]
    below = stats.ttest_1samp(values, -0.4, alternative="greater").pvalue
    above = stats.ttest_1samp(values, 0.4, alternative="less").pvalue
    assert equivalence(values, 0.4) == pytest.approx(max(below, above))
    assert equivalence(values, 0.4) < 0.05 < equivalence(values, 0.1)


def test_equivalence_is_claimed_wrongly_in_five_of_a_hundred():
    """The difference is just as large as the margin: a claim is false."""
    rng = np.random.default_rng(0)
    false = sum(equivalence(rng.normal(0.5, 0.2, 4).tolist(), 0.5) <= 0.05 for _ in range(2000))
    assert stats.binomtest(false, 2000, 0.05).pvalue > 0.01


def test_holm_by_hand():
    # Ordered 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1, never falling.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, None, 0.9]) == [1.0, None, 1.0]
    assert holm([]) == []


def test_effect_size_of_the_sleep_data():
    found = effect_size(paired(LAEVO, DEXTRO))
    assert found["d"] == pytest.approx(1.58 / 1.229995, abs=1e-5)
    assert found["g"] == pytest.approx(found["d"] * (1 - 3 / (4 * 9 - 1)), rel=2e-3)
    t = found["d"] * 10**0.5
    assert stats.nct.cdf(t, 9, found["low"] * 10**0.5) == pytest.approx(0.975, abs=1e-4)
    assert stats.nct.cdf(t, 9, found["high"] * 10**0.5) == pytest.approx(0.025, abs=1e-4)


@pytest.mark.parametrize(
    ("effect", "n", "sides"), [(1.0, 5, 2), (2.0, 3, 2), (0.6, 8, 1), (0.0, 4, 2)]
)
def test_power_agrees_with_a_simulation(effect, n, sides):
    draws = np.random.default_rng(0).normal(effect, 1, (20_000, n))
    alternative = "two-sided" if sides == 2 else "greater"
    found = stats.ttest_1samp(draws, 0, axis=1, alternative=alternative).pvalue <= 0.05
    assert power_of(effect, n, sides=sides) == pytest.approx(found.mean(), abs=0.01)


def test_seeds_needed_are_those_of_the_tables():
    # Cohen (1988), paired two-sided tests at 0.05 with a power of 0.8.
    assert [seeds_needed(effect) for effect in (0.5, 0.8, 1.0)] == [34, 15, 10]
    assert seeds_needed(0.01) is None
    assert seeds_needed(1e6) == 2


@pytest.mark.parametrize(("effect", "margin"), [(0.0, 1.0), (0.0, 0.8), (0.3, 1.0)])
def test_seeds_for_parity_are_enough_and_hardly_more_than_enough(effect, margin):
    """By simulation: both one-sided tests succeed in 80 of 100 studies."""
    n = seeds_for_parity(effect, margin)
    rng = np.random.default_rng(0)
    shares = []
    for seeds in (n, n - 2):
        studies = rng.normal(effect, 1, (4000, seeds)).tolist()
        shares.append(np.mean([equivalence(study, margin) <= 0.05 for study in studies]))
    assert shares[0] > 0.78
    assert shares[1] < 0.8
    assert seeds_for_parity(0.999, 1.0) is None


@pytest.mark.parametrize("n", [2, 3, 10])
def test_the_detectable_difference_has_the_power_asked_for(n):
    least = detectable_difference(0.5, n)
    assert power_of(least / 0.5, n) == pytest.approx(0.8, abs=1e-4)


def test_an_effect_beyond_all_noise_takes_no_minutes():
    found = effect_size([1, 1.000001, 0.999999])
    assert found["d"] == pytest.approx(1e6, rel=1e-3)
    assert (found["low"], found["high"]) == (None, None)
