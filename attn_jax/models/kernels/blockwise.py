"""Attention over pairs of blocks, past the pairs that see nothing: memory linear in the length."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn_jax.models.kernels.dense import product
from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens

# Letters of this file: I query blocks, J key blocks, S the keys of one block, R the queries of one
# block for all heads that share a key head. Positions come last, so that maxima and sums over the
# keys run along whole vectors.

# On CPU, causal, T = 4,096: 1.5 times as fast as blocks of 256; larger ones skip less.
BLOCK_Q = 512
BLOCK_K = 512


def attend_blockwise(
    q_BHTK: Float[Array, "B H T K"],
    k_BGSK: Float[Array, "B G S K"],
    v_BGSK: Float[Array, "B G S K"],
    queries: Tokens,
    keys: Tokens,
    window: int = 0,
    *,
    block_q: int = BLOCK_Q,
    block_k: int = BLOCK_K,
) -> Float[Array, "B H T K"]:
    """Computes what `attend` does in memory linear in T + S (Dao et al. 2022, 2023).

    One loop visits the pairs of blocks in which `active_pairs` finds that something may be seen,
    and keeps for each query a running maximum, sum and output; the gradient visits the same pairs
    and computes their weights again. Time follows the pairs: half for causal, less for windows, and
    for packed documents where the rows of a batch are packed alike.

    Args:
      q_BHTK: queries; H is a multiple of G.
      k_BGSK: keys.
      v_BGSK: values.
      queries: fields of the queries, [B, T].
      keys: fields of the keys, [B, S].
      window: see `visible`.
      block_q: queries per block, at most.
      block_k: keys per block, at most.

    Returns:
      The weighted values in the type of `v_BGSK`; exactly 0 for a query that sees nothing.
    """
    (B, H, T, K), G = q_BHTK.shape, k_BGSK.shape[1]
    q_BGIKR = _cut_queries(q_BHTK * K**-0.5, G, block_q)
    k_BGJSK, v_BGJSK = (_cut(x, 2, block_k) for x in (k_BGSK, v_BGSK))
    queries, keys = cut_tokens(queries, block_q), cut_tokens(keys, block_k)
    y_BGIKR = _attend(q_BGIKR, k_BGJSK, v_BGJSK, queries, keys, window)
    y_BGIKRT = y_BGIKR.reshape(*y_BGIKR.shape[:4], H // G, -1)
    return y_BGIKRT.transpose(0, 1, 4, 2, 5, 3).reshape(B, H, -1, K)[:, :, :T]


def cut_tokens(tokens: Tokens, block: int) -> Tokens:
    """Cuts fields [B, T] into equal blocks of at most `block` tokens, [B, blocks, size]."""
    return jax.tree.map(lambda x: _cut(x, 1, block), tokens)


def active_pairs(queries: Tokens, keys: Tokens, window: int = 0) -> Bool[Array, "I J"]:
    """Returns False where no query of the block may see any key of the block, in any row.

    Only the ends of each block are compared, so memory is I * J. Where segments and, within
    them, positions ascend in steps of at most 1, as in packed rows, True means that something is
    seen; elsewhere it means that something may be.

    Args:
      queries: fields of the queries in blocks, see `cut_tokens`.
      keys: fields of the keys in blocks.
      window: see `visible`.
    """
    pairs = _below(queries, keys, "segments") & _below(keys, queries, "blocks").swapaxes(1, 2)
    if window:
        pairs &= _below(queries, keys, "positions", window - 1)
        pairs &= _below(keys, queries, "positions", window - 1).swapaxes(1, 2)
    return jnp.any(pairs, axis=0)


def _below(low: Tokens, high: Tokens, field: str, slack: int = 0) -> Bool[Array, "B I J"]:
    """Whether the lowest (segment, field) of a block is at most the highest of another block.

    Within one segment that is a comparison of fields, and between segments, where nothing is
    seen, an order that tells blocks before a document from blocks after it.
    """
    limits = jnp.iinfo(jnp.int32)
    low_segment, low_field = _end(low, field, jnp.min, limits.max)
    high_segment, high_field = _end(high, field, jnp.max, limits.min)
    low_segment, low_field = low_segment[:, :, None], low_field[:, :, None]
    high_segment, high_field = high_segment[:, None], high_field[:, None]
    within = (low_segment == high_segment) & (low_field <= high_field + slack)
    return (low_segment < high_segment) | within


def _end(tokens: Tokens, field: str, end: Callable, padding: int) -> tuple[Array, Array]:
    """The lowest or highest segment of each block, and the lowest or highest field within it."""
    real = tokens.segments != 0
    segment = end(jnp.where(real, tokens.segments, padding), axis=-1)
    there = real & (tokens.segments == segment[..., None])
    return segment, end(jnp.where(there, getattr(tokens, field), padding), axis=-1)


def _cut(x: Array, axis: int, block: int) -> Array:
    """Splits an axis in two, (blocks, size), with zeros at the end: padding, for segments."""
    length = x.shape[axis]
    blocks = -(-length // block)
    size = -(-length // blocks)
    padded = jnp.pad(x, [(0, blocks * size - length if i == axis else 0) for i in range(x.ndim)])
    return padded.reshape(*x.shape[:axis], blocks, size, *x.shape[axis + 1 :])


def _cut_queries(q_BHTK: Array, G: int, block: int) -> Array:
    """Makes [B, G, I, K, R]: per block one matrix for all heads that share a key head."""
    q_BHITK = _cut(q_BHTK, 2, block)
    B, H, blocks, T, K = q_BHITK.shape
    q_BGHITK = q_BHITK.reshape(B, G, H // G, blocks, T, K)
    return q_BGHITK.transpose(0, 1, 3, 5, 2, 4).reshape(B, G, blocks, K, -1)


def _get(blocks: Array, index: Array, axis: int = 2) -> Array:
    return jax.lax.dynamic_index_in_dim(blocks, index, axis, keepdims=False)


def _put(blocks: Array, block: Array, index: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(blocks, block, index, 2)


def _tokens(tokens: Tokens, index: Array) -> Tokens:
    return jax.tree.map(lambda x: _get(x, index, 1), tokens)


def _loop(queries: Tokens, keys: Tokens, window: int, visit: Callable, carry: tuple) -> tuple:
    """Returns the carry after `visit(i, j, carry)` for all active pairs in turn."""
    active = active_pairs(queries, keys, window)
    pairs = jnp.argwhere(active, size=active.size, fill_value=0).astype(jnp.int32)
    return jax.lax.fori_loop(0, jnp.sum(active), lambda n, carry: visit(*pairs[n], carry), carry)


def _scores(q_BGKR: Array, k_BGSK: Array, queries: Tokens, keys: Tokens, window: int) -> Array:
    """Returns one tile, [B, G, S, R], with -inf where nothing is seen."""
    scores = product("bgsk,bgkr->bgsr", k_BGSK, q_BGKR)
    seen = visible(queries, keys, window).swapaxes(1, 2)
    by_head = scores.reshape(*scores.shape[:3], -1, seen.shape[-1])
    return jnp.where(seen[:, None, :, None], by_head, -jnp.inf).reshape(scores.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q: Array, k: Array, v: Array, queries: Tokens, keys: Tokens, window: int) -> Array:
    return _forward(q, k, v, queries, keys, window)[0]


def _forward(
    q: Array, k: Array, v: Array, queries: Tokens, keys: Tokens, window: int
) -> tuple[Array, tuple]:
    lowest = jnp.finfo(jnp.float32).min
    v_BGJKS = v.swapaxes(-1, -2)

    def visit(i: Array, j: Array, carry: tuple) -> tuple:
        y, peak, total, last, before = carry
        scores = _scores(_get(q, i), _get(k, j), _tokens(queries, i), _tokens(keys, j), window)
        # Carried on, not read from `peak`, which XLA would then copy whole in order to update it.
        before = jnp.where(i == last, before, lowest)
        after = jnp.maximum(before, jnp.max(scores, axis=-2, keepdims=True))
        # Peaks are finite, so what is not seen weighs exactly 0, even in a query that sees nothing.
        weights = jnp.exp(scores - after)
        decay = jnp.exp(before - after)
        total_i = _get(total, i) * decay + jnp.sum(weights, axis=-2, keepdims=True)
        seen_values = product("bgks,bgsr->bgkr", _get(v_BGJKS, j), weights.astype(v.dtype))
        y_i = _get(y, i) * decay + seen_values
        return _put(y, y_i, i), _put(peak, after, i), _put(total, total_i, i), i, after

    y = jnp.zeros_like(q, jnp.float32)
    total = jnp.zeros_like(y[..., :1, :])
    peak = jnp.full_like(total, lowest)
    carry = (y, peak, total, jnp.int32(-1), peak[:, :, 0])
    y, peak, total, *_ = _loop(queries, keys, window, visit, carry)
    total = jnp.where(total == 0, 1, total)
    y = (y / total).astype(v.dtype)
    return y, (q, k, v, queries, keys, peak, total, y)


def _backward(window: int, saved: tuple, dy: Array) -> tuple:
    q, k, v, queries, keys, peak, total, y = saved
    dy = (dy / total).astype(v.dtype)
    # As a product: XLA's own sum over an inner axis takes 40 times as long on CPU.
    inner = product("bgikr,bgikr->bgir", dy, y)[..., None, :]
    k_BGJKS = k.swapaxes(-1, -2)

    def visit(i: Array, j: Array, carry: tuple) -> tuple:
        dq, dk, dv = carry
        q_i, dy_i = _get(q, i), _get(dy, i)
        scores = _scores(q_i, _get(k, j), _tokens(queries, i), _tokens(keys, j), window)
        weights = jnp.exp(scores - _get(peak, i))
        dweights = product("bgsk,bgkr->bgsr", _get(v, j), dy_i)
        dscores = (weights * (dweights - _get(inner, i))).astype(q.dtype)
        dq_i = _get(dq, i) + product("bgks,bgsr->bgkr", _get(k_BGJKS, j), dscores)
        dk_j = _get(dk, j) + product("bgsr,bgkr->bgsk", dscores, q_i)
        dv_j = _get(dv, j) + product("bgsr,bgkr->bgsk", weights.astype(v.dtype), dy_i)
        return _put(dq, dq_i, i), _put(dk, dk_j, j), _put(dv, dv_j, j)

    zeros = tuple(jnp.zeros_like(x, jnp.float32) for x in (q, k, v))
    gradients = _loop(queries, keys, window, visit, zeros)
    return *(g.astype(x.dtype) for g, x in zip(gradients, (q, k, v), strict=True)), None, None


_attend.defvjp(_forward, _backward)
