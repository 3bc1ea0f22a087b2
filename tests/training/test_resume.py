"""N steps equal k steps, a stop, and N - k more: bit for bit, whatever stopped the run."""

import itertools
import json
import os
import shutil
import signal

import jax
import pytest
from tiny_runs import (
    LM,
    contents,
    read_lines,
    same_tree,
    saved_state,
    without_times,
)

from attn_jax.errors import InputError, WorkError
from attn_jax.files import read_json
from attn_jax.training import loop
from attn_jax.training.checkpoints import Checkpoints
from attn_jax.training.loop import train
from attn_jax.training.restore import restore_run

STEPS = 12  # logged every 4, evaluated every 6, saved every 5


@pytest.fixture
def stopped(monkeypatch, tiny_data, tmp_path):
    """Returns a function that trains until SIGTERM comes, in so many steps from here."""

    def run(steps, workdir=tmp_path / "run", **changes):
        calls = itertools.count(1)
        read = loop.read_tokens

        def read_and_stop(text):
            if next(calls) == steps:
                os.kill(os.getpid(), signal.SIGTERM)
            return read(text)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "read_tokens", read_and_stop)
            with pytest.raises(WorkError) as caught:
                train(tiny_data.config(**LM | changes), workdir)
        return workdir, str(caught.value)

    return run


def assert_same_run(workdir, other):
    """Parameters, optimizer, logs, evaluation and ledger are the same; only times may differ."""
    assert same_tree(saved_state(workdir, STEPS), saved_state(other, STEPS))
    assert without_times(read_lines(workdir)) == without_times(read_lines(other))
    assert read_json(workdir / f"eval/{STEPS}.json") == read_json(other / f"eval/{STEPS}.json")
    ledgers = [read_json(path / "ledger.json") for path in (workdir, other)]
    assert without_times(ledgers)[0] == without_times(ledgers)[1]


def test_stops_change_nothing(stopped, tiny_data, lm_run):
    """Before the first log and checkpoint, at an evaluation, between logs, at a log."""
    reached = 0
    for steps in (2, 4, 1, 1, 3):
        workdir, message = stopped(steps)
        reached += steps
        assert f"after step {reached} of {STEPS}" in message
        assert str(workdir / "checkpoints") in message
        assert restore_run(workdir).step == reached
        assert not (workdir / "ledger.json").exists()
    train(tiny_data.config(**LM), workdir)
    assert_same_run(workdir, lm_run)
    assert read_json(workdir / "ledger.json")["seconds"] > 0
    averages = [restore_run(path, average_last=3) for path in (workdir, lm_run)]
    assert averages[0].steps == [5, 10, 12]  # and not those of the stops
    assert averages[0].fingerprint == averages[1].fingerprint


def test_a_stop_at_the_last_step_is_a_finished_run(monkeypatch, tiny_data, lm_run, tmp_path):
    calls = itertools.count(1)
    read = loop.read_tokens
    stop = lambda: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr(
        loop, "read_tokens", lambda text: (next(calls) == STEPS and stop(), read(text))[1]
    )
    train(tiny_data.config(**LM), tmp_path / "run")
    assert_same_run(tmp_path / "run", lm_run)


def test_another_seed_is_another_run(tiny_data, lm_run, tmp_path):
    """The negative control: the comparison sees differences."""
    train(tiny_data.config(**LM, train__seed=1), tmp_path / "run")
    assert not same_tree(saved_state(tmp_path / "run", STEPS), saved_state(lm_run, STEPS))
    assert without_times(read_lines(tmp_path / "run")) != without_times(read_lines(lm_run))


def test_the_place_in_the_data_must_be_restored(stopped, monkeypatch, tiny_data, lm_run):
    """T9: with the iterator at its beginning, the result is another."""
    workdir, _ = stopped(6)
    restore = Checkpoints.restore

    def without_data(self, like, iterator):
        from attn_jax.data.pipeline import open_dataset

        return restore(self, like, open_dataset(tiny_data.config(**LM)).train_batches(0))

    monkeypatch.setattr(Checkpoints, "restore", without_data)
    train(tiny_data.config(**LM), workdir)
    assert not same_tree(saved_state(workdir, STEPS), saved_state(lm_run, STEPS))


KILL = """
    import os, signal
    from attn_jax.training import loop
    read, left = loop.read_tokens, {steps}

    def read_and_die(text):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(text)

    loop.read_tokens = read_and_die
"""


