"""Losses are sums, in float32, divided once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax.models.tokens import Tokens
from attn_jax.objectives.batch import Batch
from attn_jax.objectives.causal_lm import CausalLM
from attn_jax.objectives.losses import TokenLosses, cross_entropy, token_losses

KEY = jax.random.key(0)
IDS = jnp.asarray(np.random.default_rng(0).integers(7, 80, (6, 6)), jnp.int32)
ZERO = np.zeros(1, np.int32)
# Rows of 6, 5, .. 1 tokens.
TOKENS = Tokens.of(IDS, jnp.arange(6)[None] < 6 - jnp.arange(6)[:, None])
BATCH = jax.jit(CausalLM())(TOKENS, KEY)


@partial(jax.jit, static_argnums=(0, 4))
def _compiled(graph, params, batch, key, smoothing):
    return token_losses(nnx.merge(graph, params), batch, key, smoothing)


def losses_of(model, batch, key=None, label_smoothing=0.0):
    """`token_losses`, compiled and in numpy."""
    losses = _compiled(*nnx.split(model), batch, key, label_smoothing)
    return jax.tree.map(np.asarray, losses)


@partial(jax.jit, static_argnums=0)
def _logits(graph, params, batch):
    model = nnx.merge(graph, params)
    return model.logits(model(batch.inputs, batch.source))


def logits_of(model, batch):
    return np.asarray(_logits(*nnx.split(model), batch))


def slow_losses(model, batch, smoothing=0.0):
    """Cross-entropy with the smoothed distribution written out, in float64, one target a time."""
    logits = logits_of(model, batch).astype(np.float64)
    batch = jax.tree.map(np.asarray, batch)
    B, N = batch.targets.shape
    nll, loss, correct = np.zeros((B, N)), np.zeros((B, N)), np.zeros((B, N))
    for b in range(B):
        for n in range(N):
            column = n if batch.at is None else int(batch.at[b, n])
            scores = logits[b, column]
            log_p = scores - scores.max()
            log_p -= np.log(np.exp(log_p).sum())
            wanted = np.full(len(log_p), smoothing / len(log_p))
            wanted[batch.targets[b, n]] += 1 - smoothing
            nll[b, n], loss[b, n] = -log_p[batch.targets[b, n]], -(wanted * log_p).sum()
            correct[b, n] = log_p.argmax() == batch.targets[b, n]
    return nll, correct, loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_token_losses_equal_slow_cross_entropy(tiny, smoothing):
    model = tiny(num_layers=1)
    targets = np.array(BATCH.targets)
    targets[0] = logits_of(model, BATCH)[0].argmax(-1)  # some that are right
    batch = BATCH.replace(targets=jnp.asarray(targets))
    got = losses_of(model, batch, label_smoothing=smoothing)
    nll, correct, loss = slow_losses(model, batch, smoothing)
    np.testing.assert_allclose(got.nll, nll, atol=1e-5)
    np.testing.assert_allclose(got.loss, loss, atol=1e-5)
    assert np.array_equal(got.correct, correct)
    assert 6 <= correct.sum() < 36
    assert np.array_equal(got.weights, batch.weights)
    assert (smoothing == 0) == np.array_equal(got.nll, got.loss)


def test_label_smoothing_by_hand():
    """Of three words with probabilities 1/2, 1/4, 1/4, the first is right; 0.3 is spread."""
    table = jnp.asarray(np.log([[0.5], [0.25], [0.25]]), jnp.float32)
    nll, evenly, correct = jax.jit(cross_entropy)(np.ones((1, 1), np.float32), table, ZERO)
    expected = 0.8 * np.log(2) + 0.2 * np.log(4)  # 0.7 + 0.1 on the first, 0.1 on each other
    np.testing.assert_allclose(0.7 * nll[0] + 0.3 * evenly[0], expected, rtol=1e-6)
    np.testing.assert_allclose(nll[0], np.log(2), rtol=1e-6)
    assert correct.tolist() == [1.0]


def plain_cross_entropy(hidden, table, targets):
    log_p = jax.nn.log_softmax(hidden @ table.T)
    nll = -jnp.take_along_axis(log_p, targets[:, None], axis=-1)[:, 0]
    return nll, -log_p.mean(-1), nll


def loss_gradients(function):
    """Of a mixture of both losses in which every target has a weight of its own."""
    rng = np.random.default_rng(0)
    hidden, table = (rng.normal(size=(n, 4)).astype(np.float32) for n in (5, 7))
    targets, weights = rng.integers(0, 7, 5, np.int32), rng.normal(size=(2, 5)).astype(np.float32)

    def total(hidden, table, targets, weights):
        nll, evenly, _ = function(hidden, table, targets)
        return jnp.sum(nll * weights[0] + evenly * weights[1])

    return jax.jit(jax.grad(total, (0, 1)))(hidden, table, targets, weights)


def test_the_gradient_by_hand_equals_the_automatic_one():
    by_hand, automatic = loss_gradients(cross_entropy), loss_gradients(plain_cross_entropy)
    for got, expected in zip(by_hand, automatic, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
        assert abs(np.asarray(expected)).max() > 0.1


@pytest.mark.parametrize("most", [7, 15, 34])
def test_pieces_equal_the_whole(most):
    """One, two and four targets at a time, of five; not all logits are there at once."""
    in_pieces = partial(cross_entropy, most_logits=most)
    for got, expected in zip(loss_gradients(in_pieces), loss_gradients(cross_entropy), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)
    hidden = jnp.ones((5, 4))
    args = hidden, jnp.eye(7, 4), jnp.arange(5)
    for got, expected in zip(in_pieces(*args), cross_entropy(*args), strict=True):
        assert np.array_equal(got, expected)
    shapes = str(jax.make_jaxpr(jax.grad(lambda h: in_pieces(h, *args[1:])[0].sum()))(hidden))
    assert "f32[5,7]" not in shapes


def test_large_logits_do_not_overflow():
    hidden, table = np.full((1, 1), 1e3, np.float32), np.array([[1e3], [-1e3]], np.float32)
    nll, evenly, _ = jax.jit(cross_entropy)(hidden, table, ZERO)
    assert nll.tolist() == [0.0]
    assert np.isfinite(evenly).all()


def test_gathered_places_equal_all_places_with_zero_weights(tiny):
    model = tiny(num_layers=1, architecture="encoder")
    at = np.array([[5, 0], [2, 1], [3, 0], [0, 1], [1, 0], [0, 1]])
    some = np.array([[1, 1], [1, 1], [0, 1], [1, 0], [0, 0], [1, 0]], np.float32)
    weights = np.zeros((6, 6), np.float32)
    np.put_along_axis(weights, at, some, axis=1)
    targets = np.take_along_axis(np.asarray(IDS), at, axis=1)
    gathered = Batch(TOKENS.bidirectional(), *map(jnp.asarray, (targets, some, at)))
    full = Batch(TOKENS.bidirectional(), IDS, jnp.asarray(weights))
    sums = [losses_of(model, batch, label_smoothing=0.1).sums() for batch in (gathered, full)]
    for name in ("nll", "correct", "loss", "weight"):
        np.testing.assert_allclose(sums[0][name], sums[1][name], rtol=1e-5)
    assert sums[0]["weight"] == 7


def test_sums_divided_once_equal_the_mean_over_unequal_pieces():
    """T6: pieces of a batch hold different numbers of targets."""
    rng = np.random.default_rng(0)
    values = [rng.uniform(0, 5, (6, 6)).astype(np.float32) for _ in range(3)]
    total = jax.jit(TokenLosses.sums)
    whole = TokenLosses(*values, np.asarray(BATCH.weights))
    counted = np.asarray(BATCH.weights) > 0
    sums = total(whole)
    assert sums["weight"] == counted.sum() == 15
    pieces = [total(jax.tree.map(lambda x: x[rows], whole)) for rows in (slice(1), slice(1, 6))]  # noqa: B023
    for name, value in zip(("nll", "correct", "loss"), values, strict=True):
        mean = np.asarray(value)[counted].mean()
        once = sum(p[name] for p in pieces) / sum(p["weight"] for p in pieces)
        np.testing.assert_allclose(once, mean, rtol=1e-6)
        np.testing.assert_allclose(sums[name] / sums["weight"], mean, rtol=1e-6)
        of_means = sum(p[name] / p["weight"] for p in pieces) / 2
        assert abs(of_means - mean) > 1e-3


def test_targets_that_do_not_count_have_no_gradient(tiny):
    graph, params = nnx.split(tiny(num_layers=1))

    @jax.jit
    def gradient(batch):
        total = lambda p: token_losses(nnx.merge(graph, p), batch).sums()["loss"]  # noqa: E731
        return jax.tree.leaves(jax.grad(total)(params))

    changed = BATCH.replace(targets=jnp.where(BATCH.weights > 0, BATCH.targets, 50))
    assert not np.array_equal(changed.targets, BATCH.targets)
    for got, expected in zip(gradient(changed), gradient(BATCH), strict=True):
        assert np.array_equal(got, expected)
        assert np.asarray(got).any()
    nothing = BATCH.replace(weights=jnp.zeros_like(BATCH.weights))
    assert not any(np.asarray(g).any() for g in gradient(nothing))


def test_a_key_turns_dropout_on(tiny):
    model = tiny(num_layers=1, dropout=0.2)
    run = lambda key: float(losses_of(model, BATCH, key).loss.sum())  # noqa: E731
    assert run(None) == run(None)
    assert run(KEY) == run(KEY)
    assert len({run(None), run(KEY), run(jax.random.key(1))}) == 3


def test_losses_are_float32_under_bfloat16(tiny):
    model = tiny(num_layers=1, dtype="bfloat16")
    losses = jax.eval_shape(lambda: token_losses(model, BATCH, label_smoothing=0.1))
    assert {x.dtype for x in jax.tree.leaves(losses)} == {jnp.dtype("float32")}


def test_an_encoder_decoder_is_given_its_source(tiny):
    model = tiny(num_layers=1, architecture="encoder_decoder")
    batch = BATCH.replace(source=TOKENS.replace(ids=IDS[::-1]))
    nll, _, _ = slow_losses(model, batch)
    np.testing.assert_allclose(losses_of(model, batch).nll, nll, atol=1e-5)
