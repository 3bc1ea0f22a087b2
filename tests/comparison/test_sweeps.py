"""Every arm is tuned on the same grid, by validation, with seeds of its own."""

import math
import re
from pathlib import Path

import pytest

from attn_jax.comparison import figures
from attn_jax.comparison.arms import plan
from attn_jax.comparison.collect import collect, write_comparison
from attn_jax.comparison.grid import best, borders, point_name, points
from attn_jax.comparison.report import write_report
from attn_jax.comparison.stages import Comparison
from attn_jax.comparison.sweeps import collect_sweep, described, is_settled, plan_sweep
from attn_jax.errors import InputError, WorkError
from attn_jax.training.run_directory import note_divergence

RATE = "optimizer.learning_rate"
RATES = (1e-3, 3e-3, 1e-2)
ROOT = Path("root")


@pytest.fixture
def study(masking_study):
    """A function that makes a study of two arms with a grid."""

    def make(**changes):
        arms = {
            "decoder": {},
            "encoder": {"model.architecture": "encoder", "objective.name": "masked_lm"},
        }
        return masking_study(**{"arms": arms, "grid": {RATE: RATES}} | changes)

    return make


@pytest.fixture
def swept(study, finish, tmp_path):
    """A function that plans a sweep and finishes its runs with the losses of each arm."""

    def make(losses, **changes):
        runs = plan_sweep(study(**changes), "", tmp_path)
        left = {arm: list(values) for arm, values in losses.items()}
        for run in runs:
            loss = left[run.arm].pop(0)
            if loss is None:
                run.directory.mkdir(parents=True)
                note_divergence(run.directory, "the loss is not finite")
            else:
                finish(run, loss={"loss": loss})
        assert not any(left.values())
        return runs

    return make


def test_every_arm_is_trained_at_every_point(study):
    grid = {RATE: (1e-3, 1), "model.dropout": (0.0, 0.1)}
    runs = plan_sweep(study(grid=grid, grid_seeds="7,8"), "", ROOT)
    assert len(runs) == len({run.directory for run in runs}) == 2 * 2 * 2 * 2
    first = runs[0]
    assert first.directory == ROOT / f"decoder/{RATE}=0.001,model.dropout=0.0/seed-7"
    assert str(first) == f"decoder/{RATE}=0.001,model.dropout=0.0/seed-7"
    for run in runs:
        c = run.config
        point = {RATE: c.optimizer.learning_rate, "model.dropout": c.model.dropout}
        assert run.point == point
        assert c.train.seed == run.seed
    found = {(run.arm, run.seed, *run.point.values()) for run in runs}
    assert ("encoder", 8, 1.0, 0.1) in found
    assert len(found) == 16
    assert plan_sweep(study(grid={}), "", ROOT) == []


def test_runs_are_picked_by_validation_whatever_the_final_ones_are_scored_on(study):
    made = study()
    made.base.eval.split = "test"
    assert {run.config.eval.split for run in plan_sweep(made, "", ROOT)} == {"validation"}
    assert {run.config.eval.split for run in plan(made, "", ROOT)} == {"test"}


def test_the_best_point_of_every_arm_is_compared_with_the_others(swept, study, tmp_path):
    runs = swept({"decoder": (3.2, 3.1, 3.3), "encoder": (2.9, 2.8, 2.7)})
    sweep = collect_sweep(runs)
    assert sweep["best"] == {"decoder": {RATE: 3e-3}, "encoder": {RATE: 1e-2}}
    assert sweep["borders"] == {"decoder": {}, "encoder": {RATE: "largest"}}
    assert described(sweep) == [
        f"tuned decoder: {RATE} = 0.003",
        f"tuned encoder: {RATE} = 0.01",
        f"The best {RATE} of the encoder, 0.01, is the largest of the grid: better values may lie "
        "beyond.",
    ]
    # They differ in a field that is not declared.
    final = plan(study(), "0", tmp_path, sweep["best"])
    assert [run.config.optimizer.learning_rate for run in final] == [3e-3, 1e-2]
    assert final[1].directory == tmp_path / f"encoder/{RATE}=0.01/seed-0"
    assert not {run.directory for run in final} & {run.directory for run in runs}


def test_scores_are_means_over_seeds_and_one_divergence_is_the_worst(swept):
    losses = {
        "decoder": (3.0, None, 2.0, 3.0, 1.0, 3.5),  # seed by seed
        "encoder": (3.0, 2.0, math.nan, 3.0, 2.5, 1.0),
    }
    sweep = collect_sweep(swept(losses, grid_seeds="7,8"))
    scores = {arm: [found["score"] for found in own] for arm, own in sweep["arms"].items()}
    assert scores == {"decoder": [3.0, None, 2.75], "encoder": [3.0, 2.25, None]}
    assert sweep["arms"]["decoder"][1]["scores"] == [None, 1.0]
    assert sweep["best"] == {"decoder": {RATE: 1e-2}, "encoder": {RATE: 3e-3}}


