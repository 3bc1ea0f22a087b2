"""Arms differ in what is declared and in nothing else, before and after training."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from attn_jax.comparison.arms import Study, check_runs, is_finished, only, plan, studies
from attn_jax.config import Config
from attn_jax.errors import InputError


def test_plan_pairs_every_arm_with_every_seed(masking_study):
    runs = plan(masking_study(), "0,7", Path("root"))
    assert [str(run) for run in runs] == [
        "decoder/seed-0",
        "encoder/seed-0",
        "prefix/seed-0",
        "decoder/seed-7",
        "encoder/seed-7",
        "prefix/seed-7",
    ]
    assert runs[4].directory == Path("root/encoder/seed-7")
    assert runs[4].config.train.seed == 7
    assert runs[4].config.objective.name == "masked_lm"


def test_empty_seeds_are_the_studys_own(masking_study):
    runs = plan(masking_study(seeds="3"), "", Path("root"))
    assert {run.seed for run in runs} == {3}


def test_planned_configs_are_frozen_and_the_base_is_not(masking_study):
    study = masking_study()
    run = plan(study, "0", Path("root"))[0]
    with pytest.raises(AttributeError, match="frozen"):
        run.config.train.steps = 5
    study.base.train.steps = 500
    assert plan(study, "0", Path("root"))[0].config.train.steps == 500


def test_undeclared_difference_is_refused(masking_study):
    study = masking_study()
    study.arms["encoder"]["model.d_ff"] = 256
    with pytest.raises(InputError, match=r"'decoder' and 'encoder' .* model.d_ff, 512 against 256"):
        plan(study, "0", Path("root"))
    study.declared = (*study.declared, "model.d_ff")
    assert plan(study, "0", Path("root"))


@pytest.mark.parametrize("seeds", ["0,x", "0,,1", "1,1", "-1", "0.5"])
def test_malformed_seeds_are_refused(masking_study, seeds):
    with pytest.raises(InputError, match="seeds = "):
        plan(masking_study(), seeds, Path("root"))


@pytest.mark.parametrize("arm", ["", "a/b", "..", ".hidden", "two words"])
def test_arm_names_must_be_folder_names(masking_study, arm):
    with pytest.raises(InputError, match="a name consists of"):
        plan(masking_study(arms={arm: {}}), "0", Path("root"))


@pytest.mark.parametrize("arm", ["report.html", "comparison.json", "a" * 101])
def test_arm_names_must_leave_room_for_the_report(masking_study, arm):
    with pytest.raises(InputError, match=r"at most 100 characters, and none of report\.html"):
        plan(masking_study(arms={arm: {}}), "0", Path("root"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": {}}, "no arms"),
        ({"arms": {"a": {"model.d_modle": 64}}}, "arm 'a': unknown .*did you mean 'model.d_model'"),
        ({"arms": {"a": {"model.d_model": "64"}}}, "arm 'a': model.d_model = '64': expected int"),
        ({"arms": {"a": {"train.steps": 0}}}, "arm 'a': train.steps = 0"),
        ({"arms": {"a": {"train.seed": 5}}}, "arm 'a': train.seed"),
        ({"declared": (3,)}, "declared: 3: expected a field's name"),
        ({"margins": {"translation/blue": 0.5}}, "margins: .* did you mean 'translation/bleu'"),
        ({"margins": {"cloze/casual/accuracy": 0}}, "no such .* mean 'cloze/causal/accuracy'"),
        ({"margins": {"probe/prefix/accuracy": 0}}, "'probe/prefix/accuracy': no such metric"),
        (
            {"margins": {"translation/bleu": -0.5}},
            "margins: .* = -0.5: expected a number from 0 to 1e9",
        ),
        ({"margins": {"translation/bleu": "x"}}, "margins: .* = 'x': expected a number"),
        ({"declared": ("model.widht",)}, "declares unknown field 'model.widht'"),
    ],
)
def test_bad_studies_are_refused_in_one_line(masking_study, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        plan(masking_study(**changes), "0", Path("root"))
    assert "\n" not in str(caught.value)


def test_studies_of_one_study_and_of_several(masking_study):
    @dataclass
    class Both:
        first: Study = field(default_factory=masking_study)
        second: Study = field(default_factory=masking_study)

    assert list(studies(masking_study())) == ["masking"]
    both = Both()
    assert studies(both) == {"first": both.first, "second": both.second}
    for wrong in (Config(), {"a": 1}, None):
        with pytest.raises(InputError, match="neither a Study"):
            studies(wrong)


def test_only_some_arms(masking_study):
    study = masking_study()
    other = replace(study, name="other", arms={"x": {}})
    both = {"masking": study, "other": other}
    first, *_, last = study.arms
    assert only(both, "") is both
    kept = only(both, f"{last},{first}")
    assert list(kept) == ["masking"]
    assert list(kept["masking"].arms) == [first, last]
    assert list(only(both, f"x,{first}")) == ["masking", "other"]


def test_finished_runs_pass(masking_runs):
    assert all(is_finished(run) for run in masking_runs)
    check_runs(masking_runs)


def test_unfinished_runs_are_told_apart(masking_runs, edit_json):
    missing, stopped, early, unscored, *rest = masking_runs
    (missing.directory / "config.json").unlink()
    edit_json(stopped.directory / "ledger.json", finished=False)
    edit_json(early.directory / "ledger.json", step=600)
    (unscored.directory / "eval/1200.json").unlink()
    assert not any(map(is_finished, (missing, stopped, early, unscored)))
    assert all(map(is_finished, rest))


def test_directory_of_another_config_is_refused(masking_runs, masking_study, tmp_path):
    study = masking_study()
    study.base.train.steps, study.base.model.d_model = 600, 256
    planned = plan(study, "0", tmp_path / "masking")[0]
    with pytest.raises(InputError, match=r"model.d_model: 128 there, 256 here; train.steps: 1200"):
        is_finished(planned)


def test_stored_undeclared_difference_is_refused(masking_runs):
    """Finished runs are held to the declaration even if the plan was not."""
    masking_runs[0].study.declared = ("model.architecture",)
    with pytest.raises(
        InputError, match=r"decoder/seed-\d' and 'encoder/seed-\d' .*objective.name"
    ):
        check_runs(masking_runs)


@pytest.mark.parametrize("name", ["data_fingerprint", "tokenizer_fingerprint"])
def test_unequal_data_is_refused(masking_runs, edit_json, name):
    edit_json(masking_runs[1].directory / "ledger.json", **{name: "other"})
    with pytest.raises(InputError, match=rf"decoder/seed-0 and encoder/seed-0 .*{name}.*'other'"):
        check_runs(masking_runs)


def test_absent_fingerprint_is_refused(masking_runs, edit_json):
    edit_json(masking_runs[1].directory / "ledger.json", data_fingerprint=None)
    with pytest.raises(InputError, match="has no data_fingerprint"):
        check_runs(masking_runs)


def test_declared_data_may_differ(masking_runs, edit_json):
    masking_runs[0].study.declared += ("data.length",)
    edit_json(masking_runs[1].directory / "ledger.json", data_fingerprint="other")
    check_runs(masking_runs)


@pytest.mark.parametrize(("name", "value"), [("fingerprint", "other"), ("items", 99)])
def test_unequal_shared_positions_are_refused(masking_runs, name, value):
    path = masking_runs[1].directory / "eval/1200.json"
    stored = json.loads(path.read_text())
    stored["results"]["shared_positions"][name] = value
    path.write_text(json.dumps(stored))
    with pytest.raises(InputError, match=rf"shared_positions.{name}: .* against {value!r}"):
        check_runs(masking_runs)


def test_unequal_order_is_refused(masking_runs, edit_json):
    edit_json(masking_runs[1].directory / "ledger.json", order_fingerprint="other")
    with pytest.raises(InputError, match=r"decoder/seed-0 and encoder/seed-0 .*order_fingerprint"):
        check_runs(masking_runs)
    edit_json(masking_runs[1].directory / "ledger.json", order_fingerprint=None)
    with pytest.raises(InputError, match="order_fingerprint: 'order-0' against None"):
        check_runs(masking_runs)


def test_seeds_differ_in_order_and_old_runs_do_not_know_it(masking_runs, edit_json):
    orders = {
        json.loads((run.directory / "ledger.json").read_text())["order_fingerprint"]
        for run in masking_runs
    }
    assert orders == {"order-0", "order-1"}
    check_runs(masking_runs)
    for run in masking_runs:
        edit_json(run.directory / "ledger.json", order_fingerprint=None)
    check_runs(masking_runs)


def test_losses_of_other_objectives_are_never_compared(masking_study):
    """A perplexity minus a pseudo-perplexity means nothing, nor does one over other tokens."""
    for name in ("loss/loss", "loss/perplexity", "loss/pseudo_perplexity"):
        with pytest.raises(InputError, match=r"losses cannot be compared .* differ in objective"):
            plan(masking_study(margins={name: 0.02}), "0", Path("root"))
    alike = masking_study(
        arms={"wide": {"model.d_ff": 1024}, "narrow": {}},
        declared=("model.d_ff",),
        margins={"loss/loss": 0.02},
    )
    assert plan(alike, "0", Path("root"))


def test_losses_on_a_grid_of_objectives_are_never_compared(masking_study):
    """But of label smoothing: without it they are evaluated."""
    alike = {"arms": {"wide": {"model.d_ff": 1024}, "narrow": {}}, "margins": {"loss/loss": 0.02}}
    swept = masking_study(
        **alike, declared=("model.d_ff",), grid={"objective.mask_rate": (0.2, 0.3)}
    )
    with pytest.raises(InputError, match=r"losses .* that differ in objective\.mask_rate"):
        plan(swept, "0", Path("root"))
    smooth = "objective.label_smoothing"
    assert plan(masking_study(**alike, declared=("model.d_ff", smooth)), "0", Path("root"))
    swept = masking_study(**alike, declared=("model.d_ff",), grid={smooth: (0.0, 0.1)})
    assert plan(swept, "0", Path("root"))


def test_arms_that_start_from_other_checkpoints_are_refused(masking_study, write_study):
    """The newest one was another when the second arm began."""
    study = masking_study()
    study.base.train.init_from = "runs/start-{seed}"
    runs = write_study(study)
    for run in runs:
        start = {"run": f"runs/start-{run.seed}", "step": 100 + run.seed, "parameters": "ab"}
        (run.directory / "init.json").write_text(json.dumps(start))
    check_runs(runs)
    path = runs[1].directory / "init.json"
    alike = {"run": "runs/start-0", "step": 100, "parameters": "ab"}
    for name, value in (("step", 200), ("parameters", "cd")):
        path.write_text(json.dumps(alike | {name: value}))
        with pytest.raises(InputError, match=rf"encoder/seed-0 differ in {name} in init\.json: "):
            check_runs(runs)
        path.write_text(json.dumps({k: v for k, v in alike.items() if k != name}))
        with pytest.raises(InputError, match=rf"has no {name}, so nothing shows"):
            check_runs(runs)
    path.unlink()
    with pytest.raises(InputError, match="has no run, so nothing shows"):
        check_runs(runs)
    study.declared = (*study.declared, "train.init_step")
    check_runs(runs)


def write_losses(runs, *losses):
    for run, loss in zip(runs, losses, strict=True):
        path = run.directory / "eval/1200.json"
        stored = json.loads(path.read_text())
        stored["results"]["loss"] = {"loss": 3.0, "items": 9, "mask": "causal"} | loss
        path.write_text(json.dumps(stored))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"pseudo_perplexity": 20.0}, "kind of perplexity: 'perplexity' against 'pseudo_perp"),
        ({"perplexity": 20.0, "items": 8}, "loss.items: 9 against 8"),
        ({"perplexity": 20.0, "mask": "bidirectional"}, "loss.mask: 'causal' against"),
    ],
)
def test_unlike_losses_are_refused(masking_study, write_study, other, message):
    study = masking_study(
        arms={"wide": {"model.d_ff": 1024}, "narrow": {}},
        declared=("model.d_ff",),
        margins={"loss/perplexity": 0.5},
        seeds="0",
    )
    runs = write_study(study)
    write_losses(runs, {"perplexity": 21.0}, {"perplexity": 20.0})
    check_runs(runs)
    write_losses(runs, {"perplexity": 21.0}, other)
    with pytest.raises(InputError, match=message):
        check_runs(runs)


def test_unequal_seeds_are_refused(masking_runs, edit_json):
    edit_json(masking_runs[-1].directory / "ledger.json", finished=False)
    with pytest.raises(InputError, match=r"'decoder' and 'prefix' .* seeds: 0,1 against 0"):
        check_runs(masking_runs)
    with pytest.raises(InputError, match="against none"):
        check_runs([run for run in masking_runs if run.arm != "prefix"])


def test_broken_files_are_named(masking_runs):
    path = masking_runs[0].directory / "ledger.json"
    path.write_text('{"finished": tr')
    with pytest.raises(InputError, match=r"ledger.json: not valid JSON"):
        check_runs(masking_runs)
