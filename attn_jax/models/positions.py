"""Position schemes, each a function of the tokens' own positions and of nothing else."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Cosine and sine of the rotary angles, [B, 1, T, K/2] each.
Rotation = tuple[Array, Array]


def _angles(positions: Int[Array, "B T"], count: int) -> Float[Array, "B T count"]:
    frequencies = 10_000.0 ** (-jnp.arange(count, dtype=jnp.float32) / count)
    return positions[..., None].astype(jnp.float32) * frequencies[None, None, :]


def sinusoidal(positions: Int[Array, "B T"], width: int) -> Float[Array, "B T D"]:
    """Returns sines and cosines of geometric wavelengths (Vaswani et al. 2017)."""
    angles = _angles(positions, width // 2)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def rotation(positions: Int[Array, "B T"], width: int) -> Rotation:
    """Returns the rotary cosines and sines for heads of `width` (Su et al. 2021)."""
    angles = _angles(positions, width // 2)[:, None]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BHTK: Float[Array, "B H T K"], rotation: Rotation) -> Float[Array, "B H T K"]:
    """Turns each pair (x[i], x[i + K/2]) by its angle, so products depend on distance only."""
    cos, sin = rotation
    a, b = jnp.split(x_BHTK.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    return turned.astype(x_BHTK.dtype)
