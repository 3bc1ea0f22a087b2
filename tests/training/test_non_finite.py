"""A run that diverges stops with one line, and keeps its last good state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import LM, contents, read_lines, saved_state

from attn_jax.errors import DivergedError
from attn_jax.training.loop import train
from attn_jax.training.parallel import Jit


def is_finite(workdir, step):
    params = saved_state(workdir, step)["params"]
    return all(np.isfinite(x).all() for x in jax.tree.leaves(params))


def explode_at(patch, step):
    """Spoils the parameters after one step, which leaves the loss of that step finite."""
    compiled = Jit.compile

    def compile_bomb(self, spec):
        good = compiled(self, spec)

        def bad(state, text):
            state, sums = good(state, text)
            factor = jnp.inf if int(state.step) == step else 1.0
            return state.replace(params=jax.tree.map(lambda x: x * factor, state.params)), sums

        return bad

    patch.setattr(Jit, "compile", compile_bomb)


@pytest.mark.parametrize("step", [7, 10])
def test_the_last_good_state_is_kept(monkeypatch, tiny_data, tmp_path, step):
    """Step 10 is one at which the state, but not its loss, is bad when it should be saved."""
    workdir, config = tmp_path / "run", tiny_data.config(**LM)
    with monkeypatch.context() as patch:
        explode_at(patch, step)
        with pytest.raises(DivergedError) as caught:
            train(config, workdir)
    message = str(caught.value)
    found = {7: 8, 10: 10}[step]  # the step that is logged, or saved, next
    assert f"not finite at step {found}" in message
    assert f"the checkpoint of step 5 is good in {workdir}" in message
    assert "optimizer.learning_rate" in message
    assert "\n" not in message
    assert [path.name for path in (workdir / "checkpoints").iterdir()] == ["5"]
    assert is_finite(workdir, 5)
    assert all(np.isfinite(line["loss"]) for line in read_lines(workdir) if "loss" in line)
    assert not (workdir / "ledger.json").exists()
    before = contents(workdir)
    with pytest.raises(DivergedError, match="the checkpoint of step 5 is good"):
        train(config, workdir, retry=False)
    assert contents(workdir) == before
    # From there the same command goes on.
    assert train(config, workdir)["finished"]
    assert is_finite(workdir, 12)
    assert train(config, workdir, retry=False)["finished"]


def test_a_learning_rate_that_explodes(tiny_data, tmp_path):
    fields = {"optimizer.name": "sgd", "optimizer.learning_rate": 1e30, "optimizer.clip_norm": 0.0}
    with pytest.raises(DivergedError, match=r"not finite at step \d.*nothing was saved"):
        train(tiny_data.config(**LM | fields), tmp_path / "run")
    assert not list((tmp_path / "run/checkpoints").iterdir())
