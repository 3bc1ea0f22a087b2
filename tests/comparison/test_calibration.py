"""Where there is nothing to find, no test that is offered finds it more often than it says."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tiny_runs import run_module

from attn_jax.comparison import calibration
from attn_jax.comparison.calibration import (
    TESTS,
    as_json,
    binomial_interval,
    calibrate,
    items_needed,
    rates,
    table,
)
from attn_jax.comparison.items import Items, bootstrap, bootstrap_interval
from attn_jax.comparison.kept_items import arm_items
from attn_jax.errors import InputError

SPLITS = 200


def runs(rng, seeds, items=60, of_seed=0.05):
    """Runs of one arm: some seeds are better, some items are harder, and the rest is luck."""
    hard = rng.gamma(2, 1, (1, items))
    luck = rng.gamma(1, 0.4, (seeds, items))
    return Items((hard + rng.normal(0, of_seed, (seeds, 1)) + luck)[:, :, None])


def pairs(seeds, of_seed=0.05):
    rng = np.random.default_rng(0)
    for _ in range(SPLITS):
        both = runs(rng, 2 * seeds, of_seed=of_seed)
        yield both.seeds(list(range(seeds))), both.seeds(list(range(seeds, 2 * seeds)))


def by_test(found):
    return {rate.test: rate for rate in found}


@pytest.mark.parametrize("seeds", [2, 5])
def test_offered_tests_call_two_groups_of_one_arm_different_in_5_of_100(seeds):
    found = rates("seeds", pairs(seeds))
    assert len(found) == 4
    assert [rate.test for rate in found if rate.offered and not rate.passes] == []
    assert 0 < by_test(found)["paired t"].called < 20


def test_resplits_of_one_arm():
    found = calibrate(runs(np.random.default_rng(1), 8, items=160), SPLITS, group=4)
    assert {(rate.null, rate.splits) for rate in found} == {("items", 200), ("seeds", 200)}
    assert [rate for rate in found if rate.offered and not rate.passes] == []
    assert all(rate.offered for rate in found if rate.null == "items")
    called = {(rate.null, rate.test): rate.called for rate in found}
    assert called["seeds", "randomisation of items"] > 20  # so the groups do differ
    assert called["items", "paired t"] > 0
    assert "yes" in table(found)
    assert "NO" not in table(found)


@pytest.mark.parametrize(
    ("name", "not_yet", "called"),
    [
        ("paired t", (4, 1), (5, 1)),  # p = 0.071 and 0.029
        ("sign flips", (5, 1), (6, 1)),  # 2 / 32 and 2 / 64
        ("randomisation of items", (1, 4), (1, 6)),  # 0.094, by a sample, and 0.02
    ],
)
def test_a_difference_is_called_up_to_5_percent(name, not_yet, called):
    for (seeds, items), expected in ((not_yet, False), (called, True)):
        gaps = np.linspace(0.25, 3, seeds * items).reshape(seeds, items, 1)
        assert TESTS[name][0](Items(gaps), Items(np.zeros_like(gaps))) == expected


def test_a_test_passes_if_5_percent_is_in_the_interval_of_its_rate_or_above_it():
    (rate, *_) = rates("items", iter([(runs(np.random.default_rng(0), 3),) * 2]))
    assert replace(rate, low=0.05).passes
    assert not replace(rate, low=0.051).passes


def test_a_test_that_cannot_call_anything_is_no_success():
    """Sign flips of five seeds have a p of 2 / 32 at least."""
    for seeds, verdict in ((5, "cannot reach 5 %"), (6, "yes")):
        a, b = (runs(np.random.default_rng(key), seeds) for key in (0, 1))
        found = rates("items", iter([(a, b)]))
        (line,) = [line for line in table(found).splitlines() if "sign flips" in line]
        assert line.endswith(verdict)
        reachable = {row["test"]: row["reachable"] for row in as_json(found)}
        assert reachable == dict.fromkeys(TESTS, True) | {"sign flips": seeds == 6}


def test_every_hand_of_as_few_items_as_may_be_has_an_interval():
    arm = runs(np.random.default_rng(0), 1, items=items_needed(3))
    bootstraps = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            calibration,
            "bootstrap_interval",
            lambda *args: bootstraps.append(bootstrap_interval(*args)) or bootstraps[-1],
        )
        calibrate(arm, 5, group=3)
    assert np.isfinite(bootstraps).all()
    assert len(bootstraps) == 5


def test_few_seeds_are_not_split():
    found = calibrate(runs(np.random.default_rng(1), 3), 2, group=2)
    assert {rate.null for rate in found} == {"items"}


def test_randomisation_of_items_knows_nothing_of_seeds_and_is_not_offered_for_them():
    found = by_test(rates("seeds", pairs(2, of_seed=0.3)))["randomisation of items"]
    assert not found.offered
    assert not found.passes
    assert found.called > SPLITS / 4


def test_the_percentiles_of_few_seeds_would_not_pass():
    """Why the interval is not simply that of the resamples."""
    called, rng = 0, np.random.default_rng(1)
    for a, b in pairs(2, of_seed=0.3):
        gaps = bootstrap(a, b, 300)
        drawn = rng.integers(0, 2, gaps.shape)
        resampled = np.take_along_axis(gaps, drawn, 1).mean(1)
        low, high = np.quantile(resampled, [0.025, 0.975])
        called += not low <= 0 <= high
    assert binomial_interval(called, SPLITS)[0] > 0.05


def test_the_interval_of_a_rate_is_that_of_clopper_and_pearson():
    # 10 of 200: 2.42 to 9.00 %, as tabled.
    assert binomial_interval(10, 200) == pytest.approx((0.0242, 0.0900), abs=1e-4)
    assert binomial_interval(0, 10) == pytest.approx((0, 0.3085), abs=1e-4)
    assert binomial_interval(10, 10)[1] == 1


def test_items_of_an_arm_are_found(four_seeds):
    arm, metric, items = arm_items(four_seeds, "", "", 20)
    assert (arm, metric) == ("decoder", "shared_positions/own_bits")
    assert items.numbers.shape == (4, 60, 1)
    stored = json.loads((four_seeds / "decoder/seed-2/eval/1200.items.json").read_text())
    assert items.numbers[2, :, 0].tolist() == stored["shared_positions"]["own_bits"]


@pytest.mark.parametrize(
    ("arm", "metric", "least", "message"),
    [
        ("decodr", "", 20, "arm = 'decodr': .* did you mean 'decoder'"),
        (
            "",
            "shared_positions/own_bit",
            20,
            "metric = .* did you mean 'shared_positions/own_bits'",
        ),
        ("", "", 61, "60 items, needs 61"),
    ],
)
def test_what_is_not_there_is_refused(four_seeds, arm, metric, least, message):
    with pytest.raises(InputError, match=message):
        arm_items(four_seeds, arm, metric, least)


def test_runs_that_differ_in_more_than_the_seed_are_not_one_arm(masking_runs, edit_json):
    root = masking_runs[0].directory.parent.parent
    arm_items(root, "encoder", "", 20)
    path = root / "encoder/seed-1/config.json"
    config = json.loads(path.read_text())["config"]
    edit_json(path, config=config | {"model": config["model"] | {"d_ff": 64}})
    with pytest.raises(InputError, match=r"seed-0 and .*seed-1 differ in model.d_ff: 512 against"):
        arm_items(root, "encoder", "", 20)
    edit_json(path.with_name("ledger.json"), finished=False)  # which is left out
    assert arm_items(root, "encoder", "", 20)[2].numbers.shape[0] == 1


def test_other_directories_are_refused(four_seeds, tmp_path):
    with pytest.raises(InputError, match="holds no ARM/seed-N"):
        arm_items(tmp_path, "", "", 20)


@pytest.mark.slow
def test_the_command_prints_a_table_and_one_json_object(run_module, four_seeds):
    done = run_module("experiments.calibrate", f"--workdir={four_seeds}", "--splits=5", "--group=2")
    assert done.status == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert lines[0] == "decoder, shared_positions/own_bits: 4 seeds, 60 items each"
    found = json.loads(last)
    assert len(found["rates"]) == len(lines) - 3 == 8
    assert all(rate["splits"] == 5 for rate in found["rates"])
    done = run_module("experiments.calibrate", f"--workdir={four_seeds}", "--arm=none")
    assert done.status == 2
    assert done.stderr.startswith("error: arm = 'none'")
    done = run_module("experiments.calibrate", f"--workdir={four_seeds}", "--group=16")
    assert done.status == 2
    assert "60 items, needs 64, and fewer with a smaller group" in done.stderr
