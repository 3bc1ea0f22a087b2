"""`attend` and its kernels against a slow numpy loop; unseen keys, empty rows and big logits."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_model import slow_attend

from attn_jax.errors import InputError
from attn_jax.models import attention
from attn_jax.models.attention import attend, attention_weights
from attn_jax.models.kernels import LONG, choose_kernel, dense
from attn_jax.models.kernels.blockwise import attend_blockwise
from attn_jax.models.kernels.cudnn import attend_cudnn
from attn_jax.models.kernels.dense import attend_dense
from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens

# Of the blockwise kernel: test_blockwise.py.
cudnn_in_xla = partial(attend_cudnn, implementation="xla")
KERNELS = pytest.mark.parametrize(
    "kernel", [attend, attend_dense, cudnn_in_xla], ids=["reference", "dense", "cudnn"]
)


def example(H=4, G=2, T=5, S=6, K=4):
    """Random q, k, v; a row with two documents, and one with padding and an unseen document."""
    rng = np.random.default_rng(0)
    shapes = [(2, H, T, K), (2, G, S, K), (2, G, S, K)]
    arrays = [rng.normal(size=s).astype(np.float32) for s in shapes]
    segments = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 0, 1, 3, 0]], np.int32)
    positions = np.array([[0, 1, 2, 0, 1, 2], [0, 1, 0, 2, 0, 0]], np.int32)
    keys = Tokens(np.zeros_like(segments), positions, segments, positions)
    queries = jax.tree.map(lambda x: x[:, :T].copy(), keys)
    queries.segments[1, 4] = 2  # sees nothing
    return arrays, queries, keys


def run(kernel, *arguments, window=0):
    """The output of a kernel in numpy; compiled anew, so that planted bugs take effect."""
    return np.asarray(jax.jit(lambda *x: kernel(*x, window))(*arguments))


def fits(kernel, H=4, G=2, window=0):
    (q, k, v), queries, keys = example(H, G)
    expected = slow_attend(q, k, v, queries, keys, window)
    return np.allclose(run(kernel, q, k, v, queries, keys, window=window), expected, atol=1e-6)


@pytest.mark.parametrize(("H", "G"), [(2, 2), (4, 2), (4, 1)])
@pytest.mark.parametrize("window", [0, 2])
@KERNELS
def test_attend_equals_a_slow_loop(kernel, H, G, window):
    assert fits(kernel, H, G, window)


def gradients(kernel, *arguments, window=0):
    """Of a function of the output that treats all its numbers differently, for q, k and v."""
    factors = np.random.default_rng(1).normal(size=arguments[0].shape).astype(np.float32)

    def total(q, k, v, queries, keys, factors):
        return jnp.sum(kernel(q, k, v, queries, keys, window).astype(jnp.float32) * factors)

    return [np.asarray(g) for g in jax.jit(jax.grad(total, (0, 1, 2)))(*arguments, factors)]


def assert_equal_gradients(kernel, window=0):
    arrays, queries, keys = example()
    found = (gradients(k, *arrays, queries, keys, window=window) for k in (kernel, attend))
    for got, expected in zip(*found, strict=True):
        assert abs(expected).max() > 0.1
        np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("kernel", [attend_dense, cudnn_in_xla], ids=["dense", "cudnn"])
def test_kernel_gradients_equal_those_of_the_reference(kernel, window):
    assert_equal_gradients(kernel, window)


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
            assert_equal_gradients(attend_dense)


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
    arrays, queries, keys = example()
    keys.segments[0] = 0
    out = run(kernel, *arrays, queries, keys)
    assert (out[0] == 0).all()
    assert (out[1, :, :2] != 0).all()
    assert (out[1, :, 2] == 0).all()  # a query that is padding
    for gradient in gradients(kernel, *arrays, queries, keys):
        assert np.isfinite(gradient).all()
        assert (gradient[0] == 0).all()
        assert (gradient[1] != 0).any()


@KERNELS
def test_unseen_keys_have_no_influence(kernel):
    (q, k, v), queries, keys = example()
    unseen = (keys.segments == 0) | (keys.segments == 3)
    changed = k.copy()
    changed[1, :, unseen[1]] = 1e9
    rows = [0, 1, 3]  # the queries that see something
    before, after = (run(kernel, q, x, v, queries, keys)[1, :, rows] for x in (k, changed))
    assert np.array_equal(before, after)
    for gradient in gradients(kernel, q, k, v, queries, keys)[1:]:
        assert (gradient[1][:, unseen[1]] == 0).all()
        assert (gradient[1][:, ~unseen[1]] != 0).all()


@KERNELS
@pytest.mark.parametrize("size", [1e3, 1e18])
def test_large_logits_do_not_overflow_in_bfloat16(kernel, size):
    arrays, queries, keys = example()
    q, k, v = (x.astype(jnp.bfloat16) for x in arrays)
    scaled = ((q * size).astype(jnp.bfloat16), (k * size).astype(jnp.bfloat16), v)
    out = run(kernel, *scaled, queries, keys)
    assert out.dtype == jnp.bfloat16
    # So large that softmax takes the best key that is seen, even where its score is far below 0.
    k, v = (np.repeat(x.astype(np.float64), 2, axis=1) for x in (k, v))
    scores = np.einsum("bhtk,bhsk->bhts", q.astype(np.float64), k)
    seen = np.asarray(jax.jit(visible)(queries, keys))[:, None]
    best = np.where(seen, scores, -np.inf).argmax(-1)
    expected = np.take_along_axis(v, best[..., None], axis=2) * seen.any(-1)[..., None]
    np.testing.assert_array_equal(out.astype(np.float64), expected)
    for gradient in gradients(kernel, *scaled, queries, keys):
        assert np.isfinite(gradient.astype(np.float32)).all()


@jax.jit
def captured_by(q, k, v, queries, keys):
    captured = []
    out = attend(q, k, v, queries, keys, capture=captured)
    (weights,) = captured
    return weights, out, attention_weights(q, k, queries, keys)


def test_captured_weights_sum_to_one_or_to_zero_and_make_the_output():
    (q, k, v), queries, keys = example()
    weights, out, again = map(np.asarray, captured_by(q, k, v, queries, keys))
    assert np.array_equal(weights, again)
    assert (weights >= 0).all()
    empty = np.zeros((2, 4, 5), bool)
    empty[1, :, [2, 4]] = True  # padding, and a document that the keys lack
    assert (weights.sum(-1)[empty] == 0).all()
    np.testing.assert_allclose(weights.sum(-1)[~empty], 1, atol=1e-6)
    made = np.einsum("bhts,bhsk->bhtk", weights, np.repeat(v, 2, axis=1))
    np.testing.assert_allclose(out, made, atol=1e-6)


def test_weights_are_captured_in_float32_under_bfloat16():
    arrays, queries, keys = example()
    arrays = [x.astype(jnp.bfloat16) for x in arrays]
    weights = np.asarray(captured_by(*arrays, queries, keys)[0])
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights[0].sum(-1), 1, atol=1e-6)


def test_a_model_captures_each_layer_self_before_cross(tiny):
    tokens = Tokens.of(jnp.ones((1, 3), jnp.int32))
    source = Tokens.of(jnp.ones((1, 4), jnp.int32))

    def captured(architecture):
        weights, model = [], tiny(architecture=architecture)
        jax.eval_shape(lambda: model(tokens, source, capture=weights))
        return [w.shape for w in weights]

    assert captured("encoder_decoder") == [(1, 2, 3, 3), (1, 2, 3, 4)] * 2
    assert captured("decoder") == captured("encoder") == [(1, 2, 3, 3)] * 2


def test_capturing_does_not_change_the_output(tiny):
    model, tokens = tiny(), Tokens.of(jnp.arange(36, dtype=jnp.int32).reshape(6, 6))

    @jax.jit
    def run():
        weights = []
        return model(tokens, capture=weights), weights

    hidden, weights = run()
    np.testing.assert_allclose(hidden, model(tokens), atol=1e-5)
    assert all(np.array_equal(w, np.tril(w)) for w in weights)


def test_auto_takes_the_kernel_for_long_sequences_where_both_sides_are_long():
    long, one = Tokens.of(jnp.zeros((1, LONG), int)), Tokens.of(jnp.zeros((1, 1), int))
    of_beams = jax.tree.map(lambda x: jnp.stack([x, x], 1), long)
    assert choose_kernel("auto", LONG, long) is attend_blockwise
    assert choose_kernel("auto", LONG - 1, long) is attend_dense
    assert choose_kernel("auto", 1, long) is attend_dense  # a decoding step
    assert choose_kernel("blockwise", 1, one) is attend_blockwise
    assert choose_kernel("dense", LONG, long) is attend_dense
    assert choose_kernel("blockwise", 2, of_beams) is attend_dense


def test_a_model_computes_the_same_with_either_kernel(tiny):
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 80, (6, 6)), jnp.int32)
    models = [tiny(attention=name) for name in ("dense", "blockwise")]
    hidden = [model(Tokens.of(ids)) for model in models]
    np.testing.assert_allclose(*hidden, atol=1e-5)
    loops = [str(jax.make_jaxpr(model)(Tokens.of(ids))).count("while[") for model in models]
    assert loops == [0, 2]  # one a layer


def test_cudnn_refuses_by_name_what_it_cannot_run(tiny):
    with pytest.raises(InputError, match="'cudnn': needs an NVIDIA GPU, and JAX found cpu"):
        tiny(attention="cudnn")(Tokens.of(jnp.zeros((6, 6), jnp.int32)))
