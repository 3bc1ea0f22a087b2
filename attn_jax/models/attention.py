"""Attention: the reference `attend`, and the multi-head module around it."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn_jax.config import ModelConfig
from attn_jax.models import initializers
from attn_jax.models.kernels import choose_kernel
from attn_jax.models.masks import visible
from attn_jax.models.positions import rotate
from attn_jax.models.tokens import Tokens

# One layer's keys and values, [B, G, S, K] each (in a cache [B * G, S, K]).
KeysValues = tuple[Array, Array]


def attention_weights(
    q_BHTK: Float[Array, "B H T K"],
    k_BGSK: Float[Array, "B G S K"],
    queries: Tokens,
    keys: Tokens,
    window: int = 0,
) -> Float[Array, "B H T S"]:
    """Returns softmax(q k^T / sqrt(K)) in float32 over the keys that each query may see.

    Query heads are grouped over key heads (Ainslie et al. 2023): head h reads key head
    h // (H / G). A query that may see nothing gets weights of exactly 0.
    """
    B, H, T, K = q_BHTK.shape
    G = k_BGSK.shape[1]
    q_BGRTK = q_BHTK.reshape(B, G, H // G, T, K) * K**-0.5
    scores = jnp.einsum("bgrtk,bgsk->bgrts", q_BGRTK, k_BGSK, preferred_element_type=jnp.float32)
    seen = visible(queries, keys, window)[:, None, None]
    scores = jnp.where(seen, scores, jnp.finfo(jnp.float32).min)
    # With a finite minimum an empty row is uniform, not NaN; the second `where` makes it 0.
    weights = jnp.where(seen, jax.nn.softmax(scores, axis=-1), 0.0)
    return weights.reshape(B, H, T, -1)


def attend(
    q_BHTK: Float[Array, "B H T K"],
    k_BGSK: Float[Array, "B G S K"],
    v_BGSK: Float[Array, "B G S K"],
    queries: Tokens,
    keys: Tokens,
    window: int = 0,
    capture: list | None = None,
) -> Float[Array, "B H T K"]:
    """Scaled dot-product attention (Vaswani et al. 2017) under the mask of the fields.

    This is the reference, which kernels/ must equal, and the one that can show its weights.

    Args:
      q_BHTK: queries; H is a multiple of G.
      k_BGSK: keys.
      v_BGSK: values.
      queries: fields of the queries, [B, T].
      keys: fields of the keys, [B, S].
      window: see `visible`.
      capture: a list that the weights, float32 [B, H, T, S], are appended to.

    Returns:
      The weighted values in the type of `v_BGSK`; exactly 0 for a query that sees nothing.
    """
    weights_BHTS = attention_weights(q_BHTK, k_BGSK, queries, keys, window)
    if capture is not None:
        capture.append(weights_BHTS)
    B, H, T, S = weights_BHTS.shape
    G = v_BGSK.shape[1]
    weights_BGRTS = weights_BHTS.reshape(B, G, H // G, T, S).astype(v_BGSK.dtype)
    return jnp.einsum("bgrts,bgsk->bgrtk", weights_BGRTS, v_BGSK).reshape(q_BHTK.shape)


class Attention(nnx.Module):
    """Multi-head attention on [N, D], N = B*T: self-attention, or cross-attention to a memory."""

    def __init__(self, config: ModelConfig, out_init, *, cross: bool = False, rngs: nnx.Rngs):
        self.H = config.num_heads
        self.G = config.num_kv_heads or config.num_heads
        self.K = config.d_model // config.num_heads
        self.window = 0 if cross else config.window
        self.kernel = config.attention
        dense = {"use_bias": config.bias, "dtype": jnp.dtype(config.dtype), "rngs": rngs}
        inner = dense | {"kernel_init": initializers.scaled()}
        q_width, kv_width = self.H * self.K, 2 * self.G * self.K
        # One fused product where all inputs are the same, as few as possible otherwise.
        if cross:
            self.q = nnx.Linear(config.d_model, q_width, **inner)
            self.kv = nnx.Linear(config.d_model, kv_width, **inner)
        else:
            self.qkv = nnx.Linear(config.d_model, q_width + kv_width, **inner)
        self.out = nnx.Linear(q_width, config.d_model, kernel_init=out_init, **dense)

    def self_projections(self, x_ND: Array, batch: int, rotation) -> tuple[Array, Array, Array]:
        """Returns q [B, H, T, K], k and v [B, G, T, K] of the same tokens, positions applied."""
        q, k, v = jnp.split(self.qkv(x_ND), [self.H * self.K, (self.H + self.G) * self.K], axis=-1)
        q, k, v = (self._heads(y, batch) for y in (q, k, v))
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return q, k, v

    def memory_projections(self, memory_ND: Array, batch: int) -> KeysValues:
        """Returns the keys and values of a memory, for cross-attention."""
        k, v = jnp.split(self.kv(memory_ND), 2, axis=-1)
        return self._heads(k, batch), self._heads(v, batch)

    def cross_queries(self, x_ND: Array, batch: int) -> Array:
        """Returns q [B, H, T, K] of the target tokens, for cross-attention."""
        return self._heads(self.q(x_ND), batch)

    def __call__(self, q, k, v, queries: Tokens, keys: Tokens, capture=None) -> Array:
        """Attends with q [B, H, T, K] to k and v [B, G, S, K]; projects back to [B * T, D]."""
        if capture is None:
            kernel = choose_kernel(self.kernel, q.shape[2], keys)
            y_BHTK = kernel(q, k, v, queries, keys, self.window)
        else:
            y_BHTK = attend(q, k, v, queries, keys, self.window, capture)
        B, H, T, K = y_BHTK.shape
        return self.out(y_BHTK.transpose(0, 2, 1, 3).reshape(B * T, H * K))

    def _heads(self, x_N: Array, batch: int) -> Array:
        N, width = x_N.shape
        return x_N.reshape(batch, N // batch, width // self.K, self.K).transpose(0, 2, 1, 3)
