"""Filters against slow ones in numpy, frequencies against probabilities, and seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import PAD, strip, tokens_of, with_vocabulary
from scipy.special import chdtri

from attn_jax.decoding.sampling import (
    GREEDY,
    Sampling,
    choose,
    draw,
    probabilities,
    sample,
)
from attn_jax.errors import InputError

ROWS, SIZE, LANES = 8, 5, 4
BY_ROW = np.random.default_rng(0).normal(0, 2, (ROWS, LANES * SIZE)).astype(np.float32)
BY_ROW[:, -2:] = -np.inf  # after the end of a vocabulary
SCORES = BY_ROW.T.reshape(LANES, SIZE, ROWS)


def slow_probabilities(scores, temperature, top_k, top_p, min_p):
    """Of one row: sorts, and goes through the tokens one by one."""
    weights = np.exp(scores.astype(np.float64) / temperature)
    order = np.argsort(-weights)
    kept = order[:top_k] if top_k else order
    share, nucleus = weights[kept] / weights[kept].sum(), []
    for token in kept:
        if share[: len(nucleus)].sum() < top_p:
            nucleus.append(token)
    found = np.zeros_like(weights)
    nucleus = [i for i in nucleus if weights[i] >= min_p * weights.max()]
    found[nucleus] = weights[nucleus]
    return found / found.sum()


FILTERS = {
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 5.0, "top_p": 0.5},
    "top-k": {"top_k": 3},
    "top-k of more": {"top_k": 100},
    "top-p": {"top_p": 0.7},
    "a small top-p": {"top_p": 1e-3},
    "min-p": {"min_p": 0.2},
    "all": {"temperature": 2.0, "top_k": 9, "top_p": 0.8, "min_p": 0.3},
}


@pytest.mark.parametrize("fields", FILTERS.values(), ids=FILTERS)
def test_filters_are_those_of_a_slow_loop(fields):
    fields = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | fields
    found = jax.jit(probabilities, static_argnums=1)(SCORES, Sampling(**fields))
    found = np.asarray(found, np.float64).reshape(-1, ROWS).T
    expected = np.array([slow_probabilities(row, **fields) for row in BY_ROW])
    assert np.array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found / found.sum(1, keepdims=True), expected, atol=1e-6)


def test_equal_tokens_are_kept_together():
    equal, near = [0.0, -1.0, -1.0, -2.0], [0.0, -1.0, -1.0 - 5e-7, -2.0]
    scores = np.array([equal, near], np.float32).T[:, None]
    weights = jax.jit(probabilities, static_argnums=1)(scores, Sampling(1.0, top_k=2))
    kept = [[True, True, True, False], [True, True, False, False]]
    assert (weights > 0)[:, 0].T.tolist() == kept


def test_frequencies_are_probabilities():
    """A chi-square bound that chance exceeds once in a million times; a wrong weight does."""
    count = 4000
    filtered = jax.jit(probabilities, static_argnums=1)
    weights = np.asarray(filtered(SCORES[:, :, :1], Sampling(3.0, top_k=14)))
    keys = jax.random.split(jax.random.key(0), count)
    many = jnp.broadcast_to(weights, (*weights.shape[:2], count))
    drawn = np.bincount(jax.jit(draw)(many, keys), minlength=weights.size)
    p = weights.ravel() / weights.sum()
    assert (p > 0).sum() == 14
    assert (drawn[p == 0] == 0).all()

    def chi_square(p):
        expected = count * p[p > 0]
        return ((drawn[p > 0] - expected) ** 2 / expected).sum()

    bound = chdtri(13, 1e-6)
    assert chi_square(p) < bound
    other = p * np.where(np.arange(len(p)) == p.argmax(), 1.5, 1)
    assert chi_square(other / other.sum()) > bound


def test_the_likeliest_alone_is_greedy():
    best = BY_ROW.argmax(axis=1)
    keys = jax.random.split(jax.random.key(0), ROWS)
    for how in (GREEDY, Sampling(9.0, top_k=1)):
        assert np.array_equal(jax.jit(choose, static_argnums=1)(SCORES, how, keys), best)


PROMPTS = [[1, 2, 4, 5, 7], [8], [7, 2, 1], [2, 2], [8], [5]]
HOW = Sampling(1.5, top_k=8, top_p=0.95, min_p=0.01, seed=4)


def test_a_text_depends_on_seed_and_index_only(tiny):
    model = with_vocabulary(tiny(num_layers=1), 9)
    ends = {"max_new": 7, "eos": 8, "pad": PAD}

    def run(rows, indices, how=HOW):
        prompt = tokens_of([PROMPTS[i] for i in rows])
        return np.asarray(sample(model, prompt, sampling=how, indices=np.array(indices), **ends))

    rows = np.arange(6)
    together = run(rows, rows)
    assert np.array_equal(run(rows[::-1], rows[::-1])[::-1], together)
    assert np.array_equal(run([2], [2])[0], together[2])  # alone
    assert not np.array_equal(run(rows, rows + 1), together)
    assert not np.array_equal(run(rows, rows, Sampling(1.5, 8, 0.95, 0.01, seed=5)), together)
    assert together[1].tolist() != together[4].tolist()  # the same prompt, another index
    lengths = [len(strip(ids, 8)) for ids in together]  # nothing after <eos>
    assert len(set(lengths)) > 2


def test_each_step_draws_anew(tiny):
    """So hot that all tokens are equally likely: one key for all steps would draw one token."""
    model = with_vocabulary(tiny(num_layers=1), 9)
    hot = Sampling(1000.0)
    written = sample(model, tokens_of(PROMPTS), sampling=hot, max_new=12, eos=99, pad=PAD)
    assert all(len(set(row)) > 3 for row in np.asarray(written).tolist())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1.0}, r"temperature = -1\.0: expected 0, or from 0\.001 to 1000"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"temperature": 1.0, "top_k": -1}, "top_k = -1: expected at least 0"),
        ({"temperature": 1.0, "top_p": 0.0}, r"top_p = 0\.0: expected above 0"),
        ({"temperature": 1.0, "top_p": 1.1}, r"top_p = 1\.1: expected above 0 and at most 1"),
        ({"temperature": 1.0, "min_p": 1.1}, r"min_p = 1\.1: expected from 0"),
        ({"seed": -1}, "seed = -1: expected from 0 to 2147483647"),
        ({"top_p": 0.9}, r"top_p = 0\.9: expected temperature > 0"),
        ({"top_k": 3}, "top_k = 3: expected temperature > 0"),
        ({"seed": 5}, "seed = 5: expected temperature > 0"),
    ],
)
def test_what_is_not_allowed_is_said(fields, message):
    with pytest.raises(InputError, match=message):
        Sampling(**fields)
