"""Four devices train as one does, however unequal their shares are."""

import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.multidevice

FOUR_DEVICES = """
    import os
    import jax
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    jax.config.update("jax_platforms", "cpu")
"""


@pytest.fixture(scope="module")
def found(run_module):
    """Losses of 20 steps, `curves`: objective -> one | jit | pmap -> values; and `dropout`."""
    done = run_module(str(Path(__file__).with_name("parallel_curves.py")), before=FOUR_DEVICES)
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == 4
    return found


@pytest.fixture(scope="module")
def curves(found):
    return found["curves"]


@pytest.mark.parametrize("objective", ["causal_lm", "masked_lm", "translation"])
@pytest.mark.parametrize("parallel", ["jit", "pmap"])
def test_four_devices_equal_one(curves, objective, parallel):
    one = np.array(curves[objective]["one"])
    np.testing.assert_allclose(curves[objective][parallel], one, rtol=1e-5)
    assert len(one) == 20
    assert one.std() > 0.02


@pytest.mark.parametrize("objective", ["causal_lm", "masked_lm"])
def test_the_mean_of_device_means_would_differ(curves, objective):
    """The negative control, T6: devices hold very different numbers of targets."""
    found = curves[objective]
    assert abs(found["mean_of_means"] - found["one"][0]) > 0.01


def test_devices_have_dropout_of_their_own(found):
    """With one key for all, the same rows on all devices would lose the same as on one."""
    on_all, on_one = found["dropout"]
    assert abs(on_all - on_one) > 1e-2
