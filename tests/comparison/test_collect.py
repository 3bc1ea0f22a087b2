import json

import pytest

from attn_jax.comparison.arms import plan
from attn_jax.comparison.budgets import describe_budgets
from attn_jax.comparison.collect import OWN_BITS, collect, write_comparison
from attn_jax.comparison.wording import notes
from attn_jax.errors import InputError


def edit_results(run, evaluator, **changes):
    path = run.directory / "eval/1200.json"
    stored = json.loads(path.read_text())
    stored["results"][evaluator] |= changes
    path.write_text(json.dumps(stored))


def edit_lines(run, change):
    path = run.directory / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(change(line)) + "\n" for line in lines))


def test_metrics_hold_one_value_a_seed(masking_runs):
    for seed, bits in ((0, 5.0), (1, 5.2)):
        run = next(run for run in masking_runs if str(run) == f"encoder/seed-{seed}")
        edit_results(run, "shared_positions", own_bits=bits)
    found = collect(masking_runs)
    own = found["metrics"]["encoder"][OWN_BITS]
    assert own["values"] == [5.0, 5.2]
    assert own["mean"] == pytest.approx(5.1)
    assert own["sd"] == pytest.approx(0.141421, abs=1e-6)
    assert (own["min"], own["max"], own["n"]) == (5.0, 5.2, 2)
    assert found["seeds"] == [0, 1]
    assert found["arms"] == ["decoder", "encoder", "prefix"]


def test_pseudo_perplexity_keeps_its_name(masking_runs):
    metrics = collect(masking_runs)["metrics"]
    assert "loss/perplexity" not in metrics["encoder"]
    assert "loss/pseudo_perplexity" not in metrics["decoder"]


def test_budgets_and_what_is_matched(masking_runs):
    found = collect(masking_runs)
    assert found["budgets"]["encoder"]["loss_bearing_tokens"]["mean"] == 720_000
    assert found["budgets"]["decoder"]["parameters_non_embedding"]["mean"] == 793_088
    assert found["matched"] == ["parameters", "parameters without embeddings", "tokens seen"]
    assert found["differ"] == [
        "training FLOPs (decoder 97 %, prefix 97 % of encoder)",
        "loss-bearing tokens (encoder 30 %, prefix 50 % of decoder)",
    ]


def test_budgets_within_a_hundredth_are_matched():
    budgets = dict.fromkeys(
        ("parameters_non_embedding", "training_flops", "tokens_seen", "loss_bearing_tokens"), 1
    )
    arms = {"a": budgets | {"parameters": 1000}, "b": budgets | {"parameters": 990}}
    assert describe_budgets(arms)["differ"] == []
    arms["b"]["parameters"] = 989
    assert describe_budgets(arms)["differ"] == ["parameters (b 99 % of a)"]


def test_declared_fields_of_every_arm(masking_runs):
    assert collect(masking_runs)["declared"]["objective.name"] == {
        "decoder": "causal_lm",
        "encoder": "masked_lm",
        "prefix": "prefix_lm",
    }


def test_every_model_under_every_mask(masking_runs):
    for run in masking_runs:
        bits = {"bits": 6.0 + run.seed, "stderr": 0.1, "accuracy": 0.3}
        edit_results(run, "shared_positions", prefix=bits)
    masks = collect(masking_runs)["masks"]
    assert masks["encoder"]["own_mask"] == "bidirectional"
    assert masks["encoder"]["prefix"]["values"] == [6.0, 7.0]
    assert masks["prefix"]["prefix"]["mean"] == 6.5


def test_differences_are_paired(masking_runs):
    own = {"decoder": (5.0, 6.0), "encoder": (4.9, 5.901), "prefix": (5.0, 6.0)}
    for run in masking_runs:
        edit_results(run, "shared_positions", own_bits=own[run.arm][run.seed])
    found = collect(masking_runs)["differences"]
    rows = {(x["a"], x["b"]): x for x in found if x["metric"] == OWN_BITS}
    row = rows["decoder", "encoder"]
    assert row["mean"] == pytest.approx(0.0995)
    assert row["sd"] == pytest.approx(0.001 / 2**0.5)  # far below that of either arm
    assert (row["outcome"], row["ahead"]) == ("ahead", "encoder")
    assert rows["decoder", "prefix"]["outcome"] == "no spread"


