"""`attend` and its kernels against a slow numpy loop; unseen keys, empty rows and big logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.models import attention
from attn_jax.models.attention import attend, attention_weights
from attn_jax.models.kernels import dense
from attn_jax.models.kernels.dense import attend_dense
from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens

KERNELS = pytest.mark.parametrize("kernel", [attend, attend_dense])


def slow_attend(q, k, v, queries, keys, window=0):
    """Softmax attention in float64, one query at a time over the keys it may see."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, H, T, K), G = q.shape, k.shape[1]
    out = np.zeros((B, H, T, K))
    queries, keys = jax.tree.map(np.asarray, (queries, keys))
    for b in range(B):
        for h in range(H):
            for t in range(T):
                seen = (keys.segments[b] == queries.segments[b, t]) & (keys.segments[b] != 0)
                seen &= keys.blocks[b] <= queries.blocks[b, t]
                if window:
                    seen &= abs(keys.positions[b] - queries.positions[b, t]) < window
                if seen.any():
                    scores = k[b, h * G // H, seen] @ q[b, h, t] / np.sqrt(K)
                    weights = np.exp(scores - scores.max())
                    out[b, h, t] = weights / weights.sum() @ v[b, h * G // H, seen]
    return out


def example(H=4, G=2, T=5, S=6, K=4):
    """Random q, k, v; a row with two documents, and one with padding and an unseen document."""
    rng = np.random.default_rng(0)
    shapes = [(2, H, T, K), (2, G, S, K), (2, G, S, K)]
    arrays = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]
    segments = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 0, 1, 3, 0]], np.int32)
    positions = np.array([[0, 1, 2, 0, 1, 2], [0, 1, 0, 2, 0, 0]], np.int32)
    keys = Tokens(*map(jnp.asarray, (np.zeros_like(segments), positions, segments, positions)))
    queries = jax.tree.map(lambda x: x[:, :T], keys)
    return arrays, queries, keys


def fits(attend, H=4, G=2, window=0):
    (q, k, v), queries, keys = example(H, G)
    expected = slow_attend(q, k, v, queries, keys, window)
    return np.allclose(attend(q, k, v, queries, keys, window), expected, atol=1e-6)


@pytest.mark.parametrize(("H", "G"), [(2, 2), (4, 2), (4, 1)])
@pytest.mark.parametrize("window", [0, 2])
@KERNELS
def test_attend_equals_a_slow_loop(kernel, H, G, window):
    assert fits(kernel, H, G, window)


def gradients(kernel, window=0):
    """Of a function of the output that treats all its numbers differently."""
    arrays, queries, keys = example()
    factors = jnp.asarray(np.random.default_rng(1).normal(size=arrays[0].shape), jnp.float32)
    total = lambda x: (kernel(*x, queries, keys, window) * factors).sum()  # noqa: E731
    return jax.jit(jax.grad(total))(arrays)


def assert_equal_gradients(window=0):
    for got, expected in zip(
        gradients(attend_dense, window), gradients(attend, window), strict=True
    ):
        assert abs(expected).max() > 0.1
        np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("window", [0, 2])
def test_kernel_gradients_equal_those_of_the_reference(window):
    assert_equal_gradients(window)


def test_planted_bugs_in_a_gradient_by_hand_are_found(monkeypatch):
    backward = dense._backward

    def no_centering(saved, dy):
        q, k, v, weights, total, y = saved
        return backward((q, k, v, weights, total, 0 * y), dy)

    def unnormalized(saved, dy):
        q, k, v, weights, total, y = saved
        return backward((q, k, v, weights, jnp.ones_like(total), y), dy)

    for planted in (no_centering, unnormalized):
        monkeypatch.setattr(dense._attend, "bwd", planted)
        with pytest.raises(AssertionError):
            assert_equal_gradients()


def test_the_slow_loop_finds_planted_bugs(monkeypatch):
    def heads_dealt_in_turn(q, k, v, queries, keys, window):
        return attend(q, jnp.tile(k, (1, 2, 1, 1)), jnp.tile(v, (1, 2, 1, 1)), queries, keys)

    def unscaled(q, *rest):
        return attend(2 * q, *rest)

    assert not fits(heads_dealt_in_turn)
    assert not fits(unscaled)
    rules = {
        "sees all": lambda q, k, window: jnp.ones((2, 5, 6), bool),
        "corner": lambda q, k, window: jnp.tril(jnp.ones((2, 5, 6), bool)),
        "no window": lambda q, k, window: visible(q, k),
    }
    for name, rule in rules.items():
        for module, kernel in ((attention, attend), (dense, attend_dense)):
            monkeypatch.setattr(module, "visible", rule)
            assert not fits(kernel, window=2), name