def test_kills_change_nothing(run_module, tiny_data, lm_run, tmp_path):
    """SIGKILL while a checkpoint is being saved, and between two; then the same command again."""
    config, workdir = tmp_path / "config.py", tmp_path / "run"
    tiny_data.config_file(config, **LM)
    command = ("experiments.train", f"--config={config}", f"--workdir={workdir}")
    for steps in (6, 4):
        assert run_module(*command, before=KILL.format(steps=steps)).status == -signal.SIGKILL
        assert not (workdir / "ledger.json").exists()
    done = run_module(*command)
    assert (done.status, done.stdout.count("\n")) == (0, 1)
    assert_same_run(workdir, lm_run)


def test_a_kill_after_the_last_checkpoint_leaves_only_the_evaluation(tiny_data, lm_run, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(lm_run, workdir)
    (workdir / "ledger.json").unlink()
    shutil.rmtree(workdir / "eval")
    train(tiny_data.config(**LM), workdir)
    assert_same_run(workdir, lm_run)


def test_lines_of_lost_steps_are_dropped_and_a_partial_line_is_tolerated(
    stopped, tiny_data, lm_run
):
    workdir, _ = stopped(6)
    kept = read_lines(workdir)
    assert [line["step"] for line in kept] == [4, 6]
    lost = json.dumps({"step": 8, "split": "train", "loss": -1.0})
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write(f'{lost}\n{{"step": 12, "split": "tr')
    train(tiny_data.config(**LM), workdir)
    assert_same_run(workdir, lm_run)


@pytest.mark.slow
def test_half_written_checkpoints_are_ignored(stopped, tiny_data, lm_run):
    workdir, _ = stopped(6)
    for step in (7, 10):
        half = workdir / f"checkpoints/{step}.orbax-checkpoint-tmp-1"
        shutil.copytree(workdir / "checkpoints/6", half)
        (half / "_CHECKPOINT_METADATA").unlink()
        shutil.rmtree(half / "data")
    train(tiny_data.config(**LM), workdir)
    assert_same_run(workdir, lm_run)


def test_the_last_save_is_whole_when_training_returns(tiny_data, tmp_path):
    """T10: saving is asynchronous."""
    workdir = tmp_path / "run"
    train(tiny_data.config(**LM, train__checkpoint_every=100), workdir)
    assert [path.name for path in (workdir / "checkpoints").iterdir()] == [str(STEPS)]
    assert saved_state(workdir, STEPS)["step"] == STEPS
    assert restore_run(workdir).step == STEPS


@pytest.mark.slow
def test_old_checkpoints_are_removed_if_asked(tiny_data, lm_run, tmp_path):
    fields = LM | {"train.checkpoint_every": 2}
    train(tiny_data.config(**fields, train__keep_checkpoints=2), tmp_path / "run")
    names = lambda workdir: sorted(int(p.name) for p in (workdir / "checkpoints").iterdir())  # noqa: E731
    assert names(tmp_path / "run") == [10, 12]
    assert names(lm_run) == [5, 10, 12]  # 0 keeps all


def test_a_finished_run_is_left_as_it_is(tiny_data, lm_run):
    before = contents(lm_run)
    ledger = train(tiny_data.config(**LM), lm_run)
    assert ledger == read_json(lm_run / "ledger.json")
    assert contents(lm_run) == before


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_of_another_config_is_refused(stopped, tiny_data, lm_run, finished):
    """T14: the message lists the fields that differ, and nothing is touched."""
    workdir = lm_run if finished else stopped(2)[0]
    before = contents(workdir)
    other = tiny_data.config(**LM, optimizer__b2=0.5, train__steps=20)
    with pytest.raises(InputError) as caught:
        train(other, workdir)
    assert "optimizer.b2: 0.98 there, 0.5 here" in str(caught.value)
    assert "train.steps: 12 there, 20 here" in str(caught.value)
    assert "optimizer.b1" not in str(caught.value)
    assert contents(workdir) == before


def test_a_foreign_folder_is_refused_and_an_empty_one_used(tiny_data, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="exists, and is not a run directory"):
        train(tiny_data.config(**LM), foreign)
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]


def test_rows_that_processes_cannot_share_are_refused_before_anything_is_written(
    monkeypatch, tiny_data, tmp_path
):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    with pytest.raises(InputError, match="4 rows cannot be divided over 3 processes"):
        train(tiny_data.config(**LM), tmp_path / "run")
    assert not (tmp_path / "run").exists()
