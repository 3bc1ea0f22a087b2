"""Several runs side by side: how they are stopped, and that a directory has one trainer."""

import signal
import subprocess
import sys
import time

import pytest
from compilation import environment

from attn_jax.errors import InputError
from attn_jax.training.loop import train
from attn_jax.training.run_directory import locked, open_run
from tests.tiny_runs import ROOT, tiny_data

SCRIPT = """
import sys
from pathlib import Path
from attn_jax.errors import WorkError
from attn_jax.training.many import train_all
from tests.tiny_runs import Tiny

if __name__ == "__main__":
    tiny, root = Tiny(Path(sys.argv[1])), Path(sys.argv[2])
    configs = [tiny.config(train__steps=100_000, train__seed=i) for i in range(4)]
    runs = [(config, root / str(i)) for i, config in enumerate(configs)]
    try:
        train_all(runs, workers=2)
    except WorkError as error:
        sys.exit(f"WorkError: {error}")
"""


@pytest.mark.slow
def test_a_stopped_comparison_saves_what_runs_and_begins_nothing_more(tiny_data, tmp_path):
    script = tmp_path / "many.py"
    script.write_text(SCRIPT)
    root = tmp_path / "runs"
    started = subprocess.Popen(
        [sys.executable, str(script), str(tiny_data.folder), str(root)],
        cwd=ROOT,
        env=environment()
        | {"PYTHONPATH": f"{ROOT}:{ROOT}/tests", "PATH": "", "HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    logs = [root / str(i) / "metrics.jsonl" for i in (0, 1)]
    while not all(log.exists() and log.stat().st_size for log in logs):
        assert started.poll() is None, started.stderr.read()
        time.sleep(0.2)
    started.send_signal(signal.SIGTERM)
    _, error = started.communicate(timeout=60)
    assert started.returncode == 1
    assert "WorkError: stopped by a signal" in error
    assert not (root / "2").exists()
    for i in (0, 1):
        assert [path for path in (root / str(i) / "checkpoints").iterdir() if path.name.isdigit()]


def test_a_directory_has_one_trainer(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with locked(tmp_path), pytest.raises(InputError, match="another process is training there"):  # noqa: SIM117
        with locked(tmp_path):
            pytest.fail("the second one got in")
    with locked(tmp_path):
        assert (tmp_path / "config.json").read_text() == "{}"


def test_what_a_kill_left_half_written_is_no_obstacle(tiny_data, tmp_path):
    (tmp_path / "config.json.partial").write_text("{")
    config = tiny_data.config(train__steps=4)
    open_run(tmp_path, config)
    (tmp_path / "tokenizer").mkdir()
    assert train(config, tmp_path)["finished"]
