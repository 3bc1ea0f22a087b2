"""What numbers over seeds allow to claim, in words."""

import numpy as np
import pytest
from scipy import stats

from attn_jax.comparison.items import Items
from attn_jax.comparison.metrics import metric_of
from attn_jax.comparison.statistics import power_of, seeds_for_parity
from attn_jax.comparison.verdicts import compare_arms

BITS, BLEU = "shared_positions/own_bits", "translation/bleu"
MARGINS = {BITS: 0.02, BLEU: 0.5}
NOISE = [0.01, -0.02, 0.015, -0.01, 0.005]


def compare(margins=MARGINS, items=None, **arms):
    return compare_arms(arms, margins, items or {arm: {} for arm in arms})


def shifted(by, scale=1.0):
    return [4.0 + by + scale * x for x in NOISE]


def test_fewer_bits_beat_more():
    base = [4.0 + 0.1 * i for i in range(5)]
    better = [x - 0.12 - n for x, n in zip(base, NOISE, strict=True)]
    (row,) = compare(a={BITS: base}, b={BITS: better})
    gaps = np.subtract(base, better)
    low, high = stats.t.interval(0.95, 4, gaps.mean(), stats.sem(gaps))
    assert row["ahead"] == "b"
    assert row["verdict"] == (
        f"b beats a by 0.120 [{low:.3f}, {high:.3f}] bits, 5 seeds, Holm p < 0.001"
    )
    (turned,) = compare(b={BITS: better}, a={BITS: base})
    assert turned["verdict"] == row["verdict"]


def test_more_bleu_beats_less():
    (row,) = compare(a={BLEU: shifted(3)}, b={BLEU: [4.0] * 5})
    assert row["ahead"] == "a"
    assert row["verdict"].startswith("a beats b by 3.00 [2.98, 3.02] BLEU, 5 seeds, Holm p < 0.001")


def test_p_values_are_corrected_for_all_comparisons_of_the_study():
    two = {BITS: shifted(0.03), BLEU: shifted(0.03)}, {BITS: [4.0] * 5, BLEU: [4.0] * 5}
    (alone,) = compare({BITS: 0}, a={BITS: shifted(0.03)}, b={BITS: [4.0] * 5})
    both = compare({BITS: 0, BLEU: 0}, a=two[0], b=two[1])
    assert alone["holm"] == alone["p"] == pytest.approx(both[0]["p"])
    assert both[0]["holm"] == pytest.approx(2 * alone["p"])


def test_on_par_within_the_margin():
    (row,) = compare(a={BLEU: shifted(0, 5)}, b={BLEU: [4.0] * 5})
    assert row["outcome"] == "on par"
    assert row["verdict"].startswith("a and b are on par within 0.5 BLEU: difference 0.00 [−0.09")
    p = max(
        stats.ttest_1samp(shifted(-4, 5), -0.5, alternative="greater").pvalue,
        stats.ttest_1samp(shifted(-4, 5), 0.5, alternative="less").pvalue,
    )
    assert row["equivalence_p"] == pytest.approx(p)


def test_without_a_margin_nothing_is_on_par():
    (row,) = compare({BLEU: 0}, a={BLEU: shifted(0.001, 5)}, b={BLEU: [4.0] * 5})
    assert row["outcome"] == "undecided"
    assert row["equivalence_p"] is None
    assert row["verdict"].startswith("a against b is undecided: more than 1,000 seeds needed (")


def test_undecided_says_how_many_seeds_are_missing():
    (row,) = compare({BLEU: 0}, a={BLEU: shifted(0.3, 40)}, b={BLEU: [4.0] * 5})
    assert row["outcome"] == "undecided"
    effect, more = row["mean"] / row["sd"], row["more_seeds"]
    assert power_of(effect, 5 + more) >= 0.8 > power_of(effect, 5 + more - 1)
    start = f"a against b is undecided: {more} more seeds needed (difference 0.30 ["
    assert row["verdict"].startswith(start)
    assert row["verdict"].endswith(f" BLEU, 5 seeds, Holm p = {row['holm']:.2f})")


def test_more_comparisons_need_more_seeds():
    """Each must pass the strictest step of Holm."""
    found = {"a": shifted(0.3, 40), "b": [4.0] * 5}
    (alone,) = compare({BLEU: 0}, **{arm: {BLEU: x} for arm, x in found.items()})
    both = compare({BLEU: 0, BITS: 0}, **{arm: {BLEU: x, BITS: x} for arm, x in found.items()})
    assert [row["more_seeds"] > alone["more_seeds"] for row in both] == [True, True]


def test_parity_may_be_nearer_than_a_difference():
    (row,) = compare(a={BLEU: shifted(0.05, 40)}, b={BLEU: [4.0] * 5})
    effect, margin = row["mean"] / row["sd"], 0.5 / row["sd"]
    assert 5 + row["more_seeds"] == seeds_for_parity(effect, margin)
    assert row["more_seeds"] < 20


