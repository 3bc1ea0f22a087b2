"""Files of configs that are wrong: exit status 2, one line on stderr, and nothing written."""

import pytest
from tiny_runs import TRAIN, flag, refused, run_module, tiny_data, train_command

from attn_jax.config import to_dict

FILES = {
    "missing": (None, "no such file"),
    "exception": ("def get_config():\n    return 1 / 0\n", "ZeroDivisionError: division by zero"),
    "syntax": ("def get_config(:\n", "SyntaxError"),
    "no config": ("def get_config():\n    return 3\n", "does not return a config"),
    "no function": ("x = 3\n", "get_config"),
    "typo": (
        "from attn_jax.config import Config\n\n\ndef get_config():\n"
        "    config = Config()\n    config.train.stpes = 3\n    return config\n",
        "did you mean 'steps'",
    ),
    "exit": ("import sys\nsys.exit(0)\n", "SystemExit"),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("flags", [(), (flag("model.d_model", 32),)])
def test_config_files(refused, tmp_path, case, flags):
    source, expected = FILES[case]
    path = tmp_path / "bad.py"
    if source is not None:
        path.write_text(source)
    line = refused(TRAIN, f"--config={path}", f"--workdir={tmp_path / 'run'}", *flags)
    assert str(path) in line
    assert expected in line


FIELD = """
from attn_jax.config import Config


def get_config():
    config = Config()
    config.{} = {}
    return config
"""

TYPES = {
    "huge": ("optimizer.b1", 10**400, ": expected float"),
    "float for int": ("model.d_ff", 16.0, "model.d_ff = 16.0: expected int"),
    "text for int": ("train.steps", "'9'", "train.steps = '9': expected int"),
    "nothing": ("optimizer.b1", None, "optimizer.b1 = None: expected float"),
    "no section": ("model", 3, "model = 3: expected ModelConfig"),
    "another section": ("model", "config.data", "expected ModelConfig"),
}


@pytest.mark.parametrize("case", TYPES)
def test_values_in_a_config_file(refused, tmp_path, case):
    name, value, expected = TYPES[case]
    path = tmp_path / "bad.py"
    path.write_text(FIELD.format(name, value))
    line = refused(TRAIN, f"--config={path}", f"--workdir={tmp_path / 'run'}")
    assert expected in line


NO_CONFIG = {
    "a section": ("return Config().model", "get_config() returns a ModelConfig, expected a Config"),
    "deleted section": (
        "config = Config()\n    del config.model\n    return config",
        "model = None: expected ModelConfig",
    ),
}


@pytest.mark.parametrize("case", NO_CONFIG)
def test_what_is_no_whole_config(refused, tmp_path, case):
    body, expected = NO_CONFIG[case]
    path = tmp_path / "bad.py"
    path.write_text(f"from attn_jax.config import Config\n\n\ndef get_config():\n    {body}\n")
    assert expected in refused(TRAIN, f"--config={path}", f"--workdir={tmp_path / 'run'}")


def test_flags_for_a_config_that_is_frozen(refused, tmp_path):
    path = tmp_path / "frozen.py"
    path.write_text(
        "from attn_jax.config import Config\n"
        "from attn_jax.validation import validate\n\n\n"
        "def get_config():\n    return validate(Config())\n"
    )
    flags = (f"--config={path}", f"--workdir={tmp_path / 'run'}", flag("train.steps", 3))
    assert f"{str(path)!r}: get_config() returns a validated config" in refused(TRAIN, *flags)


def test_the_record_of_a_run_is_no_config_file(refused, tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    line = refused(TRAIN, f"--config={path}", f"--workdir={tmp_path / 'run'}")
    assert f"config = {str(path)!r}: expected a .py file with a function get_config()" in line


def test_a_typo_in_the_name_of_a_shipped_config(refused, tmp_path):
    line = refused(TRAIN, "--config=configs/lm_decodr.py", f"--workdir={tmp_path / 'run'}")
    assert "did you mean 'lm_decoder.py'" in line


def test_a_study_is_not_an_experiment_and_the_other_way_round(refused, train_command, tmp_path):
    workdir = f"--workdir={tmp_path / 'run'}"
    line = refused(TRAIN, "--config=configs/compare_masking.py", workdir)
    assert "experiments.compare" in line
    _, config, _ = train_command()
    line = refused("experiments.compare", config, workdir)
    assert "neither a Study nor" in line
    assert "experiments.train" in line


STUDY = """
from attn_jax.comparison.arms import Study
from attn_jax.config import from_dict


def get_config():
    base = from_dict({base!r})
    arms = {arms!r}
    return Study(base=base, arms=arms, declared=("objective.name",), seeds="0")
"""

ARMS = {
    "undeclared": (
        {"a": {}, "b": {"objective.name": "prefix_lm", "train.steps": 9}},
        "'a' and 'b' differ in train.steps, 12 against 9, which is not declared",
    ),
    "unknown field": ({"a": {"train.step": 9}}, "did you mean 'train.steps'"),
    "bad config": ({"a": {"objective.name": "masked_lm"}}, "model.architecture"),
    "no arms": ({}, "no arms"),
    "arms in a list": ([], "arms = []: expected dict"),
    "no changes": ({"a": "objective.name"}, "arm 'a' = 'objective.name'"),
    "a number as a field": ({"a": {3: 1}}, "arm 'a' = {3: 1}"),
    "wrong type": ({"a": {"train.steps": "9"}}, "train.steps = '9': expected int"),
    "bad name": ({"../a": {}}, "'../a'"),
}


@pytest.mark.parametrize("case", ARMS)
def test_compare(refused, tiny_data, tmp_path, case):
    arms, expected = ARMS[case]
    path = tmp_path / "study.py"
    path.write_text(STUDY.format(base=to_dict(tiny_data.config()), arms=arms))
    line = refused("experiments.compare", f"--config={path}", f"--workdir={tmp_path / 'run'}")
    assert expected in line


def test_compare_arms(refused, tmp_path):
    command = ("experiments.compare", "--config=configs/compare_masking.py")
    line = refused(*command, f"--workdir={tmp_path / 'run'}", "--arms=decoder,encodr")
    assert "arms = 'encodr': expected some of decoder, encoder, prefix" in line
    assert "did you mean 'encoder'" in line


def test_compare_seeds(refused, tmp_path):
    command = ("experiments.compare", "--config=configs/compare_masking.py")
    for seeds in ("0,x", "1,1"):
        line = refused(*command, f"--workdir={tmp_path / 'run'}", f"--seeds={seeds}")
        assert f"seeds = {seeds!r}" in line
