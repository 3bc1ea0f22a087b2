"""The command lines, from a small text to a report."""

import json
import shutil
import signal
import time

import pytest
from tiny_runs import (
    LM,
    SMALL,
    TRANSLATION,
    contents,
    lm_run,
    run_module,
    tiny_data,
    translation_run,
)

from attn_jax.config import from_dict, to_dict
from attn_jax.files import read_json


def succeed(run, module, *args, **options):
    done = run(module, *args, **options)
    assert done.status == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_train_then_evaluate(run_module, tiny_data, tmp_path):
    """The last line that `evaluate` prints is JSON, equal to what training left."""
    config, workdir = tmp_path / "config.py", tmp_path / "run"
    tiny_data.config_file(config, **LM)
    done = succeed(
        run_module,
        "experiments.train",
        f"--config={config}",
        f"--workdir={workdir}",
        "--config.train.checkpoint_every=4",
        "--config.eval.evaluators=loss,attention",
    )
    assert done.stdout.startswith(f"{workdir}: step 12, ")
    names = {path.name for path in workdir.iterdir()} - {".lock"}
    assert names == {
        "config.json",
        "metrics.jsonl",
        "tensorboard",
        "checkpoints",
        "tokenizer",
        "ledger.json",
        "eval",
    }
    record = read_json(workdir / "config.json")
    expected = {"config", "data_fingerprint", "versions", "git_commit", "command"}
    assert record.keys() == expected
    assert record["data_fingerprint"] == read_json(workdir / "ledger.json")["data_fingerprint"]
    stored = from_dict(record["config"])
    assert (stored.train.checkpoint_every, stored.model.dropout) == (4, 0.1)
    assert {"python", "jax", "flax", "numpy"} <= record["versions"].keys()

    command = ("experiments.evaluate", f"--workdir={workdir}")
    # On one device, as it was trained.
    before = "import jax; jax.config.update('jax_num_cpu_devices', 1)"
    *lines, last = succeed(run_module, *command, before=before).stdout.splitlines()
    found = json.loads(last)
    assert ["loss/loss", f"{found['results']['loss']['loss']:.6g}"] in map(str.split, lines)
    assert found["results"] == read_json(workdir / "eval/12.json")["results"]
    assert (found["step"], found["averaged"], found["workdir"]) == (12, [12], str(workdir))

    flags = ("--step=8", "--average_last=2", "--evaluators=loss", "--config.eval.max_items=2")
    flags += ("--config.eval.split=test",)
    other = json.loads(succeed(run_module, *command, *flags).stdout.splitlines()[-1])
    assert (other["step"], other["averaged"]) == (8, [4, 8])
    assert list(other["results"]) == ["loss"]
    assert other["results"]["loss"]["items"] == 2
    assert other["results"]["loss"]["split"] == "test"
    assert other["results"]["loss"]["loss"] != found["results"]["loss"]["loss"]


@pytest.mark.slow
def test_a_mixture_generates_as_a_causal_lm_of_the_same_parameters(run_module, lm_run, tmp_path):
    mixture = tmp_path / "mixture"
    shutil.copytree(lm_run, mixture)
    record = read_json(mixture / "config.json")
    record["config"]["objective"]["name"] = "mixture"
    (mixture / "config.json").write_text(json.dumps(record))
    written = [
        succeed(
            run_module, "experiments.generate", f"--workdir={run}", "--max_new=9", stdin="1 two\n"
        ).stdout
        for run in (lm_run, mixture)
    ]
    assert written[0] == written[1]
    assert written[0].startswith("1 two")
    assert len(written[0]) > 7
    found = json.loads(
        succeed(
            run_module,
            "experiments.evaluate",
            f"--workdir={mixture}",
            "--evaluators=loss,shared_positions,attention",
        ).stdout.splitlines()[-1]
    )["results"]
    assert found["shared_positions"]["own_mask"] == found["loss"]["mask"] == "bidirectional"
    assert {"causal", "masked"} < found["loss"].keys()


