"""One train step: it learns, divides once, and is a pure function of state and text."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax.models.tokens import Tokens
from attn_jax.objectives import OBJECTIVES
from attn_jax.objectives.causal_lm import CausalLM
from attn_jax.objectives.losses import token_losses
from attn_jax.training.step import _cut, make_step, training_progress

PLAIN = {"optimizer__schedule": "constant", "optimizer__warmup_steps": 0}
LEARNING = PLAIN | {
    "optimizer__name": "sgd",
    "optimizer__learning_rate": 0.2,
    "train__log_every": 1,
}
DROPOUT = {"model__dropout": 0.2}
# With this optimizer the parameters move by minus the gradient.
GRADIENT = PLAIN | {
    "optimizer__name": "sgd",
    "optimizer__b1": 0.0,
    "optimizer__learning_rate": 1.0,
    "optimizer__clip_norm": 0.0,
}


# Shares of its loss that an objective may have left.
HARD = {"masked_lm": 0.75, "masked_next_token": 0.65, "prefix_lm": 0.5}
HARD |= {"span_corruption": 0.7, "prefix_span_corruption": 0.65}


@functools.cache
def compiled(new_spec, objective, **changes):
    spec, state = new_spec(objective, **changes)
    return jax.jit(make_step(spec)), state


def gradient_of(new_spec, objective, text, **changes):
    step, state = compiled(new_spec, objective, **GRADIENT, **changes)
    after, sums = step(state, text)
    return jax.tree.map(jnp.subtract, state.params, after.params), sums


def assert_close(a, b, atol=2e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol, rtol=1e-4), a, b)


def largest_difference(a, b):
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(abs(x - y).max()), a, b)))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_learns_one_batch_by_heart(new_spec, text_of, objective):
    step, state = compiled(new_spec, objective, **LEARNING)
    text = text_of(objective)
    losses = []
    for _ in range(80):
        state, sums = step(state, text)
        losses.append(float(sums["nll"] / sums["weight"]))
    assert losses[0] > 3.5  # of ln 80 = 4.4
    # Other tokens are masked, or predicted, in every step: harder.
    assert np.mean(losses[-5:]) < HARD.get(objective, 0.3) * losses[0]


@pytest.mark.parametrize(
    ("objective", "count"),
    [
        ("causal_lm", 3),
        pytest.param("translation", 3, marks=pytest.mark.slow),
        pytest.param("mixture", 3, marks=pytest.mark.slow),
        pytest.param("span_corruption", 3, marks=pytest.mark.slow),
    ],
)
def test_accumulation_changes_nothing(new_spec, text_of, objective, count):
    """T6. Micro-batches have very different weights; 8 rows in 3 pieces need an empty row."""
    text = text_of(objective)
    whole, sums = gradient_of(new_spec, objective, text)
    pieces, piece_sums = gradient_of(new_spec, objective, text, train__accumulate=count)
    assert_close(pieces, whole)
    assert_close(piece_sums, sums)
    assert sums["weight"] > 0


def test_the_mean_of_the_means_of_micro_batches_is_something_else(new_spec, text_of):
    """The negative control of the test above."""
    text = text_of("causal_lm")
    whole, sums = gradient_of(new_spec, "causal_lm", text)
    empty = jax.tree.map(jnp.zeros_like, text)
    halves = []
    for rows in (slice(0, 4), slice(4, 8)):  # of 33 and 26 targets, in rows of the same number
        half = jax.tree.map(lambda x, e, r=rows: e.at[r].set(x[r]), text, empty)
        halves.append(gradient_of(new_spec, "causal_lm", half))
    weights = [float(s["weight"]) for _, s in halves]
    assert weights[0] != weights[1]
    assert sum(weights) == sums["weight"]
    of_means = jax.tree.map(lambda a, b: (a + b) / 2, halves[0][0], halves[1][0])
    assert largest_difference(of_means, whole) > 1e-3
    once = jax.tree.map(
        lambda a, b: (a * weights[0] + b * weights[1]) / sum(weights), halves[0][0], halves[1][0]
    )
    assert_close(once, whole)


def test_a_micro_batch_has_rows_from_everywhere():
    """Rows that are neighbours lie on one device: a piece of them would leave the others idle."""
    pieces = _cut(jnp.arange(7), 3)
    assert pieces.tolist() == [[0, 3, 6], [1, 4, 0], [2, 5, 0]]


def test_micro_batches_have_dropout_of_their_own(new_spec, text_of):
    """With one key for both, twice the same rows would lose the same as once."""
    text = text_of("causal_lm")
    twice = jax.tree.map(lambda x: jnp.repeat(x[:4], 2, axis=0), text)  # each in both pieces
    once = jax.tree.map(lambda x: x.at[1::2].set(0), twice)
    for rate, differs in ((0.5, True), (0.0, False)):
        fields = {"train__accumulate": 2, "model__dropout": rate}
        a, b = (gradient_of(new_spec, "causal_lm", x, **fields)[0] for x in (twice, once))
        assert (largest_difference(a, b) > 1e-2) == differs


def test_the_gradient_equals_that_of_sentences_one_by_one(new_spec, text_of):
    """Each document of the packed rows alone, summed in a loop, divided at the end."""
    text = text_of("causal_lm")
    spec, state = new_spec("causal_lm", **GRADIENT)

    @jax.jit
    def alone(params, tokens):
        def total(params):
            batch = CausalLM()(tokens, jax.random.key(0))
            return token_losses(nnx.merge(spec.graph, params), batch).sums()["loss"]

        return jax.grad(total)(params)

    slow, count = jax.tree.map(jnp.zeros_like, state.params), 0
    for ids, segments in zip(np.asarray(text.ids), np.asarray(text.segments), strict=True):
        for segment in range(1, segments.max() + 1):
            words = ids[segments == segment]
            row = np.zeros((1, 16), np.int32)
            row[0, : len(words)] = words
            tokens = Tokens.of(jnp.asarray(row), jnp.arange(16)[None] < len(words))
            slow = jax.tree.map(jnp.add, slow, alone(state.params, tokens))
            count += len(words) - 1
    fast, sums = gradient_of(new_spec, "causal_lm", text)
    assert sums["weight"] == count
    assert_close(fast, jax.tree.map(lambda g: g / count, slow))


def test_a_batch_without_targets_changes_nothing_and_stays_finite(new_spec, text_of):
    empty = jax.tree.map(jnp.zeros_like, text_of("causal_lm"))
    gradient, sums = gradient_of(new_spec, "causal_lm", empty)
    assert sums["weight"] == sums["loss"] == sums["grad_norm"] == 0
    assert all((g == 0).all() for g in jax.tree.leaves(gradient))


def test_the_same_state_and_text_give_the_same_step_and_every_step_its_own_key(new_spec, text_of):
    """Masking and dropout are keyed by seed and step."""
    for objective, fields in {"masked_lm": LEARNING, "causal_lm": GRADIENT | DROPOUT}.items():
        step, state = compiled(new_spec, objective, **fields)
        text = text_of(objective)
        first, again = step(state, text), step(state, text)
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, first, again)))
        later = step(state.replace(step=jnp.int32(5)), text)
        other = step(state.replace(seed=jnp.uint32(1)), text)
        assert len({float(sums["nll"]) for _, sums in (first, later, other)}) == 3


def test_the_seed_of_the_config_is_that_of_the_state(new_spec):
    assert [int(new_spec(train__seed=seed)[1].seed) for seed in (0, 7)] == [0, 7]


def test_label_smoothing_is_in_the_training_loss_only(new_spec, text_of):
    text = text_of("causal_lm")
    plain, sums = gradient_of(new_spec, "causal_lm", text)
    smooth, smooth_sums = gradient_of(new_spec, "causal_lm", text, objective__label_smoothing=0.2)
    assert smooth_sums["nll"] == sums["nll"]
    assert smooth_sums["loss"] != sums["loss"]
    assert largest_difference(plain, smooth) > 1e-3


def test_the_window_holds_the_sums_since_the_last_logged_step(new_spec, text_of):
    single, state = compiled(new_spec, "causal_lm", **LEARNING)
    windowed, start = compiled(new_spec, "causal_lm", **LEARNING | {"train__log_every": 3})
    text = text_of("causal_lm")
    each, windows, states = [], [], []
    for _ in range(7):
        state, sums = single(state, text)
        each.append(sums)
        start, window = windowed(start, text)
        windows.append(window)
        states.append(start)
    assert [int(w["steps"]) for w in windows] == [1, 2, 3, 1, 2, 3, 1]
    for name in ("nll", "correct", "loss", "weight", "grad_norm"):
        for i, begin in enumerate((0, 0, 0, 3, 3, 3, 6)):
            expected = sum(float(sums[name]) for sums in each[begin : i + 1])
            assert float(windows[i][name]) == pytest.approx(expected, rel=1e-5)
            assert float(states[i].window[name]) == float(windows[i][name])
    assert int(start.step) == 7


def test_progress_goes_from_0_at_the_first_step_to_1_at_the_last():
    assert [training_progress(step, 5) for step in range(5)] == [0, 0.25, 0.5, 0.75, 1]
    assert training_progress(0, 1) == 0
