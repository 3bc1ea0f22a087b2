"""Two processes of JAX's own runtime train as one does."""

import shutil
import socket
import subprocess
import sys
from functools import partial

import jax
import numpy as np
import pytest
from tiny_runs import LM, ROOT, read_lines, same_tree, saved_state

from attn_jax.training.loop import train

pytestmark = [pytest.mark.multidevice, pytest.mark.slow]


def train_together(config, workdir, count=2):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "experiments.train", f"--config={config}"]
    command += [f"--workdir={workdir}", "--distributed", f"--coordinator=127.0.0.1:{port}"]
    command += [f"--num_processes={count}"]
    started = [
        subprocess.Popen([*command, f"--process_id={i}"], cwd=ROOT, stderr=subprocess.PIPE)
        for i in range(count)
    ]
    for process in started:
        _, error = process.communicate(timeout=240)
        assert process.returncode == 0, error.decode()


def test_two_processes_equal_one_and_resume_as_two_or_one(tiny_data, tmp_path):
    together, alone = tmp_path / "together", tmp_path / "alone"
    fields = LM | {"data.batch_tokens": 64, "train.checkpoint_every": 5}
    train_together(tiny_data.config_file(tmp_path / "config.py", **fields), together)
    train(tiny_data.config(**fields), alone)
    losses = [
        [line["loss"] for line in read_lines(workdir) if line["split"] == "train"]
        for workdir in (together, alone)
    ]
    assert len(losses[0]) == 3
    np.testing.assert_allclose(*losses, rtol=1e-5)
    # From the checkpoint before, bit for bit.
    last = saved_state(together, 12)
    shutil.rmtree(together / "checkpoints/12")
    (together / "ledger.json").unlink()
    train_together(tmp_path / "config.py", together)
    assert same_tree(saved_state(together, 12), last)
    # From the same, as one process: the same batches, summed in another order.
    shutil.rmtree(together / "checkpoints/12")
    (together / "ledger.json").unlink()
    train(tiny_data.config(**fields), together)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, saved_state(together, 12)["params"], last["params"])