def test_translate_a_file_line_by_line(run_module, translation_run, tmp_path):
    source, output = tmp_path / "source.txt", tmp_path / "output.txt"
    source.write_text("001 one\n\n002 six two one\n000 one\n001 one\n")
    command = ("experiments.generate", f"--workdir={translation_run}", "--max_new=9")
    succeed(run_module, *command, f"--input={source}", f"--output={output}")
    lines = output.read_text().splitlines()
    assert output.read_text().count("\n") == len(lines) == 5
    assert lines[1] == ""
    assert lines[0] == lines[4]
    assert all(len(line.encode()) <= 9 * 3 for line in lines)
    # From stdin to stdout, the same; without the last newline, too.
    done = succeed(run_module, *command, stdin=source.read_text().removesuffix("\n"))
    assert done.stdout == output.read_text()
    # A search of several hypotheses at once finds other texts, the same for the same source.
    done = succeed(run_module, *command, "--beam_size=3", stdin="001 one\n\n001 one\n")
    first, empty, last, end = done.stdout.split("\n")
    assert (first, empty, end) == (last, "", "")


KILL_WRITING = """
    import os, signal
    from attn_jax.decoding.lines import Progress
    keep = Progress.keep

    def keep_and_die(self, number, text):
        keep(self, number, text)
        if len(self.done) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    Progress.keep = keep_and_die
"""


@pytest.mark.slow
def test_a_killed_translation_goes_on(run_module, translation_run, tmp_path):
    source, output, whole = (tmp_path / name for name in ("source.txt", "output.txt", "whole.txt"))
    source.write_text("001 one\n\n002 six two one\n000 one\n001 one\n")
    command = ("experiments.generate", f"--workdir={translation_run}", "--max_new=9")
    command += (f"--input={source}",)
    done = run_module(*command, f"--output={output}", before=KILL_WRITING)
    assert done.status == -signal.SIGKILL
    assert (output.exists(), len(list(tmp_path.iterdir()))) == (False, 2)
    settings = json.loads((tmp_path / "output.txt.progress").read_text().splitlines()[0])
    of_the_call = {"workdir", "steps", "parameters", "max_new", "search", "truncate", "input"}
    assert settings.keys() == of_the_call
    line = run_module(*command, f"--output={output}", "--max_new=8").stderr
    assert "output.txt.progress: is of another call, max_new = 9 there and 8 here" in line
    for path in (output, whole):
        succeed(run_module, *command, f"--output={path}")
    assert output.read_text() == whole.read_text()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
def test_a_language_model_continues_each_line(run_module, lm_run):
    command = ("experiments.generate", f"--workdir={lm_run}", "--max_new=4", "--step=5")
    done = succeed(run_module, *command, stdin="one two\n  \nthree\n")
    lines = done.stdout.split("\n")
    assert len(lines) == 4
    assert lines[0].startswith("one two")
    assert lines[1] == ""
    assert lines[2].startswith("three")
    warm = (*command, "--temperature=2", "--top_k=50")
    first = succeed(run_module, *warm, stdin="one two\none two\n").stdout
    assert (
        first
        == succeed(run_module, *warm, stdin="one two\none two\n\nthree\n").stdout[: len(first)]
    )
    assert len(set(first.splitlines())) == 2
    assert first != succeed(run_module, *warm, "--seed=1", stdin="one two\none two\n").stdout


STUDY = """
from attn_jax.comparison.arms import Study
from attn_jax.config import from_dict


def get_config():
    return Study(
        name="tiny",
        question="Does the prefix help?",
        base=from_dict({base!r}),
        arms={{
            "causal": {{"objective.name": "causal_lm"}},
            "prefix": {{"objective.name": "prefix_lm"}},
        }},
        declared=("objective.name",),
        seeds="0,1",
    )
"""