@KERNELS
def test_a_query_that_sees_nothing_gets_exactly_zero_and_finite_gradients(kernel):
    (q, k, v), queries, keys = example()
    keys = keys.replace(segments=keys.segments.at[0].set(0))
    out = kernel(q, k, v, queries, keys)
    assert (out[0] == 0).all()
    assert (out[1, :, :2] != 0).all()
    assert (out[1, :, 2] == 0).all()  # a query that is padding
    grads = jax.jit(jax.grad(lambda x: (kernel(*x, queries, keys) ** 2).sum()))((q, k, v))
    assert all(jnp.isfinite(g).all() for g in grads)
    assert all((g[0] == 0).all() for g in grads)
    assert any((g[1] != 0).any() for g in grads)


@KERNELS
def test_unseen_keys_have_no_influence(kernel):
    (q, k, v), queries, keys = example()
    unseen = (keys.segments == 0) | (keys.segments == 3)
    gone = unseen[1, None, :, None]
    out = kernel(q, k, v, queries, keys)[1, :, jnp.array([0, 1, 3])]
    changed = kernel(q, k.at[1].set(jnp.where(gone, 1e9, k[1])), v, queries, keys)
    assert np.array_equal(changed[1, :, jnp.array([0, 1, 3])], out)
    total = lambda k, v: kernel(q, k, v, queries, keys)[1, :, :4].sum()  # noqa: E731
    grads = jax.jit(jax.grad(total, (0, 1)))(k, v)
    assert all((g[1][:, unseen[1]] == 0).all() for g in grads)


@KERNELS
@pytest.mark.parametrize("size", [1e3, 1e18])
def test_large_logits_do_not_overflow_in_bfloat16(kernel, size):
    arrays, queries, keys = example()
    q, k, v = (x.astype(jnp.bfloat16) for x in arrays)
    scaled = (q * size, k * size, v)
    out = kernel(*scaled, queries, keys)
    assert out.dtype == jnp.bfloat16
    # So large that softmax takes the best key that is seen, even where its score is far below 0.
    k, v = (np.repeat(np.asarray(x, np.float64), 2, axis=1) for x in (k, v))
    scores = np.einsum("bhtk,bhsk->bhts", np.asarray(q, np.float64), k)
    seen = np.asarray(visible(queries, keys))[:, None]
    best = np.where(seen, scores, -np.inf).argmax(-1)
    expected = np.take_along_axis(v, best[..., None], axis=2) * seen.any(-1)[..., None]
    np.testing.assert_array_equal(np.asarray(out, np.float64), expected)
    total = lambda x: kernel(*x, queries, keys).astype(jnp.float32).sum()  # noqa: E731
    assert all(jnp.isfinite(g).all() for g in jax.jit(jax.grad(total))(scaled))


def test_captured_weights_sum_to_one_or_to_zero():
    (q, k, v), queries, keys = example()
    captured = []
    attend(q, k, v, queries, keys, capture=captured)
    (weights,) = captured
    assert weights.dtype == jnp.float32
    assert np.array_equal(weights, attention_weights(q, k, queries, keys))
    sums = np.asarray(weights.sum(-1))
    empty = np.asarray(queries.segments == 0)[:, None].repeat(4, axis=1)
    np.testing.assert_allclose(sums[~empty], 1, atol=1e-6)
    assert (sums[empty] == 0).all()
    assert empty.any()
    assert (weights >= 0).all()


def test_captured_weights_make_the_output():
    (q, k, v), queries, keys = example()
    captured = []
    out = attend(q, k, v, queries, keys, capture=captured)
    made = np.einsum("bhts,bhsk->bhtk", captured[0], np.repeat(v, 2, axis=1))
    np.testing.assert_allclose(out, made, atol=1e-6)


def test_weights_are_captured_in_float32_under_bfloat16():
    arrays, queries, keys = example()
    captured = []
    attend(*(x.astype(jnp.bfloat16) for x in arrays), queries, keys, capture=captured)
    assert captured[0].dtype == jnp.float32
    sums = captured[0][0].sum(-1)
    np.testing.assert_allclose(sums, 1, atol=1e-6)


def test_a_model_captures_each_layer_self_before_cross(tiny):
    tokens = Tokens.of(jnp.ones((6, 6), jnp.int32))
    source = Tokens.of(tokens.ids, jnp.arange(6)[None] < jnp.full((6, 1), 4))
    captured = []
    tiny(architecture="encoder_decoder")(tokens, source, capture=captured)
    assert [w.shape for w in captured] == [(6, 2, 6, 6)] * 4
    padding = [bool((w[..., 4:] == 0).all()) for w in captured]
    assert padding == [False, True] * 2
    captured = []
    tiny(architecture="decoder")(tokens, capture=captured)
    assert len(captured) == 2
    assert all(np.array_equal(w, np.tril(w)) for w in captured)
