"""Whatever a user gets wrong: exit status 2, one line on stderr that helps, and nothing written."""

import json
import shutil
import subprocess
import sys

import pytest
from tiny_runs import (
    LM,
    ROOT,
    TRAIN,
    TRANSLATION,
    contents,
    flag,
    lm_run,
    refused,
    run_module,
    tiny_data,
    train_command,
    translation_run,
)

FLAGS = {
    "unknown field": (flag("model.d_modle", 64), "'model.d_modle'", "did you mean 'model.d_model'"),
    "unknown section": (flag("modle.d_model", 64), "'modle.d_model'", "'model.d_model'"),
    "wrong type": (flag("model.d_model", "wide"), "model.d_model = 'wide'", "expected int"),
    "no whole number": (flag("train.steps", 1.5), "train.steps = '1.5'", "expected int"),
    "no number": (flag("optimizer.b1", "x"), "optimizer.b1 = 'x'", "expected float"),
    "no truth value": (flag("train.wandb", "perhaps"), "train.wandb = 'perhaps'", "expected bool"),
    "empty truth value": (flag("train.wandb", ""), "train.wandb = ''", "expected bool"),
    "flags in a missing file": ("--flagfile=no/flags", "Unable to open flagfile", "no/flags"),
    "no file of an evaluator": (
        flag("eval.evaluators", "cloze"),
        flag("eval.cloze", "no/file.txt"),
        "eval.cloze = 'no/file.txt': no such file",
    ),
    "one of several processes": ("--process_id=1", "process_id = 1", "with --distributed only"),
    "endless vocabulary": (flag("tokenizer.vocab_size", 2**31 - 1), "from 8 to 10000000"),
    "unknown choice": (
        flag("objective.name", "mased_lm"),
        "objective.name = 'mased_lm'",
        "causal_lm, masked_lm",
        "did you mean 'masked_lm'",
    ),
    "out of bounds": (flag("model.dropout", 1.5), "model.dropout = 1.5", "from 0 to 0.99"),
    "not a number": (flag("model.dropout", "nan"), "model.dropout = nan", "a finite number"),
    "infinite": (flag("optimizer.learning_rate", "inf"), "learning_rate = inf", "finite number"),
    "too large": (flag("model.d_model", 10**30), f"model.d_model = {10**30}", "to 2147483647"),
    "a section": (flag("model", 3), "config.model: is a section", "--config.model.FIELD=VALUE"),
    "no field": ("--config.=3", "unknown config field ''"),
    "penalty of no beam": (
        flag("eval.length_penalty", 0.6),
        "eval.length_penalty = 0.6",
        "beam_size > 1",
    ),
    "early stopping of no beam": (
        flag("eval.early_stopping", "false"),
        "eval.early_stopping = False",
        "beam_size > 1",
    ),
    "more pieces than rows": (flag("train.accumulate", 5), "train.accumulate = 5", "at most 4"),
    "no GPU": (flag("model.attention", "cudnn"), "'cudnn': needs an NVIDIA GPU"),
    "no wandb": (flag("train.wandb", "true"), "train.wandb = True", "pip install wandb"),
    "width and heads": (
        flag("model.d_model", 18),
        flag("model.num_heads", 4),
        "model.d_model = 18",
        "model.num_heads = 4",
    ),
    "longer than the table": (
        flag("model.positions", "learned"),
        flag("model.max_length", 8),
        "data.length = 16",
        "model.max_length = 8",
    ),
    "encoder that writes": (flag("model.architecture", "encoder"), "'encoder'", "trains 'decoder'"),
    "unknown evaluator": (flag("eval.evaluators", "loss,los"), "'los'", "did you mean 'loss'"),
    "unknown flag": ("--workdri=x", "workdri", "workdir"),
    "missing file": (flag("data.train_files", "no/such.txt"), "data.train_files", "no/such.txt"),
    "no such user": (
        flag("data.train_files", "~nosuchuser/x"),
        "data.train_files = '~nosuchuser/x'",
    ),
    "impossible file": (flag("data.train_files", "x" * 5000), "data.train_files", "cannot be read"),
    "unreadable file": (
        flag("data.train_files", "/proc/self/mem"),
        "/proc/self/mem: cannot be read",
    ),
    "two lines": (flag("data.train_files", "one\ntwo"), "one two: no such file"),
    "no files": (flag("data.train_files", ""), "data.train_files", "needs files"),
    "data where a file is": (flag("data.data_dir", __file__), "data.data_dir", "is a file"),
    "data set without a name": (flag("data.name", ""), "data.name = ''", "expected cldr_phrases"),
    "unknown data set": (flag("data.name", "web_bibel"), "data.name", "web_bible"),
    "unknown language": (
        flag("data.name", "cldr_phrases"),
        flag("data.target_language", "german"),
        "data.target_language",
        "'german'",
    ),
    "too large a vocabulary": (
        flag("tokenizer.name", "sentencepiece"),
        flag("tokenizer.vocab_size", 5000),
        "tokenizer.vocab_size = 5000",
        "at most ",
    ),
    "text for a translator": (
        flag("objective.name", "causal_translation"),
        "objective.name = 'causal_translation'",
        "text data",
    ),
    "translation scores of a language model": (
        flag("eval.evaluators", "translation"),
        "eval.evaluators",
        "'translation'",
        "pair data",
    ),
}


