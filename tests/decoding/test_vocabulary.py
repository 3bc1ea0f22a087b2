"""Lanes of a vocabulary against sorting it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from attn_jax.decoding import vocabulary


@pytest.mark.parametrize("k", [1, 4, 25])
def test_the_largest_are_those_of_a_sort(k):
    """4 of 25 may share a lane, or a beam; 25 are more than there are lanes of a row."""
    rng = np.random.default_rng(0)
    B, M, W, size = 3, 2, 8, 5
    scores = rng.normal(size=(B, M, W, size)).astype(np.float32)
    scores[0, 1] += 9  # all from one beam
    scores[1, :, 3] += 9  # from one lane
    start = rng.normal(size=(B, M)).astype(np.float32)
    scores_WIN = scores.reshape(B * M, W, size).transpose(1, 2, 0)
    values, beams, tokens = jax.jit(vocabulary.top, static_argnums=2)(scores_WIN, start, k)
    whole = (scores + start[:, :, None, None]).reshape(B, -1)
    order = np.argsort(-whole, axis=1)[:, :k]
    np.testing.assert_allclose(values, np.take_along_axis(whole, order, axis=1))
    assert np.array_equal(beams * W * size + tokens, order)


def test_what_is_missing_is_minus_infinity_and_nothing_is_found_twice():
    scores = jnp.arange(3.0).reshape(3, 1, 1)
    find = jax.jit(vocabulary.top, static_argnums=2)
    values, beams, tokens = find(scores, jnp.zeros((1, 1)), 5)
    assert values.tolist() == [[2, 1, 0, -np.inf, -np.inf]]
    assert tokens[0, :3].tolist() == [2, 1, 0]
    assert (beams == 0).all()


def test_normalizers_are_never_below_a_score():
    scores = np.random.default_rng(0).normal(0, 30, (8, 5, 4)).astype(np.float32)
    scores[7, 2:, 1] = -np.inf
    found = np.asarray(jax.jit(vocabulary.normalizers)(scores))
    exact = logsumexp(scores.astype(np.float64), axis=(0, 1))
    np.testing.assert_allclose(found, exact, rtol=1e-6)
    assert (found >= scores.max(axis=(0, 1))).all()


def test_what_is_read_out_is_the_logits_and_minus_infinity_after_them(tiny, monkeypatch):
    model = tiny(num_layers=1)
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8)), jnp.float32)
    expected = np.asarray(model.logits(hidden))
    found = np.asarray(vocabulary.read_out(model, hidden))
    assert found.shape == (80, 1, 3)
    np.testing.assert_allclose(found[:, 0].T, expected, atol=1e-6)
    monkeypatch.setattr(vocabulary, "count_lanes", lambda size: 32)
    found = np.asarray(vocabulary.read_out(model, hidden)).reshape(-1, 3).T
    assert found.shape == (3, 96)
    np.testing.assert_allclose(found[:, :80], expected, atol=1e-6)
    assert (found[:, 80:] == -np.inf).all()


@pytest.mark.parametrize(
    ("size", "lanes"),
    [(1, 1), (80, 80), (256, 256), (257, 257), (2003, 256), (9712, 607), (32000, 256)],
)
def test_lanes_divide_a_vocabulary_where_they_can(size, lanes):
    assert vocabulary.count_lanes(size) == lanes
