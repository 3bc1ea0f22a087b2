"""A trained run at one step, and on average over several."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from tiny_runs import lm_run, saved_state, tiny_data

from attn_jax.config import TrainConfig
from attn_jax.errors import InputError, WorkError
from attn_jax.training.checkpoints import Checkpoints, _Schedule
from attn_jax.training.restore import restore_run


def saved(workdir, step):
    return jax.tree.leaves(saved_state(workdir, step)["params"])


def test_the_newest_step_or_the_one_asked_for(lm_run):
    for run, step in ((restore_run(lm_run), 12), (restore_run(lm_run, 5), 5)):
        assert (run.step, run.steps) == (step, [step])
        for got, expected in zip(jax.tree.leaves(run.params), saved(lm_run, step), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_the_average_is_that_of_the_last_checkpoints(lm_run):
    run = restore_run(lm_run, average_last=3)
    assert (run.step, run.steps) == (12, [5, 10, 12])
    each = [saved(lm_run, step) for step in run.steps]
    for got, *values in zip(jax.tree.leaves(run.params), *each, strict=True):
        np.testing.assert_allclose(got, np.mean(values, axis=0, dtype=np.float64), atol=1e-6)
        assert got.dtype == np.float32
    assert restore_run(lm_run, 10, average_last=2).steps == [5, 10]


@pytest.mark.parametrize(
    ("step", "count", "said"),
    [
        (0, 4, "average_last = 4: .* has 3 up to step 12, not .*; there are: 5, 10, 12"),
        (5, 2, "average_last = 2: .* has 1 up to step 5"),
        (7, 1, "no checkpoint of step 7 in .*; there are: 5, 10, 12"),
        (3, 1, "no checkpoint of step 3"),
    ],
)
def test_what_was_not_saved_is_refused(lm_run, step, count, said):
    with pytest.raises(InputError, match=said):
        restore_run(lm_run, step, count)


def test_scheduled_checkpoints_stay_whatever_a_stop_saved():
    schedule = _Schedule(TrainConfig(steps=12, checkpoint_every=5, keep_checkpoints=2))

    def kept(*steps):
        infos = [SimpleNamespace(step=step) for step in steps]
        found = schedule.should_preserve(infos, context=None)
        return [step for step, stays in zip(steps, found, strict=True) if stays]

    assert kept(5, 7) == [5, 7]
    assert kept(5, 7, 10) == [5, 10]
    assert kept(5, 10, 11) == [5, 10, 11]
    assert kept(5, 10, 11, 12) == [10, 12]


def test_a_signal_while_reading_is_no_damage(tmp_path):
    with (
        Checkpoints(tmp_path, TrainConfig()) as checkpoints,
        pytest.raises(WorkError, match=r"^stopped by a signal$"),
        checkpoints._reading(5),
    ):
        raise WorkError("stopped by a signal")


def test_other_parameters_have_another_fingerprint(lm_run):
    runs = [restore_run(lm_run, step) for step in (12, 12, 10)]
    assert runs[0].fingerprint == runs[1].fingerprint != runs[2].fingerprint
