"""Commands for a scheduler train the very runs that were planned."""

import runpy
import shlex

import pytest
from tiny_runs import LM, ROOT, run_module, tiny_data

from attn_jax.comparison.arms import is_finished
from attn_jax.comparison.commands import command
from attn_jax.comparison.stages import Comparison
from attn_jax.comparison.sweeps import plan_sweep
from attn_jax.config import to_dict
from attn_jax.errors import InputError

FILE = """
from attn_jax.comparison.arms import Study
from attn_jax.config import from_dict

GRID = {{"optimizer.learning_rate": (0.02, 0.003), "model.bias": (True, False)}}


def get_config():
    return Study(base=from_dict({base!r}), arms={{"causal": {{}}}}, grid=GRID, seeds="0")
"""


@pytest.mark.slow
def test_commands_are_runs(run_module, tiny_data, tmp_path):
    """Shell characters in names, floats, empty strings and booleans included."""
    base = tiny_data.config(**LM, train__steps=3, data__source_language="", eval__max_items=2)
    file, root = tmp_path / "study.py", tmp_path / "two words"
    file.write_text(FILE.format(base=to_dict(base)))
    done = run_module(
        "experiments.compare", f"--config={file}", f"--workdir={root}", "--print_commands"
    )
    assert done.status == 0, done.stderr
    assert not root.exists()
    runs = plan_sweep(runpy.run_path(str(file))["get_config"](), "", root)
    assert done.stdout.splitlines() == [command(run) for run in runs]
    python, m, module, config, *flags = shlex.split(command(runs[0]))
    assert (python, m, module) == ("python", "-m", "experiments.train")
    assert (ROOT / config.removeprefix("--config=")).exists()
    done = run_module(module, config, *flags)
    assert done.status == 0, done.stderr
    assert [is_finished(run) for run in runs] == [True, False, False, False]


def test_after_the_sweep_come_the_final_runs_and_then_nothing(finish, masking_study, tmp_path):
    arms = {"decoder": {}}
    study = masking_study(arms=arms, grid={"model.dropout": (0.0, 0.1)}, seeds="0")
    comparison = Comparison({"one": study}, "", tmp_path)
    for count in (2, 1, 0):
        runs = comparison.open_runs()
        assert len({command(run) for run in runs}) == count
        for run in runs:
            finish(run)


def test_the_directory_of_a_run_is_no_place_for_a_comparison(masking_study, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds a single run, expected a place for several"):
        Comparison({"one": masking_study()}, "", tmp_path)
