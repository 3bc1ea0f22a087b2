"""Several devices write what one does, whether or not the rows can be shared out evenly."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import run_module

pytestmark = pytest.mark.multidevice

THREE_DEVICES = """
    import jax
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 3)
"""


def test_three_devices_write_what_one_does(run_module):
    script = Path(__file__).with_name("devices_texts.py")
    done = run_module(str(script), before=THREE_DEVICES)
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    one, three = found["one"], found["three"]
    assert found["devices"] == 3
    assert (one.pop("copies"), three.pop("copies")) == (1, 3)
    np.testing.assert_allclose(three.pop("scores"), one.pop("scores"), atol=1e-5)
    assert three == one
    assert [len(one[kind]) for kind in ("sample", "few", "beam")] == [5, 2, 5]
    assert all(len({str(row) for row in rows}) > 1 for rows in one.values())
