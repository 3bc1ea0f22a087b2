"""`experiments.score`: one score a line, in order, under the method that is asked for."""

import json

import pytest
from tiny_runs import refused, run_module

from attn_jax.evaluation.score_lines import LineScorer
from attn_jax.evaluation.scoring import make_scorer
from attn_jax.objectives.prefix_lm import PrefixLM
from attn_jax.training.restore import restore_run

COMMAND = "experiments.score"
TEXT = "3 nine two\n\n3 nine two four\n"


def scores_of(workdir, method, lines):
    """The same scores, from the library."""
    run = restore_run(workdir)
    scorer = make_scorer(method, run.graph, run.objective, run.tokenizer, run.config.model)
    worker = LineScorer(scorer, run.params, run.tokenizer)
    return [float(score) for _, score in worker.write(dict(enumerate(map(worker.read, lines))))]


@pytest.mark.slow
def test_one_score_a_line_under_the_own_mask(run_module, lm_run):
    done = run_module(COMMAND, f"--workdir={lm_run}", "--input=-", stdin=TEXT)
    assert done.status == 0, done.stderr
    first, empty, last = done.stdout.splitlines()
    assert empty == ""
    expected = scores_of(lm_run, "causal", ["3 nine two", "3 nine two four"])
    assert [float(first), float(last)] == pytest.approx(expected, abs=1e-4)
    assert float(last) < float(first) < 0


def test_each_token_of_a_line(run_module, lm_run, tmp_path):
    source, output = tmp_path / "texts.txt", tmp_path / "scores.jsonl"
    source.write_text(TEXT)
    flags = (f"--input={source}", f"--output={output}", "--per_token", "--method=pll")
    done = run_module(COMMAND, f"--workdir={lm_run}", *flags)
    assert (done.status, done.stdout) == (0, ""), done.stderr
    first, empty, last = output.read_text().splitlines()
    assert empty == ""
    told = json.loads(last)
    assert "".join(told["pieces"]) == "3 nine two four"
    assert told["score"] == pytest.approx(sum(told["log_probs"]))
    assert told["score"] == pytest.approx(scores_of(lm_run, "pll", ["3 nine two four"])[0], 1e-4)
    assert len(json.loads(first)["pieces"]) == len("3 nine two")


def test_pairs_are_scored_line_by_line(run_module, translation_run):
    pairs = ["001 one\t001 ONE", "001 one\t001 SIX"]
    command = (COMMAND, f"--workdir={translation_run}")
    done = run_module(*command, stdin="\n".join(pairs))
    assert done.status == 0, done.stderr
    expected = scores_of(translation_run, "prefix", pairs)
    assert [float(line) for line in done.stdout.splitlines()] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("flags", "text", "parts"),
    [
        (["--method=causul"], "x\n", ["method = 'causul'", "did you mean 'causal'"]),
        (["--method=prefix"], "a\tb\n\na\tb\tc\n", ["line 3", "source<TAB>target, or a text"]),
        (["--method=prefix"], "a\t\n", ["line 1", "source<TAB>target"]),
        (["--output=none/out.txt"], "x\n", ["output = 'none/out.txt'", "no such folder"]),
    ],
)
def test_what_cannot_be_scored_is_refused(refused, lm_run, flags, text, parts):
    line = refused(COMMAND, f"--workdir={lm_run}", *flags, stdin=text)
    for part in parts:
        assert part in line


def test_a_text_alone_is_a_target_without_a_source_to_one_stack(lm_run):
    """Also under the own method of a prefix LM, which is "prefix"."""
    run = restore_run(lm_run)
    about = (run.graph, PrefixLM(), run.tokenizer, run.config.model)
    worker = LineScorer(make_scorer("own", *about), run.params, run.tokenizer)
    worker.check("3 nine two")
    lines = ["3 nine two", "\t3 nine two", "3\tnine two"]
    items = dict(enumerate(map(worker.read, lines)))
    plain, tab, after = (float(score) for _, score in sorted(worker.write(items)))
    assert plain == tab == pytest.approx(scores_of(lm_run, "causal", lines[:1])[0], abs=1e-4)
    assert abs(after - plain) > 0.1


def test_pairs_need_both_sides(refused, translation_run):
    line = refused(COMMAND, f"--workdir={translation_run}", stdin="a\tb\n\nno tab\n")
    assert "line 3: 'no tab': expected source<TAB>target with method = 'prefix'" in line


def test_methods_of_one_stack_are_refused_for_pairs(refused, translation_run):
    line = refused(COMMAND, f"--workdir={translation_run}", "--method=causal", stdin="x\n")
    assert "method = 'causal': this model was trained to translate" in line


def test_evaluators_score_a_checkpoint_under_both_masks(run_module, lm_run, tmp_path):
    pairs, texts = tmp_path / "pairs.jsonl", tmp_path / "texts.txt"
    pairs.write_text('{"sentence_good": "3 nine two", "sentence_bad": "3 nine nine", "UID": "x"}\n')
    texts.write_text("3 nine two\n")
    done = run_module(
        "experiments.evaluate",
        f"--workdir={lm_run}",
        "--evaluators=minimal_pairs,cloze",
        f"--config.eval.minimal_pairs={pairs}",
        f"--config.eval.cloze={texts}",
        "--config.eval.scoring=own,pll_whole_word",
    )
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["results"]
    assert found["minimal_pairs"]["items"] == found["cloze"]["items"] == 1
    good, bad = scores_of(lm_run, "causal", ["3 nine two", "3 nine nine"])
    assert found["minimal_pairs"]["causal"]["accuracy"] == float(good > bad)
    for results in found.values():
        assert results["methods"] == ["causal", "pll_whole_word"]
        assert results["pll_whole_word"]["mask"] == "bidirectional"