# Ends the process in the second run, between two of its checkpoints.
KILL = """
    import os, signal
    from attn_jax.training import loop
    read, seen = loop.read_tokens, []

    def read_and_die(text):
        if os.path.exists("{root}/prefix/seed-0/config.json"):
            seen.append(text)
        if len(seen) == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(text)

    loop.read_tokens = read_and_die
"""


@pytest.fixture(scope="module")
def study_file(tiny_data):
    path = tiny_data.folder / "study.py"
    base = tiny_data.config(**LM | {"eval.evaluators": "loss,shared_positions"})
    path.write_text(STUDY.format(base=to_dict(base)))
    return path


@pytest.fixture(scope="module")
def compared(run_module, study_file):
    """A finished comparison of two arms with two seeds, trained one by one; how it ended."""
    root = study_file.parent / "compared"
    command = ("experiments.compare", f"--config={study_file}", f"--workdir={root}", "--workers=1")
    return root, command, succeed(run_module, *command)


def numbers_of(root):
    """comparison.json without what depends on the clock and on where it ran."""

    def clean(value):
        if isinstance(value, dict):
            drop = ("seconds", "tokens_per_s", "command")
            return {k: clean(v) for k, v in value.items() if k not in drop}
        return [clean(x) for x in value] if isinstance(value, list) else value

    return clean(read_json(root / "comparison.json"))


def test_compare_writes_runs_and_a_report(compared):
    root, _, done = compared
    assert done.stdout.splitlines()[-1] == f"report: {root / 'report.html'}"
    runs = [root / arm / f"seed-{seed}" for arm in ("causal", "prefix") for seed in (0, 1)]
    ledgers = [read_json(run / "ledger.json") for run in runs]
    assert all(ledger["finished"] for ledger in ledgers)
    assert len({ledger["data_fingerprint"] for ledger in ledgers}) == 1
    study = read_json(root / "comparison.json")["tiny"]
    assert (study["arms"], study["seeds"]) == (["causal", "prefix"], [0, 1])
    for arm in ("causal", "prefix"):
        values = study["metrics"][arm]["shared_positions/own_bits"]["values"]
        expected = [
            read_json(root / arm / f"seed-{seed}/eval/{SMALL['train.steps']}.json")
            for seed in (0, 1)
        ]
        assert values == [x["results"]["shared_positions"]["own_bits"] for x in expected]
    report = (root / "report.html").read_text()
    assert "Does the prefix help?" in report
    assert report.rstrip().endswith("</html>")


def test_a_second_start_trains_nothing(run_module, compared):
    root, command, _ = compared
    kept = lambda: {p: c for p, c in contents(root).items() if p.parent != root}  # noqa: E731
    before, numbers, start = kept(), numbers_of(root), time.monotonic()
    done = succeed(run_module, *command)
    assert "step" not in done.stderr  # no progress bar
    assert time.monotonic() - start < 15
    assert kept() == before
    assert numbers_of(root) == numbers


@pytest.mark.slow
def test_a_comparison_that_was_killed_goes_on(run_module, compared, study_file, tmp_path):
    root = tmp_path / "killed"
    command = ("experiments.compare", f"--config={study_file}", f"--workdir={root}", "--workers=1")
    done = run_module(*command, before=KILL.format(root=root))
    assert done.status == -signal.SIGKILL
    assert (root / "causal/seed-0/ledger.json").exists()
    assert not (root / "prefix/seed-0/ledger.json").exists()
    assert not (root / "comparison.json").exists()
    finished = contents(root / "causal/seed-0")
    succeed(run_module, *command)
    assert contents(root / "causal/seed-0") == finished
    assert numbers_of(root) == numbers_of(compared[0])


@pytest.mark.slow
def test_fewer_seeds_can_be_reported(run_module, compared):
    root, command, _ = compared
    succeed(run_module, *command, "--seeds=1")
    assert read_json(root / "comparison.json")["tiny"]["seeds"] == [1]
    succeed(run_module, *command)