@pytest.mark.parametrize("case", FLAGS)
def test_wrong_flags(refused, train_command, case):
    flags = [part for part in FLAGS[case] if part.startswith("--")]
    line = refused(*train_command(*flags))
    for part in FLAGS[case]:
        assert part in flags or part in line, line


def test_an_argument_that_is_no_flag(refused, train_command):
    line = refused(*train_command("workdir"))
    assert "'workdir' is not a flag; flags look like --name=value" in line


def test_flags_with_a_space(refused, train_command):
    module, config, workdir = train_command()
    command = (module, *config.split("="), workdir)
    assert "did you mean 'model.d_model'" in refused(*command, "--config.model.d_modle", "64")
    line = refused(*command, "--config.model.d_model", "wide")
    assert "model.d_model = 'wide': expected int" in line


def test_a_run_in_a_process_of_its_own_says_as_little(train_command, tmp_path):
    """The other tests fork: nothing that is printed while importing may escape them."""
    module, *args = train_command(flag("model.d_modle", 64))
    done = subprocess.run(
        [sys.executable, "-m", module, *args], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "error: unknown config field 'model.d_modle'; did you mean 'model.d_model'?\n"
    )


def test_no_config_and_no_workdir(refused, train_command):
    module, config, workdir = train_command()
    assert "--config=... is required" in refused(module, workdir)
    assert "--workdir=... is required" in refused(module, config)


def test_help_is_no_error(run_module):
    done = run_module(TRAIN, "--help")
    assert done.status == 0
    assert "--workdir" in done.stdout
    assert "error" not in done.stderr


BYTES = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n", "is empty"),
    "not UTF-8": (b"one\ntwo\n\xff\xfe\n", "line 3: not UTF-8"),
}


@pytest.mark.parametrize("case", BYTES)
def test_text_files(refused, train_command, tmp_path, case):
    content, expected = BYTES[case]
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    line = refused(*train_command(flag("data.train_files", path)))
    assert str(path) in line
    assert expected in line


def test_parallel_files_of_different_lengths(refused, train_command, tmp_path):
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_text("one\n" * 120)
    b.write_text("eins\n" * 119)
    line = refused(*train_command(flag("data.train_files", f"{a},{b}"), **TRANSLATION))
    assert f"{a} has 120 lines and {b} has 119" in line
    line = refused(*train_command(flag("data.train_files", a), **TRANSLATION))
    assert "1 paths, expected 2" in line


def test_the_directory_of_another_run(run_module, train_command, lm_run, tiny_data):
    before = contents(lm_run)
    _, config, _ = train_command(**LM)
    flags = (flag("optimizer.b2", 0.5), flag("model.d_ff", 48))
    done = run_module(TRAIN, config, f"--workdir={lm_run}", *flags)
    assert (done.status, done.stderr.count("\n")) == (2, 1)
    assert "optimizer.b2: 0.98 there, 0.5 here" in done.stderr
    assert "model.d_ff: 32 there, 48 here" in done.stderr
    assert contents(lm_run) == before


def test_a_folder_that_is_no_run(refused, train_command, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "mine.txt").write_text("x")
    module, config, _ = train_command()
    for workdir in (foreign, foreign / "mine.txt"):
        assert "not a run directory" in refused(module, config, f"--workdir={workdir}")
    line = refused("experiments.evaluate", f"--workdir={foreign}")
    assert "config.json is missing" in line
    (foreign / "config.json").write_text("[]")
    line = refused("experiments.evaluate", f"--workdir={foreign}")
    assert "expected a JSON object" in line
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    line = refused("experiments.evaluate", f"--workdir={broken}")
    assert "config.json" in line
    assert "not valid JSON" in line
    assert line.count("config.json") == 1


EVALUATE = {
    "unknown evaluator": (("--evaluators=los",), "unknown evaluator 'los'", "'loss'"),
    "unfit evaluator": (("--evaluators=translation",), "needs pair data"),
    "no such step": (("--step=7",), "no checkpoint of step 7", "5, 10, 12"),
    "fixed field": (("--config.model.d_model=32",), "model.d_model", "only eval and data"),
    "unknown field": (("--config.eval.max_item=3",), "eval.max_item", "'eval.max_items'"),
    "wrong type": (("--config.eval.max_items=few",), "eval.max_items", "expected int"),
    "what is of training": (("--config.eval.curve=loss",), "eval.curve", "in training"),
    "bad value": (("--config.eval.split=train",), "eval.split = 'train'", "validation, test"),
    "step": (("--step=last",), "step", "last"),
}