def test_the_metric_says_what_is_better(study, finish, tmp_path):
    made = study(grid_metric="shared_positions/own_bits")
    made.base.eval.evaluators = "loss,shared_positions"
    runs = plan_sweep(made, "", tmp_path)
    for run in runs:
        rate = run.point[RATE]
        finish(run, loss={"loss": rate}, shared_positions={"own_bits": 5 - rate})
    assert set(map(str, collect_sweep(runs)["best"].values())) == {str({RATE: 1e-2})}


def test_best_of_ties_of_nothing_and_in_both_directions():
    assert best([2.0, 1.0, None, 1.0], less_is_better=True) == 1
    assert best([2.0, 1.0, None, 2.0], less_is_better=False) == 0
    assert best([None, None], less_is_better=True) is None


def test_points_names_and_borders():
    grid = {"a": (1, 2, 3), "b": ("x/y", "z"), "c": (True, False)}
    assert len(points(grid)) == 12
    assert points(grid)[1] == {"a": 1, "b": "x/y", "c": False}
    names = {point_name(point) for point in points(grid)}
    assert len(names) == 12
    assert "a=1,b=x%2Fy,c=False" in names
    assert borders(grid, {"a": 1, "b": "z", "c": True}) == {"a": "smallest"}
    assert borders(grid, {"a": 3, "b": "z", "c": True}) == {"a": "largest"}
    assert borders(grid, {"a": 2, "b": "z", "c": True}) == {}


def test_an_arm_that_diverges_everywhere_ends_the_sweep(swept):
    runs = swept({"decoder": (3.0, 2.0, 1.0), "encoder": (None, None, None)})
    with pytest.raises(WorkError, match=r"'encoder': the loss is not finite at any point"):
        collect_sweep(runs)


def test_unfinished_and_unequal_runs_are_refused(swept, edit_json):
    runs = swept({"decoder": (3.0, 2.0, 1.0), "encoder": (3.0, None, 1.0)})
    assert all(map(is_settled, runs))
    edit_json(runs[-1].directory / "ledger.json", data_fingerprint="other")
    with pytest.raises(InputError, match="data_fingerprint: 'd4e5f6' against 'other'"):
        collect_sweep(runs)
    (runs[-1].directory / "ledger.json").unlink()
    assert not is_settled(runs[-1])
    with pytest.raises(InputError, match=r"encoder.*0\.01/seed-100: .* is not finished"):
        collect_sweep(runs)


