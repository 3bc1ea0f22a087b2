"""Work that fails: exit status 1, one line that says what was saved, and a way on."""

import shutil

import pytest
from tiny_runs import (
    LM,
    TRAIN,
    flag,
    lm_run,
    run_module,
    tiny_data,
    train_command,
)

STOP = """
    import os, signal
    from attn_jax.training import loop
    read = loop.read_tokens
    loop.read_tokens = lambda text: (os.kill(os.getpid(), signal.SIGTERM), read(text))[1]
"""


def test_a_stopped_run_has_status_1(run_module, train_command, tmp_path):
    done = run_module(*train_command(**LM), before=STOP)
    assert done.status == 1
    line = done.stderr.splitlines()[-1]  # the progress bar comes before it
    assert line.startswith("error: stopped by a signal after step 1 of 12")
    assert f"{tmp_path / 'run'}/checkpoints" in line
    assert "the same command goes on" in line
    assert "Traceback" not in done.stderr


STOP_OUTSIDE = """
    import os, signal
    from attn_jax.training import loop
    loop.{} = lambda *_, **__: os.kill(os.getpid(), signal.{})
"""


@pytest.mark.parametrize(
    ("place", "number"), [("open_dataset", "SIGTERM"), ("Evaluation.run", "SIGINT")]
)
def test_a_stop_before_or_after_the_steps_has_status_1(
    run_module, train_command, tmp_path, place, number
):
    done = run_module(*train_command(**LM), before=STOP_OUTSIDE.format(place, number))
    assert done.status == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: stopped by a signal before the first step or after the last one")
    assert f"{tmp_path / 'run'} holds is whole, and the same command goes on" in line
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run/checkpoints/12").exists() == (place == "Evaluation.run")


DIVERGE = ("optimizer.name=sgd", "optimizer.learning_rate=1e30", "optimizer.clip_norm=0")


def test_a_run_that_diverges_has_status_1(run_module, train_command):
    flags = [f"--config.{field}" for field in DIVERGE]
    done = run_module(*train_command(*flags, **LM))
    assert done.status == 1
    assert "not finite at step" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


MEMORY = """
    import jax
    from attn_jax.training import loop

    def fail(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")

    loop.make_optimizer = fail
"""


@pytest.mark.slow
def test_want_of_memory_has_status_1(run_module, train_command):
    done = run_module(*train_command(**LM), before=MEMORY)
    assert done.status == 1
    assert done.stderr.startswith("error: out of memory (RESOURCE_EXHAUSTED: ")
    assert done.stderr.endswith("in another workdir\n")


FULL_DISK_IN_ORBAX = """
    import orbax.checkpoint as ocp

    def fail(self, directory, *args, **kwargs):
        raise ValueError("RESOURCE_EXHAUSTED: error writing; " + "details " * 99)

    ocp.StandardCheckpointHandler.async_save = fail
"""


@pytest.mark.slow
def test_a_full_disk_in_a_checkpoint_has_status_1(run_module, train_command, tmp_path):
    done = run_module(*train_command(**LM), before=FULL_DISK_IN_ORBAX)
    assert done.status == 1
    line = done.stderr.splitlines()[-1]
    assert f"{tmp_path / 'run'}/checkpoints: a checkpoint cannot be written" in line
    assert "none is whole yet" in line
    assert len(line) < 400
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_damaged_checkpoints(run_module, train_command, lm_run, tmp_path):
    """One line that names the folder; without it, training goes on from the one before."""
    run = tmp_path / "run"
    shutil.copytree(lm_run, run)
    (run / "ledger.json").unlink()
    for file in (run / "checkpoints/12/state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    for command in (train_command(**LM), ("experiments.evaluate", f"--workdir={run}")):
        done = run_module(*command)
        assert done.status == 2
        line = done.stderr.splitlines()[-1]
        assert f"error: {run}/checkpoints/12: damaged checkpoint" in line
    shutil.copytree(lm_run / "checkpoints/12", run / "checkpoints/12", dirs_exist_ok=True)
    (run / "checkpoints/12/totals/metadata").write_text('{"tokens": "x"}')
    done = run_module(*train_command(**LM))
    assert done.status == 2
    assert "checkpoints/12: damaged checkpoint (expected tokens, targets" in done.stderr
    shutil.rmtree(run / "checkpoints/12")
    assert run_module(*train_command(**LM)).status == 0
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").touch()
    done = run_module("experiments.evaluate", f"--workdir={run}")
    assert (done.status, done.stderr.count("\n")) == (2, 1)
    assert f"{run}/checkpoints: is a file" in done.stderr


FULL_DISK = """
    from attn_jax.training import loop

    def fail(path, text):
        raise OSError(28, "No space left on device", str(path))

    loop.write_whole = fail
"""


@pytest.mark.slow
def test_a_full_disk_has_status_1(run_module, train_command, tmp_path):
    done = run_module(*train_command(**LM), before=FULL_DISK)
    assert done.status == 1
    line = done.stderr.splitlines()[-1]
    assert "No space left on device" in line
    assert "the same command goes on" in line
    assert "Traceback" not in done.stderr
    # It does, from the last step.
    done = run_module(*train_command(**LM))
    assert done.status == 0
    assert (tmp_path / "run/ledger.json").exists()