@pytest.mark.parametrize("case", EVALUATE)
def test_evaluate(refused, lm_run, case):
    before = contents(lm_run)
    flags, *expected = EVALUATE[case]
    line = refused("experiments.evaluate", f"--workdir={lm_run}", *flags)
    for part in expected:
        assert part in line
    assert contents(lm_run) == before


def test_evaluate_on_data_of_another_kind(refused, lm_run, tiny_data):
    files = flag("data.train_files", f"{tiny_data.source},{tiny_data.target}")
    flags = (flag("data.name", "parallel_files"), files)
    line = refused("experiments.evaluate", f"--workdir={lm_run}", *flags)
    assert "'causal_lm': trains on text data, and data.name = 'parallel_files' is pair data" in line


MISFITS = {
    "num_layers": (2, "parameter stack.blocks.1", "is not there in this checkpoint and (16, 16)"),
    "d_model": (32, "parameter embedding is (262, 16) in this checkpoint and (262, 32)"),
}


@pytest.mark.parametrize("field", MISFITS)
def test_a_config_that_does_not_fit_its_checkpoint(refused, lm_run, tmp_path, field):
    value, *expected = MISFITS[field]
    copy = tmp_path / "copy"
    shutil.copytree(lm_run, copy)
    record = json.loads((copy / "config.json").read_text())
    record["config"]["model"][field] = value
    (copy / "config.json").write_text(json.dumps(record))
    line = refused("experiments.evaluate", f"--workdir={copy}")
    for part in (f"{copy}/checkpoints/12: ", *expected):
        assert part in line


def test_pairs_that_are_all_too_long_for_evaluation(refused, train_command, tmp_path):
    for side in ("source", "target"):
        (tmp_path / side).write_text("a long sentence of forty letters and more\n")
    files = flag("data.validation_files", f"{tmp_path / 'source'},{tmp_path / 'target'}")
    line = refused(*train_command(files, **TRANSLATION))
    assert "data.length = 24: all 1 pairs of the validation split are longer" in line


def test_generate(refused, lm_run, tmp_path):
    source, command = tmp_path / "source.txt", ("experiments.generate", f"--workdir={lm_run}")
    source.write_text("one\n")
    line = refused(*command, f"--input={tmp_path}/none.txt", "--output=-")
    assert "none.txt" in line
    line = refused(*command, f"--input={source}", f"--output={tmp_path}/no/folder.txt")
    assert f"output = '{tmp_path}/no/folder.txt': cannot be written (no such folder)" in line
    line = refused(*command, f"--input={source}", f"--output={tmp_path}/{'x' * 300}")
    assert "cannot be written (File name too long)" in line
    for output in (".", tmp_path):
        line = refused(*command, f"--input={source}", f"--output={output}")
        assert f"output = {str(output)!r}: is a directory" in line
    line = refused(*command, stdin="one\n\udcff")
    assert "stdin: line 2: not UTF-8" in line
    line = refused(*command, f"--input={source}", "--max_new=0")
    assert "max_new" in line
    line = refused(*command, f"--input={source}", "--beam_size=2", "--temperature=0.5")
    assert "temperature = 0.5: expected beam_size = 1 with it, not 2" in line
    line = refused(*command, f"--input={source}", "--top_p=0.5")
    assert "top_p = 0.5: expected temperature > 0" in line
    line = refused("experiments.generate", f"--workdir={tmp_path}/none", f"--input={source}")
    assert "not a run directory" in line


def test_export(refused, lm_run, tmp_path):
    command, output = ("experiments.export", f"--workdir={lm_run}"), tmp_path / "model"
    # Whether the package is installed or not, it is missing here, and there afterwards.
    package = "import sys, types; sys.modules['ctranslate2'] = {}"
    missing, there = package.format(None), package.format("types.ModuleType('ctranslate2')")
    line = refused(*command, f"--output={output}", before=missing)
    assert "ctranslate2 cannot be imported" in line
    assert "; pip install -r requirements-peers.txt" in line
    line = refused(*command, f"--output={tmp_path}", before=there)
    assert f"output = {str(tmp_path)!r}: exists, expected a new folder" in line
    line = refused(*command, f"--output={output}/no", before=there)
    assert f"output = '{output}/no': cannot be written (no such folder)" in line
    line = refused(*command, f"--output={output}", before=there)
    assert "model.architecture = 'decoder': CTranslate2 export expects 'encoder_decoder'" in line
    assert not output.exists()


def test_a_masked_lm_cannot_generate(refused, lm_run, tmp_path):
    masked = tmp_path / "masked"
    shutil.copytree(lm_run, masked)  # of the same parameters, one for one
    record = json.loads((masked / "config.json").read_text())
    record["config"]["model"]["architecture"] = "encoder"
    record["config"]["objective"]["name"] = "masked_lm"
    (masked / "config.json").write_text(json.dumps(record))
    line = refused("experiments.generate", f"--workdir={masked}", stdin="one\n")
    assert "masked_lm fills gaps, it cannot generate" in line
    assert str(masked) in line
