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
ZERO, ONE = np.zeros(1, np.int32), np.ones(1, np.float32)
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


def compiled(smoothing, most=None):
    return jax.jit(partial(cross_entropy, label_smoothing=smoothing, most=most))


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
    np.testing.assert_allclose(got.total, (loss * batch.weights).sum(), rtol=1e-5)
    assert np.array_equal(got.correct, correct)
    assert 6 <= correct.sum() < 36
    assert np.array_equal(got.weights, batch.weights)
    assert (smoothing == 0) == bool(np.isclose(got.sums()["nll"], got.total, rtol=1e-6))


def test_label_smoothing_by_hand():
    """Of three words with probabilities 1/2, 1/4, 1/4, the first is right; 0.3 is spread."""
    table = jnp.asarray(np.log([[0.5], [0.25], [0.25]]), jnp.float32)
    total, (nll, correct) = compiled(0.3)(np.ones((1, 1), np.float32), table, ZERO, ONE)
    expected = 0.8 * np.log(2) + 0.2 * np.log(4)  # 0.7 + 0.1 on the first, 0.1 on each other
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    np.testing.assert_allclose(nll[0], np.log(2), rtol=1e-6)
    assert correct.tolist() == [1.0]


def plain_cross_entropy(hidden, table, targets, weights, smoothing=0.0):
    """All logits at once."""
    log_p = jax.nn.log_softmax(hidden @ table.T)
    nll = -jnp.take_along_axis(log_p, targets[:, None], axis=-1)[:, 0]
    total = jnp.sum(weights * ((1 - smoothing) * nll - smoothing * log_p.mean(-1)))
    return total, (nll, (log_p.argmax(-1) == targets).astype(jnp.float32))


RNG = np.random.default_rng(0)
HIDDEN, TABLE = (RNG.normal(size=(n, 4)).astype(np.float32) for n in (5, 7))
TARGETS, WEIGHTS = RNG.integers(0, 7, 5, np.int32), RNG.normal(size=5).astype(np.float32)
ARGS = tuple(map(jnp.asarray, (HIDDEN, TABLE, TARGETS, WEIGHTS)))


def with_gradients(function, smoothing):
    """Value, scores and gradients, where the loss is one of two terms."""

    def total(hidden, table, targets, weights):
        total, scores = function(hidden, table, targets, weights, smoothing)
        return 3 * total + hidden.sum(), scores

    return jax.jit(jax.value_and_grad(total, (0, 1, 3), has_aux=True))(*ARGS)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("most", [1, 7, 15, 34, 35])
def test_pieces_equal_all_at_once_with_the_gradient_that_jax_derives(most, smoothing):
    """One, two, four and all five targets at a time, each with a weight of its own."""
    got = with_gradients(partial(cross_entropy, most=most), smoothing)
    expected = with_gradients(plain_cross_entropy, smoothing)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert all(abs(np.asarray(x)).max() > 0.1 for x in jax.tree.leaves(expected))
    # Without a gradient another program does the same.
    alone = compiled(smoothing, most)(*ARGS)
    np.testing.assert_allclose(3 * alone[0] + HIDDEN.sum(), got[0][0], rtol=1e-6)
    for a, b in zip(alone[1], got[0][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_logits_of_one_piece_are_all_that_there_are():
    """And each is computed once, with a gradient as without one."""

    def total(hidden):
        return cross_entropy(hidden, *ARGS[1:], most=15)[0]

    for function, products in ((total, 1), (jax.grad(total), 3)):
        program = str(jax.make_jaxpr(function)(ARGS[0]))
        assert "f32[5,7]" not in program
        assert program.count("dot_general") == products


def test_only_the_total_has_a_gradient():
    gradient = jax.grad(lambda hidden: cross_entropy(hidden, *ARGS[1:])[1][0].sum())
    assert not gradient(ARGS[0]).any()


def test_the_gradient_of_bfloat16_is_near_that_of_float32():
    """Even of a target that is all but certain: one less its probability is not rounded first."""
    hidden, table = jnp.full((1, 4), 2.0), jnp.asarray([[1.0] * 4, [0.0] * 4])

    def of_table(hidden):
        total = lambda table: cross_entropy(hidden, table, jnp.asarray(ZERO), jnp.ones(1))[0]  # noqa: E731
        return jax.grad(total)(table)

    exact, rounded = of_table(hidden), of_table(hidden.astype(jnp.bfloat16))
    assert rounded.dtype == jnp.float32
    np.testing.assert_allclose(rounded, exact, rtol=2**-7)
    assert 0 < abs(np.asarray(exact)).max() < 2**-9


def test_large_logits_do_not_overflow():
    hidden, table = np.full((1, 1), 1e3, np.float32), np.array([[1e3], [-1e3]], np.float32)
    total, (nll, _) = compiled(0.1)(hidden, table, ZERO, ONE)
    assert nll.tolist() == [0.0]
    assert np.isfinite(total)


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
    values = [rng.uniform(0, 5, (6, 6)).astype(np.float32) for _ in range(2)]
    weights = np.asarray(BATCH.weights)

    @jax.jit
    def total(nll, correct, weights):
        return TokenLosses(nll, correct, weights, jnp.sum(nll * weights)).sums()

    whole = (*values, weights)
    counted = np.asarray(BATCH.weights) > 0
    sums = total(*whole)
    assert sums["weight"] == counted.sum() == 15
    pieces = [total(*(x[rows] for x in whole)) for rows in (slice(1), slice(1, 6))]
    for name, value in {"nll": values[0], "correct": values[1], "loss": values[0]}.items():
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
    run = lambda key: float(losses_of(model, BATCH, key).total)  # noqa: E731
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