def test_parity_is_tested_against_the_parities_that_are_tested():
    """A difference without a margin is one test more of the other kind."""
    found = {"a": shifted(0.05, 40), "b": [4.0] * 5}
    (alone,) = compare(**{arm: {BLEU: x} for arm, x in found.items()})
    rows = compare({BLEU: 0.5, BITS: 0}, **{arm: {BLEU: x, BITS: x} for arm, x in found.items()})
    assert [row["more_seeds"] for row in rows if row["metric"] == BLEU] == [alone["more_seeds"]]


def test_a_metric_of_two_entries_is_compared_once_by_its_own():
    margins = {"cloze/*/accuracy": 0.01, "cloze/causal/accuracy": 0.05}
    values = {f"cloze/{name}/accuracy": shifted(0.1) for name in ("causal", "prefix")}
    rows = compare(margins, a=values, b={name: [4.0] * 5 for name in values})
    assert {row["metric"]: row["margin"] for row in rows} == {
        "cloze/prefix/accuracy": 0.01,
        "cloze/causal/accuracy": 0.05,
    }
    assert len(rows) == 2


def test_one_item_has_no_interval_over_text():
    items = {arm: {BITS: Items(np.ones((5, 1, 1)))} for arm in "ab"}
    scores = {"a": {BITS: shifted(0.1)}, "b": {BITS: [4.0] * 5}}
    (row,) = compare_arms(scores, {BITS: 0}, items)
    assert row["text"] is None


def test_a_difference_too_small_to_matter_is_said_to_be():
    (row,) = compare(a={BLEU: shifted(0.1)}, b={BLEU: [4.0] * 5})
    assert row["verdict"].endswith("; less than the 0.5 BLEU that matter")


def test_one_seed_and_equal_differences_earn_no_claim():
    (row,) = compare(a={BITS: [3.0]}, b={BITS: [9.0]})
    assert row["verdict"] == "a against b: one seed, no claim"
    (row,) = compare(a={BITS: [3.0, 4.0]}, b={BITS: [9.0, 10.0]})
    assert row["verdict"] == "a against b: no claim, all seeds differ by the same −6.000 bits"
    assert (row["holm"], row["ahead"], row["more_seeds"]) == (None, None, None)


def test_a_claim_that_the_choice_of_text_could_undo_says_so():
    rng = np.random.default_rng(0)
    hard = rng.normal(0, 1, 40)
    numbers = {
        "a": np.array([hard - hard.mean() + x for x in shifted(0.1)])[:, :, None],
        "b": np.full((5, 40, 1), 4.0),
    }
    items = {arm: {BITS: Items(own)} for arm, own in numbers.items()}
    (row,) = compare(items=items, a={BITS: shifted(0.1)}, b={BITS: [4.0] * 5})
    assert row["ahead"] == "b"
    assert row["text"]["low"] < 0 < row["text"]["high"]
    low, high = -row["text"]["high"], -row["text"]["low"]
    said = row["verdict"].replace("−", "-")
    assert f"other text might not show it (over seeds and text [{-high:.3f}, {-low:.3f}])" in said
    items["a"][BITS] = Items(np.array(shifted(0.1))[:, None, None].repeat(40, 1))
    (row,) = compare(items=items, a={BITS: shifted(0.1)}, b={BITS: [4.0] * 5})
    assert "other text" not in row["verdict"]


def test_every_two_arms_and_only_what_both_have():
    arms = {"a": {BITS: NOISE, BLEU: NOISE}, "b": {BITS: NOISE}, "c": {BITS: NOISE}}
    rows = compare(**arms)
    assert [(row["metric"], row["a"], row["b"]) for row in rows] == [
        (BITS, "a", "b"),
        (BITS, "a", "c"),
        (BITS, "b", "c"),
    ]
    assert compare({}, **arms) == []


def test_patterns_name_metrics():
    name = "minimal_pairs/whole_word/accuracy"
    assert metric_of(name).words == "minimal pairs, whole word"
    (row,) = compare({"minimal_pairs/*/accuracy": 0.01}, a={name: NOISE}, b={name: shifted(0)})
    assert row["metric"] == name


def test_of_two_parities_each_needs_more_seeds():
    found = {"a": shifted(0.05, 40), "b": [4.0] * 5}
    (alone,) = compare(**{arm: {BLEU: x} for arm, x in found.items()})
    both = compare({BLEU: 0.5, BITS: 0.5}, **{arm: {BLEU: x, BITS: x} for arm, x in found.items()})
    assert [row["more_seeds"] > alone["more_seeds"] for row in both] == [True, True]


def test_a_metric_that_two_patterns_cover_is_compared_once():
    name = "minimal_pairs/pll/accuracy"
    margins = {"minimal_pairs/*/accuracy": 0.01, "minimal_pairs/p*/accuracy": 0.05}
    (row,) = compare(margins, a={name: shifted(0.05, 40)}, b={name: [4.0] * 5})
    assert (row["margin"], row["holm"]) == (0.01, row["p"])
