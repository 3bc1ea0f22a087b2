"""Dense attention with a gradient by hand: half the passes over the [T, S] weights."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens


def attend_dense(
    q_BHTK: Float[Array, "B H T K"],
    k_BGSK: Float[Array, "B G S K"],
    v_BGSK: Float[Array, "B G S K"],
    queries: Tokens,
    keys: Tokens,
    window: int = 0,
) -> Float[Array, "B H T K"]:
    """Computes what `attend` does; memory grows with T * S.

    The weights stay unnormalized: dividing the [T, K] output costs less than dividing [T, S]. The
    gradient takes the sum over keys of weight * gradient from output * gradient, which is the same
    number (Dao et al. 2022).
    """
    B, H, T, K = q_BHTK.shape
    G = k_BGSK.shape[1]
    seen = visible(queries, keys, window)
    # The queries of all heads that share a key head stand in one column; N is rows and key heads.
    q_NRK = (q_BHTK * K**-0.5).reshape(B * G, H // G * T, K)
    k_NSK, v_NSK = (x.reshape(B * G, -1, K) for x in (k_BGSK, v_BGSK))
    y_BHTK = _attend(q_NRK, k_NSK, v_NSK, seen).reshape(B, H, T, K)
    return zero_unseeing(y_BHTK, seen)


def zero_unseeing(
    y_BHTK: Float[Array, "B H T K"], seen: Bool[Array, "B T S"]
) -> Float[Array, "B H T K"]:
    """Makes a query that sees nothing, which weighs all keys alike, 0, and its gradients too."""
    return jnp.where(jnp.any(seen, axis=-1)[:, None, :, None], y_BHTK, 0)


def product(spec: str, a: Array, b: Array) -> Array:
    """Returns the `einsum` of two arrays in float32, whatever their type."""
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)


@jax.custom_vjp
def _attend(
    q: Float[Array, "N R K"], k: Float[Array, "N S K"], v: Array, seen: Bool[Array, "B T S"]
) -> Float[Array, "N R K"]:
    return _forward(q, k, v, seen)[0]


def _forward(q: Array, k: Array, v: Array, seen: Array) -> tuple[Array, tuple]:
    scores = product("nrk,nsk->nrs", q, k)
    B, T, S = seen.shape
    by_query = scores.reshape(B, -1, T, S)
    by_query = jnp.where(seen[:, None], by_query, jnp.finfo(jnp.float32).min)
    scores = by_query.reshape(scores.shape)
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights.astype(v.dtype)
    y = (product("nrs,nsk->nrk", weights, v) / total).astype(v.dtype)
    return y, (q, k, v, weights, total, y)


def _backward(saved: tuple, dy: Array) -> tuple[Array, Array, Array, None]:
    q, k, v, weights, total, y = saved
    dy = (dy / total).astype(v.dtype)
    dv = product("nrs,nrk->nsk", weights, dy)
    inner = jnp.sum((dy * y).astype(jnp.float32), axis=-1, keepdims=True)
    dscores = (weights * (product("nrk,nsk->nrs", dy, v) - inner)).astype(q.dtype)
    dq = product("nrs,nsk->nrk", dscores, k)
    dk = product("nrs,nrk->nsk", dscores, q)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


_attend.defvjp(_forward, _backward)
