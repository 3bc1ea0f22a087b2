"""`attend_blockwise` against `attend`, and the pairs of blocks that it visits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.models.attention import attend
from attn_jax.models.kernels import blockwise
from attn_jax.models.kernels.blockwise import active_pairs, attend_blockwise, cut_tokens
from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens

BLOCK = 8
T, S = 22, 34  # neither is a multiple of the block
WINDOWS = pytest.mark.parametrize("window", [0, 5])

blocks_of_8 = functools.partial(attend_blockwise, block_q=BLOCK, block_k=BLOCK)


def packed(*lengths):
    """Two rows of these causal documents, the rest padding."""
    documents = [np.full(n, i) for i, n in enumerate(lengths, 1)]
    columns = [np.concatenate([*x, []]) for x in (documents, [np.arange(n) for n in lengths])]
    rows = [np.tile(np.pad(x, (0, T - x.size)).astype(np.int32), (2, 1)) for x in columns]
    segments, positions = map(jnp.asarray, rows)
    return Tokens(segments, positions, segments).causal()


def random_tokens(seed, length=T):
    """Fields that no data has: unsorted documents, padding anywhere, any blocks and positions."""
    rng = np.random.default_rng(seed)
    segments, positions, blocks = (rng.integers(0, n, (2, length), np.int32) for n in (3, 12, 6))
    return Tokens(np.zeros_like(segments), positions, segments, blocks)


USUAL = {
    "causal": packed(T),
    "bidirectional": packed(T).bidirectional(),
    "prefix": packed(T).prefix(10),
    "block causal": packed(T).block_causal(5),
    "packed": packed(3, 12, 7),
    "packed, of whole blocks": packed(8, 8),
    "packed, padding": packed(5, 1, 6),
    "packed, bidirectional": packed(3, 12, 7).bidirectional(),
    "packed, prefix": packed(10, 12).prefix(4),
    "all padding": packed(),
}


def arrays(H, G, keys=T, K=4, dtype=jnp.float32, size=1.0):
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, *s, K)) for s in ((H, T), (G, keys), (G, keys)))
    return [jnp.asarray(x, dtype) for x in (size * q, size * k, v)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(kernel, window, q, k, v, queries, keys):
    """The output, and the gradients of a function that treats all its numbers differently."""

    def total(q, k, v):
        y = kernel(q, k, v, queries, keys, window)
        factors = jnp.sin(jnp.arange(y.size)).reshape(y.shape)
        return jnp.sum(y.astype(jnp.float32) * factors), y

    gradients, y = jax.grad(total, (0, 1, 2), has_aux=True)(q, k, v)
    return y, *gradients


def assert_equal(arrays, queries, keys, window=0, kernel=blocks_of_8, atol=1e-5):
    results = (run(x, window, *arrays, queries, keys) for x in (kernel, attend))
    for got, expected in zip(*results, strict=True):
        assert got.dtype == expected.dtype == arrays[0].dtype
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (got, expected)), atol=atol)


@WINDOWS
@pytest.mark.parametrize("name", USUAL)
def test_usual_masks_give_values_and_gradients_of_the_reference(name, window):
    assert_equal(arrays(4, 2), USUAL[name], USUAL[name], window)


@WINDOWS
@pytest.mark.parametrize("seed", range(4))
def test_random_masks_give_values_and_gradients_of_the_reference(seed, window):
    assert_equal(arrays(4, 2), random_tokens(seed), random_tokens(10 + seed), window)


@pytest.mark.parametrize(("H", "G", "block_q", "block_k"), [(2, 2, 5, 16), (3, 1, 32, 3)])
@pytest.mark.slow
def test_neither_lengths_nor_heads_nor_blocks_change_the_result(H, G, block_q, block_k):
    kernel = functools.partial(attend_blockwise, block_q=block_q, block_k=block_k)
    assert_equal(arrays(H, G, keys=S), random_tokens(0), random_tokens(1, S), kernel=kernel)


def test_a_query_that_sees_nothing_gets_exactly_zero_and_gives_none():
    queries, keys = random_tokens(0), random_tokens(1)
    queries.segments[0, 3:] = 0  # blocks of padding only
    queries.segments[0, 1] = 9  # a document that the keys lack
    queries.segments[1, 4] = 9
    keys.segments[1, 20:] = 0
    seen = np.asarray(visible(queries, keys))
    y, dq, dk, dv = (np.asarray(x) for x in run(blocks_of_8, 0, *arrays(4, 2), queries, keys))
    for x in (y, dq):
        assert (x.transpose(0, 2, 1, 3)[~seen.any(2)] == 0).all()
    assert (y.transpose(0, 2, 1, 3)[seen.any(2)] != 0).all()
    for x in (dk, dv):
        assert np.isfinite(x).all()
        assert (x.transpose(0, 2, 1, 3)[~seen.any(1)] == 0).all()


def test_bfloat16_is_close_to_the_reference_and_keeps_its_type():
    assert_equal(arrays(4, 2, dtype=jnp.bfloat16), USUAL["packed"], USUAL["packed"], atol=0.05)


@pytest.mark.parametrize("size", [1e3, 1e18])
def test_large_logits_do_not_overflow(size):
    large = arrays(4, 2, dtype=jnp.bfloat16, size=size)
    y, *gradients = run(blocks_of_8, 0, *large, USUAL["packed"], USUAL["packed"])
    expected = run(attend, 0, *large, USUAL["packed"], USUAL["packed"])[0]
    np.testing.assert_array_equal(*(np.asarray(x, np.float32) for x in (y, expected)))
    for gradient in gradients:
        assert np.isfinite(np.asarray(gradient, np.float32)).all()


@functools.partial(jax.jit, static_argnums=2)
def found_and_needed(queries, keys, window):
    """The table of pairs, and the one that follows from the whole mask."""
    cut = [cut_tokens(x, BLOCK) for x in (queries, keys)]
    seen = visible(*(jax.tree.map(lambda x: x.reshape(2, -1), x) for x in cut), window)
    rows, columns = (x.segments.shape[2] for x in cut)
    tiles = seen.reshape(2, seen.shape[1] // rows, rows, seen.shape[2] // columns, columns)
    return active_pairs(*cut, window), jnp.any(tiles, axis=(0, 2, 4))


@pytest.mark.parametrize("window", [0, 5])
def test_no_pair_is_left_out_that_sees_something(window):
    skipped = 0
    for seed in range(50):
        queries, keys = random_tokens(seed), random_tokens(100 + seed, S)
        keys.segments[:, : seed % S] = seed % 4  # so that some pairs do see nothing
        queries.blocks[:, seed % T :] -= seed % 7
        found, needed = map(np.asarray, found_and_needed(queries, keys, window))
        assert (needed <= found).all()
        skipped += (~found).sum()
    assert skipped > 50


# From the last token of a block to the first of the block after the next are 9 positions.
@pytest.mark.parametrize("window", [0, 9, 10])
@pytest.mark.parametrize("name", USUAL)
def test_usual_masks_visit_only_pairs_that_see_something(name, window):
    found, needed = map(np.asarray, found_and_needed(USUAL[name], USUAL[name], window))
    assert np.array_equal(found, needed)


def test_rows_that_differ_visit_the_pairs_of_both():
    first, second = USUAL["packed"], USUAL["packed, padding"].bidirectional()
    both = jax.tree.map(lambda x, y: np.stack([x[0], y[1]]), first, second)
    found, needed = map(np.asarray, found_and_needed(both, both, 0))
    assert np.array_equal(found, needed)
    each = [np.asarray(found_and_needed(x, x, 0)[0]) for x in (first, second)]
    assert np.array_equal(found, each[0] | each[1])


def test_forward_and_backward_visit_each_active_pair_once(monkeypatch):
    visited, scores = [], blockwise._scores

    def counted(*arguments):
        jax.debug.callback(lambda: visited.append(None))
        return scores(*arguments)

    monkeypatch.setattr(blockwise, "_scores", counted)
    kernel = functools.partial(blocks_of_8)  # another function to `jit`: compiled anew
    for name, pairs in {"causal": 6, "bidirectional": 9, "packed, of whole blocks": 2}.items():
        visited.clear()
        run(kernel, 0, *arrays(4, 2), USUAL[name], USUAL[name])
        jax.effects_barrier()
        assert len(visited) == 2 * pairs


@pytest.mark.slow
def test_planted_bugs_are_found(monkeypatch):
    tokens = USUAL["packed"]
    everything = {"visible": lambda q, k, window: jnp.ones(visible(q, k, window).shape, bool)}
    one_missing = {
        "active_pairs": lambda q, k, window: active_pairs(q, k, window).at[2, 1].set(False)
    }
    for planted in (everything, one_missing):
        with monkeypatch.context() as patch:
            for name, function in planted.items():
                patch.setattr(blockwise, name, function)
            with pytest.raises(AssertionError):
                assert_equal(arrays(4, 2), tokens, tokens, kernel=functools.partial(blocks_of_8))
