"""Schedules by hand at a few steps, and what each optimizer does to parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attn_jax.config import OptimizerConfig
from attn_jax.training.optimizers import make_optimizer, make_schedule
from attn_jax.training.state import split_model
from attn_jax.validation import CHOICES

STEPS, WARMUP, PEAK = 21, 4, 0.4
ALL = CHOICES["optimizer.name"]


def rates(schedule, **fields):
    fields = {"learning_rate": PEAK, "warmup_steps": WARMUP} | fields
    rate = make_schedule(OptimizerConfig(schedule=schedule, **fields), STEPS)
    return np.asarray(jax.jit(jax.vmap(rate))(jnp.arange(STEPS)))


@pytest.mark.parametrize("schedule", CHOICES["optimizer.schedule"])
def test_all_rise_linearly_to_the_peak_and_have_no_step_of_zero(schedule):
    np.testing.assert_allclose(rates(schedule)[:5], [0.1, 0.2, 0.3, 0.4, 0.4], rtol=1e-6)
    np.testing.assert_allclose(rates(schedule, warmup_steps=1)[:2], [0.4, 0.4], rtol=1e-6)
    assert rates(schedule, warmup_steps=0)[0] == pytest.approx(PEAK)
    assert rates(schedule).max() == pytest.approx(PEAK)
    config = OptimizerConfig(schedule=schedule, learning_rate=PEAK, warmup_steps=WARMUP)
    assert float(make_schedule(config, STEPS)(0)) == pytest.approx(0.1)  # a Python number


def test_cosine_by_hand():
    """From step 4, the peak, to step 20, the last: half way at 12, a quarter at 8."""
    found = rates("cosine", final_share=0.1)
    assert found[12] == pytest.approx(0.4 * (0.1 + 0.9 / 2))
    assert found[8] == pytest.approx(0.4 * (0.1 + 0.9 * (1 + np.cos(np.pi / 4)) / 2))
    assert found[20] == pytest.approx(0.4 * 0.1)


def test_inverse_sqrt_by_hand():
    found = rates("inverse_sqrt")
    assert found[4 + 12] == pytest.approx(PEAK / 2)  # sqrt(4 / (12 + 4))
    assert found[4 + 5] == pytest.approx(PEAK * 2 / 3)


def test_wsd_by_hand():
    """17 steps follow the warm-up; the last 4 of them fall."""
    found = rates("wsd", decay_share=0.25, final_share=0.2)
    np.testing.assert_allclose(found[4:17], PEAK, rtol=1e-6)
    np.testing.assert_allclose(found[17:], [0.32, 0.24, 0.16, 0.08], rtol=1e-5)


def test_constant_stays():
    np.testing.assert_allclose(rates("constant")[4:], PEAK, rtol=1e-6)


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_the_shortest_runs_have_rates(schedule):
    for warmup in (0, 1, 2):
        config = OptimizerConfig(schedule=schedule, learning_rate=PEAK, warmup_steps=warmup)
        rate = make_schedule(config, warmup + 1)
        assert all(0 < float(rate(step)) <= PEAK + 1e-6 for step in range(warmup + 1))


def descend(name, start, gradient, steps=1, **fields):
    fields = {"learning_rate": 0.05, "schedule": "constant", "warmup_steps": 0} | fields
    optimizer = make_optimizer(OptimizerConfig(name=name, **fields), steps)

    def update(carry, _):
        params, state = carry
        updates, state = optimizer.update(gradient(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    run = lambda carry: jax.lax.scan(update, carry, length=steps)[0][0]  # noqa: E731
    return jax.jit(lambda params: run((params, optimizer.init(params))))(start)


@pytest.mark.parametrize("name", ALL)
def test_each_optimizer_descends_a_quadratic(name):
    goal = jnp.array([[0.5, -0.3], [0.2, 0.4]])
    error = lambda params: jnp.sum((params["kernel"] - goal) ** 2)  # noqa: E731
    start = {"kernel": jnp.ones((2, 2))}
    rate = 0.2 if name == "muon" else 0.05  # its updates have a root mean square of 0.2
    end = descend(name, start, jax.grad(error), steps=40, learning_rate=rate)
    assert error(end) < 0.1 * error(start)


@pytest.mark.parametrize("name", ALL)
def test_weight_decay_is_on_the_kernels_of_dense_layers_only(name, tiny):
    _, params = split_model(tiny(bias=True, positions="learned"))
    zeros = jax.tree.map(jnp.zeros_like, params)
    after = descend(name, params, lambda _: zeros, weight_decay=0.5)
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), params, after)
    by_name = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(changed)}
    decays = name in ("adamw", "lion", "muon")
    expected = {path: decays and "kernel" in path for path in by_name}
    assert by_name == expected
    assert {"embedding", "positions", "bias", "scale"} <= {
        part for path in by_name for part in path.replace("[", "").replace("]", "").split("'")
    }
    if decays:
        kernel = lambda tree: tree["stack"]["blocks"][0]["mlp"]["up"]["kernel"]  # noqa: E731
        np.testing.assert_allclose(kernel(after), kernel(params) * (1 - 0.05 * 0.5), rtol=1e-5)


def test_clipping_is_by_the_global_norm():
    start = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    gradient = lambda _: {"a": jnp.full(1, 3.0), "b": jnp.full(1, 4.0)}  # noqa: E731
    moved = lambda **fields: descend("sgd", start, gradient, b1=0.0, **fields)  # noqa: E731
    clipped = moved(clip_norm=1.0)
    np.testing.assert_allclose([clipped["a"][0], clipped["b"][0]], [-0.03, -0.04], rtol=1e-5)
    for free in (moved(clip_norm=0.0), moved(clip_norm=5.1)):
        np.testing.assert_allclose([free["a"][0], free["b"][0]], [-0.15, -0.2], rtol=1e-5)


READ = {"adamw": "b1 b2 eps", "adam": "b1 b2 eps", "lion": "b1 b2", "sgd": "b1", "muon": "b1 b2"}


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name in READ for field in READ[name].split()]
)
def test_the_numbers_reach_the_optimizer(name, field):
    """With gradients of both signs, which is all that lion looks at."""
    start = {"bias": jnp.linspace(0, 1, 20)}
    gradient = lambda p: {"bias": jnp.sin(40 * p["bias"])}  # noqa: E731
    usual = descend(name, start, gradient, 8)["bias"]
    assert not np.array_equal(usual, descend(name, start, gradient, 8, **{field: 0.3})["bias"])