def test_margins_name_the_metrics_and_the_parity(masking_study, write_study):
    runs = write_study(masking_study(margins={OWN_BITS: 50}))
    found = collect(runs)["differences"]
    assert {x["metric"] for x in found} == {OWN_BITS}
    assert {x["margin"] for x in found} == {50.0}
    assert {x["outcome"] for x in found} == {"ahead", "on par"}
    assert collect(write_study(masking_study(margins={})))["differences"] == []


def test_scores_of_items_give_the_interval_over_text(masking_runs):
    found = collect(masking_runs)["differences"][0]
    assert found["text"]["low"] < found["mean"] < found["text"]["high"]
    # The arms share which items are hard, so these add next to nothing here.
    width = found["text"]["high"] - found["text"]["low"]
    assert width == pytest.approx(found["high"] - found["low"], rel=0.01)
    assert 0 < found["text"]["p"] <= 1
    (masking_runs[0].directory / "eval/1200.items.json").unlink()
    assert collect(masking_runs)["differences"][0]["text"] is None


def test_broken_scores_of_items_are_named(masking_runs):
    path = masking_runs[0].directory / "eval/1200.items.json"
    path.write_text('{"shared_positions": {"own_bits": [1.0, 2.0]}}')
    with pytest.raises(InputError, match=r"items.json: shared_positions/own_bits: not as many"):
        collect(masking_runs)


def test_curves_have_mean_and_range(masking_runs):
    for run in masking_runs:
        edit_lines(run, lambda line, seed=run.seed: line | {"loss": line["step"] + 10 * seed})
    curve = collect(masking_runs)["curves"]["train"]["loss"]["decoder"]
    assert curve["steps"] == list(range(50, 1201, 50))
    assert (curve["min"][0], curve["mean"][0], curve["max"][0]) == (50, 55, 60)


def test_a_resumed_run_counts_each_step_once(masking_runs):
    run = masking_runs[0]
    with (run.directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 600, "split": "train", "loss": 77.0}) + "\n")
    curve = collect(masking_runs)["curves"]["train"]["loss"]["decoder"]
    assert curve["steps"] == list(range(50, 1201, 50))
    assert curve["max"][curve["steps"].index(600)] == 77.0


def test_overtake_is_the_first_step_below(masking_runs):
    decoder = {200: 6.0, 400: 5.5, 600: 5.3, 800: 5.2, 1000: 5.15, 1200: 5.1}
    encoder = {200: 9.0, 400: 7.0, 600: 5.3, 800: 5.1, 1000: 4.9, 1200: 4.8}
    prefix = {step: 9.9 for step in decoder}
    bits = {"decoder": decoder, "encoder": encoder, "prefix": prefix}

    def plant(run):
        def change(line):
            return line | ({OWN_BITS: bits[run.arm][line["step"]]} if OWN_BITS in line else {})

        edit_lines(run, change)

    for run in masking_runs:
        plant(run)
    steps = {(x["wide"], x["narrow"]): x["step"] for x in collect(masking_runs)["overtakes"]}
    assert steps == {
        ("encoder", "decoder"): 800,
        ("encoder", "prefix"): 200,
        ("prefix", "decoder"): None,
    }


def test_samples_are_aligned_over_arms(translation_runs):
    found = collect(translation_runs)["examples"]["translations"]
    assert found[0]["source"] == "Tuesday, March 5, 2024"
    assert found[0]["arms"]["encoder-decoder"] == {"hypothesis": "Dienstag, 5. März 2024"}
    assert found[0]["arms"]["causal"] == {"hypothesis": "Dienstag, 5. Mai 2024"}


def test_baselines_items_and_signatures(translation_runs):
    found = collect(translation_runs)
    assert found["baselines"] == {"copy_exact_match": 3.1, "copy_bleu": 12.4, "copy_chrf": 33.0}
    assert found["items"]["translation"] == 1000
    assert found["signatures"]["chrf_signature"] == "nrefs:1|nc:6"


