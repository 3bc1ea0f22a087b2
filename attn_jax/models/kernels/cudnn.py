"""cuDNN's fused attention on NVIDIA GPUs, as JAX offers it."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attn_jax.errors import InputError
from attn_jax.models.kernels.dense import zero_unseeing
from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens


def attend_cudnn(
    q_BHTK: Float[Array, "B H T K"],
    k_BGSK: Float[Array, "B G S K"],
    v_BGSK: Float[Array, "B G S K"],
    queries: Tokens,
    keys: Tokens,
    window: int = 0,
    *,
    implementation: str = "cudnn",
) -> Float[Array, "B H T K"]:
    """Computes what `attend` does; only the mask grows with T * S.

    Args:
      q_BHTK: queries; H is a multiple of G.
      k_BGSK: keys.
      v_BGSK: values.
      queries: fields of the queries, [B, T].
      keys: fields of the keys, [B, S].
      window: see `visible`.
      implementation: of `jax.nn.dot_product_attention`; "xla" runs anywhere, for tests.

    Raises:
      InputError: there is no NVIDIA GPU, or cuDNN does not take this type or head width.
    """
    if implementation == "cudnn":
        refuse_unfit(q_BHTK.dtype, q_BHTK.shape[-1])
    (B, H, T), S = q_BHTK.shape[:3], k_BGSK.shape[2]
    seen = visible(queries, keys, window)
    # cuDNN takes even lengths only. The mask is whole over rows and heads, since for a broadcast
    # axis it would sum a gradient of the mask that nobody asks for.
    mask = jnp.broadcast_to(_even(_even(seen, 1), 2)[:, None], (B, H, T + T % 2, S + S % 2))
    q, k, v = (_even(x, 2).swapaxes(1, 2) for x in (q_BHTK, k_BGSK, v_BGSK))
    y = jax.nn.dot_product_attention(q, k, v, mask=mask, implementation=implementation)
    return zero_unseeing(y[:, :T].swapaxes(1, 2), seen)


def _even(x: Array, axis: int) -> Array:
    return jnp.pad(x, [(0, x.shape[i] % 2 if i == axis else 0) for i in range(x.ndim)])


def refuse_unfit(dtype: DTypeLike, width: int) -> None:
    """Raises InputError if cuDNN cannot run here, or does not take this type or head width."""
    if jax.default_backend() != "gpu":
        problem = f"needs an NVIDIA GPU, and JAX found {jax.default_backend()}"
    elif jnp.dtype(dtype) != jnp.bfloat16:
        problem = f"needs model.dtype = bfloat16, not {jnp.dtype(dtype)}"
    elif width % 8 or width > 128:
        problem = f"needs a head width that is a multiple of 8, at most 128, not {width}"
    else:
        return
    raise InputError(f"model.attention = 'cudnn': {problem}")