BAD = {
    "unknown": ({"optimizer.learning_rat": RATES}, "did you mean 'optimizer.learning_rate'"),
    "no name": ({3: RATES}, "unknown config field 3"),
    "seeds": ({"seeds": ("0", "1")}, "unknown config field 'seeds'"),
    "seed": ({"train.seed": (0, 1)}, "train.seed: expected a field of model, objective, optim"),
    "data": ({"data.length": (8, 16)}, "data.length: expected a field of model"),
    "type": ({"model.dropout": (0.1, "0.2")}, "model.dropout = '0.2': expected float"),
    "range": ({"model.dropout": (0.1, 2.0)}, "arm 'decoder': model.dropout = 2.0"),
    "one value": ({RATE: (1e-3,)}, "expected a tuple of two values or more"),
    "no tuple": ({RATE: 1e-3}, "= 0.001: expected a tuple"),
    "text": ({"model.norm": "rms"}, "= 'rms': expected a tuple"),
    "twice": ({RATE: (1, 1.0)}, "a value is given twice"),
    "declared": ({"model.architecture": ("encoder", "decoder")}, "is set by arm 'encoder'"),
    "a task": ({"objective.mask_rate": (0.1, 0.3)}, "'loss/loss' cannot compare"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_grids_are_refused_in_one_line(study, case):
    grid, message = BAD[case]
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        plan_sweep(study(grid=grid), "", ROOT)
    assert str(caught.value).startswith("study 'masking', ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid_metric": "loss/los"}, "did you mean 'loss/loss'"),
        (
            {"arms": {"mixed": {"objective.name": "mixture"}}},
            "grid_metric = 'loss/loss': arm 'mixed' has objective.name = 'mixture'",
        ),
        ({"grid_metric": "translation/bleu"}, "needs 'translation' in eval.evaluators"),
        ({"grid_seeds": "1"}, "grid_seeds: 1 is also one of seeds"),
        ({"grid_seeds": "x"}, "seeds = 'x'"),
        ({"declared": ("model.architecture", "objective.name", RATE)}, "is declared as a diff"),
    ],
)
def test_bad_sweeps_are_refused_in_one_line(study, changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        plan_sweep(study(**changes), "", ROOT)


def test_seeds_of_the_command_line_are_kept_apart_too(study):
    assert plan_sweep(study(), "7", ROOT)
    with pytest.raises(InputError, match="grid_seeds: 100 is also"):
        plan_sweep(study(), "7,100", ROOT)


def test_a_comparison_goes_from_the_sweep_to_the_final_runs(study, finish, tmp_path):
    """Beside a study without a grid, whose runs need not wait."""
    plain = study(grid={})
    comparison = Comparison({"tuned": study(seeds="0"), "plain": plain}, "", tmp_path)
    rates = {"decoder": 3e-3, "encoder": 1e-3}

    def finish_all():
        runs = comparison.open_runs()
        for run in runs:
            far = abs(math.log(run.config.optimizer.learning_rate / rates[run.arm]))
            finish(run, loss={"loss": 3 + far})
        return [str(run.directory.relative_to(tmp_path)) for run in runs]

    first = finish_all()
    assert f"tuned/decoder/{RATE}=0.01/seed-100" in first
    assert "plain/decoder/seed-1" in first
    assert len(first) == 6 + 4
    assert finish_all() == [
        f"tuned/decoder/{RATE}=0.003/seed-0",
        f"tuned/encoder/{RATE}=0.001/seed-0",
    ]
    assert comparison.open_runs() == []
    comparison.train(workers=1)  # nothing
    collected = comparison.collect()
    assert collected["plain"]["sweep"] is None
    assert collected["tuned"]["sweep"]["best"]["encoder"] == {RATE: 1e-3}
    write_comparison(tmp_path / "comparison.json", collected)


@pytest.fixture
def rendered(swept, study, finish, tmp_path):
    """A function from the losses of a sweep to the report of its study."""

    def render(losses, **changes):
        sweep = collect_sweep(swept(losses, **changes))
        runs = plan(study(**changes), "0", tmp_path, sweep["best"])
        for run in runs:
            finish(run)
        found = collect(runs) | {"sweep": sweep}
        found["examples"]["attention"] = {}  # slow to draw
        write_report(tmp_path / "report.html", {"masking": found})
        return (tmp_path / "report.html").read_text(encoding="utf-8")

    return render


def test_the_report_shows_choice_sensitivity_and_warning(rendered):
    html = rendered({"decoder": (3.2, 3.1, None), "encoder": (2.9, 2.8, 2.7)})
    section = html[html.index("<h3>Tuning</h3>") : html.index("<h3>Declared differences")]
    assert "with seed 100, no seed of the other results" in section
    assert "judged on the validation split (loss, nats): lower is better" in section
    assert f"The best {RATE} of the encoder, 0.01, is the largest of the grid" in section
    assert section.count("<svg") == 1
    rows = re.findall(r"<tr><td class=\"n\">([\d.]+)</td>(.*?)</tr>", section, re.DOTALL)
    cells = {rate: re.findall(r'<td class="(.*?)">(.*?)</td>', row) for rate, row in rows}
    assert cells == {
        "0.001": [("n", "3.200"), ("n", "2.900")],
        "0.003": [("n best", "3.100"), ("n", "2.800")],
        "0.01": [("n", "not finite"), ("n best", "2.700")],
    }


def test_a_figure_for_every_field_at_the_best_of_the_others(rendered, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        figures, "sensitivity", lambda lines, palette, name, label: drawn.setdefault(name, lines)
    )
    grid = {RATE: (1e-3, 1e-2), "model.norm": ("rms", "layer")}
    html = rendered(
        {"decoder": (4.0, 3.0, 2.0, None), "encoder": (None, None, 1.0, 2.0)}, grid=grid
    )
    assert html.count("Sensitivity to") == 2
    assert "at the best values of the other fields" in html
    assert drawn == {
        RATE: {"decoder": [(1e-3, 3.0), (1e-2, 2.0)], "encoder": [(1e-3, None), (1e-2, 1.0)]},
        "model.norm": {
            "decoder": [("rms", 2.0), ("layer", 3.0)],
            "encoder": [("rms", 1.0), ("layer", 2.0)],
        },
    }


def test_a_study_without_a_grid_has_no_such_section(collected, tmp_path):
    study = collected["masking"]
    study = study | {
        "sweep": None,
        "examples": study["examples"] | {"attention": {}},
    }  # slow to draw
    write_report(tmp_path / "report.html", {"masking": study})
    assert "Tuning" not in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("field", "values", "shares"),
    [
        (RATE, (1e-3, 2e-3, 4e-3), [0, 0.5, 1]),
        ("model.d_ff", (10, 100, 1000), [0, 0.5, 1]),
        ("model.dropout", (0.1, 0.2, 0.4), [0, 1 / 3, 1]),
        ("optimizer.weight_decay", (0.0, 1.0, 10.0), [0, 0.1, 1]),
        ("model.norm", ("rms", "layer"), [0, 1]),
        ("model.bias", (True, False), [0, 1]),
    ],
)
def test_values_lie_on_an_axis_that_suits_them(field, values, shares):
    lines = {"a$": [(v, 2.0 + i if i != 1 else None) for i, v in enumerate(values)]}
    svg = figures.sensitivity(lines, figures.colors(["a$"]), field, "loss")
    at = [float(re.search(rf'x="([\d.]+)"[^>]*>{value}</text>', svg)[1]) for value in values]
    found = [(x - at[0]) / (at[-1] - at[0]) for x in at]
    assert found == pytest.approx(shares, abs=1e-3)
