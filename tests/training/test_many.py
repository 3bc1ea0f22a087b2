"""Several runs side by side: how they are stopped, and that a directory has one trainer."""

import fcntl
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from compilation import environment

from attn_jax.config import Config
from attn_jax.data.pipeline import open_dataset
from attn_jax.errors import DivergedError, HeldError, InputError
from attn_jax.locks import hold, is_held
from attn_jax.training import many
from attn_jax.training.loop import train
from attn_jax.training.run_directory import (
    is_claimed,
    locked,
    note_divergence,
    open_run,
    refuse_diverged,
)
from tests.tiny_runs import ROOT, tiny_data

SCRIPT = """
import sys
from pathlib import Path
from attn_jax.errors import WorkError
from attn_jax.training.many import train_all
from tests.tiny_runs import Tiny

if __name__ == "__main__":
    tiny, root = Tiny(Path(sys.argv[1])), Path(sys.argv[2])
    steps = map(int, sys.argv[3].split(","))
    configs = [tiny.config(train__steps=n, train__seed=i) for i, n in enumerate(steps)]
    runs = [(config, root / str(i)) for i, config in enumerate(configs)]
    try:
        train_all(runs, workers=2)
    except WorkError as error:
        sys.exit(f"WorkError: {error}")
"""


@pytest.fixture
def stop_when(tiny_data, tmp_path):
    """Returns a function that trains runs of so many steps on two workers until a file is there."""

    def run(steps, *files):
        script, root = tmp_path / "many.py", tmp_path / "runs"
        script.write_text(SCRIPT)
        started = subprocess.Popen(
            [sys.executable, str(script), str(tiny_data.folder), str(root), steps],
            cwd=ROOT,
            env=environment()
            | {"PYTHONPATH": f"{ROOT}:{ROOT}/tests", "PATH": "", "HOME": str(tmp_path)},
            stderr=subprocess.PIPE,
            text=True,
        )
        files = [root / file for file in files]
        while not all(file.exists() and file.stat().st_size for file in files):
            assert started.poll() is None, started.stderr.read()
            time.sleep(0.2)
        started.send_signal(signal.SIGTERM)
        try:
            _, error = started.communicate(timeout=60)
        finally:
            started.kill()
        assert started.returncode == 1
        assert "WorkError: stopped by a signal" in error
        return root

    return run


def has_checkpoints(workdir):
    return any(path.name.isdigit() for path in (workdir / "checkpoints").iterdir())


@pytest.mark.slow
def test_a_stopped_comparison_saves_what_runs_and_begins_nothing_more(stop_when):
    root = stop_when("100000,100000,100000,100000", "0/metrics.jsonl", "1/metrics.jsonl")
    assert not (root / "2").exists()
    assert all(has_checkpoints(root / str(i)) for i in (0, 1))


@pytest.mark.slow
def test_a_worker_without_a_run_does_not_keep_a_stop_from_ending(stop_when):
    root = stop_when("4,100000", "0/ledger.json", "1/metrics.jsonl")
    assert has_checkpoints(root / "1")


def test_a_directory_has_one_trainer(tmp_path):
    workdir = tmp_path / "new"
    assert not is_claimed(workdir)
    with locked(workdir):
        assert is_claimed(workdir)
        with pytest.raises(HeldError, match="another process is training there"), locked(workdir):
            pytest.fail("the second one got in")
    assert not is_claimed(workdir)
    with locked(workdir):
        assert is_claimed(workdir)