def test_unequal_runs_are_not_collected(masking_runs, edit_json):
    edit_json(masking_runs[1].directory / "ledger.json", data_fingerprint="other")
    with pytest.raises(InputError, match="data_fingerprint"):
        collect(masking_runs)


def test_nothing_finished_is_refused(masking_study, tmp_path):
    with pytest.raises(InputError, match="none of the runs"):
        collect(plan(masking_study(), "", tmp_path))


def test_numbers_that_are_none_are_refused(masking_runs):
    edit_results(masking_runs[0], "loss", loss=float("nan"))
    with pytest.raises(InputError, match="decoder/seed-0: loss/loss = nan"):
        collect(masking_runs)


def test_broken_metrics_name_file_and_line(masking_runs):
    path = masking_runs[0].directory / "metrics.jsonl"
    path.write_text('{"step": 12\n' + path.read_text())
    with pytest.raises(InputError, match=r"metrics.jsonl:1: "):
        collect(masking_runs)


@pytest.mark.parametrize("value", [None, "many", [1], float("nan"), 10**400, -1, True])
def test_a_budget_that_is_no_number_is_refused(masking_runs, value):
    path = masking_runs[0].directory / "ledger.json"
    ledger = json.loads(path.read_text()) | {"training_flops": value}
    path.write_text(json.dumps(ledger))
    with pytest.raises(InputError, match=r"ledger\.json: training_flops = .*: expected a number"):
        collect(masking_runs)


def test_comparison_is_written_whole_or_not_at_all(masking_runs, tmp_path):
    path = tmp_path / "comparison.json"
    found = {"masking": collect(masking_runs)}
    write_comparison(path, found)
    assert json.loads(path.read_text(encoding="utf-8")) == found
    with pytest.raises(ValueError, match="JSON compliant"):
        write_comparison(path, {"masking": {"mean": float("nan")}})
    assert json.loads(path.read_text(encoding="utf-8")) == found
    assert not list(tmp_path.glob("*.partial"))


def test_a_run_without_results_is_named(masking_runs):
    """It would else vanish from the tables, and its arm with it."""
    path = masking_runs[0].directory / "eval/1200.json"
    stored = json.loads(path.read_text())
    del stored["results"]["loss"]
    path.write_text(json.dumps(stored))
    with pytest.raises(InputError, match=rf"{path}: holds no results of 'loss'"):
        collect(masking_runs)


def test_a_classifier_that_diverged_is_told_and_not_only_left_out(masking_runs):
    for run in masking_runs:
        scores = {"causal": {"accuracy": 0.7}, "bidirectional": {"accuracy": 0.8}}
        if str(run) == "encoder/seed-1":
            scores["causal"] = {"mask": "causal", "diverged": True}
        path = run.directory / "eval/1200.json"
        stored = json.loads(path.read_text())
        stored["results"]["fine_tuning"] = scores
        path.write_text(json.dumps(stored))
    found = collect(masking_runs)
    assert "fine_tuning/causal/accuracy" not in found["metrics"]["encoder"]
    assert found["diverged"] == [
        {"arm": "encoder", "metric": "fine_tuning/causal/accuracy", "diverged": 1, "seeds": 2}
    ]
    assert notes(found) == [
        "Fine-tuning, causal: 1 of 2 seeds of the encoder diverged, so it has no number."
    ]


def test_a_margin_of_the_study_s_own_that_finds_nothing_is_told(masking_study, write_study):
    margins = {OWN_BITS: 0.02, "cloze/causal/accuracy": 0.01, "translation/bleu": 0.5}
    found = collect(write_study(masking_study(margins=margins)))
    assert found["not_compared"] == ["cloze/causal/accuracy"]  # BLEU's is the one of every study
    assert notes(found) == [
        "No two arms have a number for cloze/causal/accuracy, one of the study's margins, so none "
        "is compared."
    ]
    assert notes(collect(write_study(masking_study()))) == []
