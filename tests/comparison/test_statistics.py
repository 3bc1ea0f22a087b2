import pytest

from attn_jax.comparison.statistics import paired_difference, summarize, verdict


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


def test_one_value_has_no_interval():
    assert summarize([7.0]) == {"n": 1, "mean": 7.0, "sd": None, "low": None, "high": None}


def test_pairing_removes_what_the_seeds_share():
    a, b = [10.0, 20.0, 30.0], [9.0, 19.1, 28.9]
    assert verdict(paired_difference(a, b)) == "higher"
    assert verdict(paired_difference(b, a)) == "lower"
    shuffled = [b[1], b[2], b[0]]
    assert verdict(paired_difference(a, shuffled)) == "not told apart"


def test_one_seed_earns_no_claim():
    assert verdict(paired_difference([1.0], [100.0])) == "one seed, no claim"


def test_unpaired_values_are_refused():
    with pytest.raises(ValueError, match="zip"):
        paired_difference([1.0, 2.0], [1.0])