HOLD = """
import sys, time
from pathlib import Path
from attn_jax.locks import hold

with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_killed_process_holds_nothing(tmp_path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    holder = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    assert is_held(path)
    holder.kill()
    holder.wait()
    assert not is_held(path)
    with hold(path):
        assert is_held(path)


def test_who_only_looks_stands_in_nobodys_way(tmp_path, monkeypatch):
    """A look is a shared lock for a moment; the claim that meets it is made again."""
    path = tmp_path / "lock"
    path.touch()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not is_held(path)
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(file, fcntl.LOCK_UN))
        with hold(path):
            assert is_held(path)


@pytest.fixture
def trained(monkeypatch):
    """Lets `train_all` only note the directories that it would train, and claim them."""
    seen = []

    def note(config, workdir, retry):
        with locked(workdir):
            refuse_diverged(workdir) if not retry else None
            seen.append(workdir.name)

    monkeypatch.setattr(many, "train", note)
    monkeypatch.setattr(many, "_prepare", lambda runs: None)
    monkeypatch.setattr(many, "POLL_SECONDS", 0.01)
    return seen


@pytest.fixture
def runs(tmp_path):
    config = Config()
    return [(config, tmp_path / name) for name in "abc"]


def test_what_others_train_is_left_to_them_and_waited_for(trained, runs):
    (_, a), (_, b), _ = runs
    with ExitStack() as others:
        release = others.enter_context(ExitStack())
        release.enter_context(locked(a))
        others.enter_context(locked(b))
        end = threading.Timer(0.3, others.close)
        end.start()
        many.train_all(runs, workers=1)
        assert not end.is_alive()
    assert trained[0] == "c"
    assert sorted(trained) == ["a", "b", "c"]


def test_who_claims_between_look_and_start_keeps_the_run(trained, runs, monkeypatch):
    """A look cannot be trusted; the claim itself is."""
    (_, a), *_ = runs
    looks = iter([False] * 3 + [True] * 5)
    monkeypatch.setattr(many, "is_claimed", lambda workdir: workdir == a and next(looks, False))
    other = ExitStack()
    other.enter_context(locked(a))
    threading.Timer(0.2, other.close).start()
    many.train_all(runs, workers=1)
    assert trained == ["b", "c", "a"]


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr(many, "cores", lambda: [2, 3, 5])
    assert [many._share(i, 2) for i in range(2)] == [[2, 5], [3]]
    assert [many._share(i, 4) for i in range(4)] == [[2], [3], [5], [2, 3, 5]]


def test_workers_too_leave_runs_to_others(trained, runs):
    (_, a), *_ = runs
    other = ExitStack()
    other.enter_context(locked(a))
    threading.Timer(0.3, other.close).start()
    with ThreadPoolExecutor(2) as pool:
        many._watch(pool, runs, 2, True, threading.Event())
    assert (sorted(trained), trained[-1]) == (["a", "b", "c"], "a")


def test_a_run_may_diverge_if_that_is_allowed(trained, runs):
    _, (_, b), _ = runs
    b.mkdir()
    note_divergence(b, "the loss is not finite")
    many.train_all(runs, workers=1, may_diverge=True)
    assert trained == ["a", "c"]
    many.train_all(runs, workers=1)  # tries again
    assert trained == ["a", "c", "a", "b", "c"]


def test_a_divergence_ends_the_others_unless_it_is_allowed(trained, runs, monkeypatch):
    def diverge(config, workdir, retry):
        raise DivergedError(f"{workdir.name} diverged")

    monkeypatch.setattr(many, "train", diverge)
    with pytest.raises(DivergedError, match="a diverged"):
        many.train_all(runs, workers=1)
    many.train_all(runs, workers=1, may_diverge=True)


def test_a_directory_that_another_process_is_just_making_is_not_foreign(monkeypatch, tmp_path):
    config, usual = Config(), Path.iterdir

    def late(folder):
        monkeypatch.setattr(Path, "iterdir", usual)
        open_run(tmp_path, config, "data")  # the other process
        return usual(folder)

    monkeypatch.setattr(Path, "iterdir", late)
    open_run(tmp_path, config, "data")
    open_run(tmp_path, config)
    with pytest.raises(InputError, match=r"begun on other data \(.* 'data' there, 'more' here\)"):
        open_run(tmp_path, config, "more")
    (tmp_path / "config.json").unlink()
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(InputError, match="is not a run directory"):
        open_run(tmp_path, config, "data")


def test_what_a_kill_left_half_written_is_no_obstacle(tiny_data, tmp_path):
    (tmp_path / "config.json.partial").write_text("{")
    (tmp_path / ".lock").touch()
    config = tiny_data.config(train__steps=4)
    open_run(tmp_path, config, open_dataset(config).fingerprint)
    (tmp_path / "tokenizer").mkdir()
    assert train(config, tmp_path)["finished"]
