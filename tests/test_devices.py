"""Several devices write and measure what one does, whether or not the rows can be shared evenly."""

import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tiny_runs import TRANSLATION, lm_run, run_module, tiny_data, translation_run

from attn_jax import devices

pytestmark = pytest.mark.multidevice

DEVICES = """
    import jax
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", {})
"""


def test_three_devices_write_what_one_does(run_module):
    script = Path(__file__).with_name("devices_texts.py")
    done = run_module(str(script), before=DEVICES.format(3))
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    one, three = found["one"], found["three"]
    assert found["devices"] == 3
    assert (one.pop("has_params"), three.pop("has_params")) == (1, 3)
    assert one.pop("copies") == three.pop("copies") == 1  # in the memory of the CPU
    # A device that waits for another in a program is killed by XLA after a minute.
    assert three.pop("collectives") == one.pop("collectives") == []
    np.testing.assert_allclose(three.pop("scores"), one.pop("scores"), atol=1e-5)
    assert three == one
    assert [len(one[kind]) for kind in ("sample", "few", "beam")] == [5, 2, 5]
    assert len({row.index(0) if 0 in row else 6 for row in one["ended"]}) > 1
    assert all(len({str(row) for row in rows}) > 1 for rows in one.values())


def numbers(tree):
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [x for value in tree for x in numbers(value)] if isinstance(tree, list) else [tree]


@pytest.mark.parametrize("other", ["shared_positions", "translation"])
def test_three_devices_evaluate_as_one_does(run_module, lm_run, translation_run, other):
    workdir = translation_run if other == "translation" else lm_run
    about = [f"--workdir={workdir}", f"--evaluators=loss,{other}"]
    found = []
    for count in (1, 3):
        done = run_module("experiments.evaluate", *about, before=DEVICES.format(count))
        assert done.status == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1])["results"])
    assert found[0].keys() == found[1].keys() == {"loss", other}
    one, three = (numbers(results) for results in found)
    assert len(one) > 10
    for a, b in zip(one, three, strict=True):
        assert a == (pytest.approx(b, rel=1e-5) if isinstance(b, float) else b)


@pytest.mark.parametrize("parallel", ["jit", "pmap"])
def test_a_run_on_three_devices_measures_what_one_on_one_does(
    run_module, tiny_data, translation_run, tmp_path, parallel
):
    fields = TRANSLATION | {"train.parallel": parallel}
    file = tiny_data.config_file(tmp_path / "experiment.py", **fields)
    about = [f"--config={file}", f"--workdir={tmp_path / 'run'}"]
    done = run_module("experiments.train", *about, before=DEVICES.format(3))
    assert done.status == 0, done.stderr
    one, three = (
        json.loads((run / "eval/12.json").read_text())["results"]["loss"]
        for run in (translation_run, tmp_path / "run")
    )
    assert three == {
        name: pytest.approx(value, rel=1e-3) if isinstance(value, float) else value
        for name, value in one.items()
    }


@pytest.mark.parametrize("method", ["causal", "pll", "translation"])
def test_three_devices_score_as_one_does(run_module, lm_run, translation_run, tmp_path, method):
    pairs = method == "translation"
    lines = [f"{i} six two" + f"\t{i} SIX" * pairs for i in range(13)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    about = [f"--workdir={translation_run if pairs else lm_run}", f"--input={tmp_path}/lines.txt"]
    about += [] if pairs else [f"--method={method}"]
    one, three = (
        run_module("experiments.score", *about, before=DEVICES.format(count)) for count in (1, 3)
    )
    assert (one.status, three.status) == (0, 0), one.stderr + three.stderr
    scores = [np.array(done.stdout.split(), float) for done in (one, three)]
    assert len(scores[0]) == len(set(scores[0])) == 13
    np.testing.assert_allclose(*scores, rtol=1e-5)


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 2), (64, 4)])
def test_cores_of_a_cpu_become_devices(count, expected):
    with (
        mock.patch.object(devices, "cores", return_value=list(range(count))),
        mock.patch("jax.config") as config,
        mock.patch.dict(os.environ, XLA_FLAGS=""),
    ):
        config.jax_num_cpu_devices = -1
        devices.use_cores()
    config.update.assert_called_once_with("jax_num_cpu_devices", expected)


def test_a_number_of_devices_that_is_given_stays(run_module):
    script = Path(__file__).with_name("devices_texts.py")
    use = "from attn_jax.devices import use_cores; use_cores()"
    done = run_module(str(script), before=DEVICES.format(3) + f"    {use}\n")
    assert json.loads(done.stdout.splitlines()[-1])["devices"] == 3
    flag = {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
    with mock.patch.dict(os.environ, flag), mock.patch("jax.config.update") as update:
        devices.use_cores()
    update.assert_not_called()
