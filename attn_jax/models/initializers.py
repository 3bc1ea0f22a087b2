"""Fresh parameters, in draws of few sizes: each new size costs a third of a second to compile.

A draw of jax.random begins with the same numbers whatever its size (`jax_threefry_partitionable`),
so cutting a longer one gives what the exact size would give.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

FEW, MANY = 2**16, 2**20  # numbers in a draw: FEW, or a multiple of MANY
OF_TRUNCATED = np.float32(0.87962566103423978)  # deviation of a normal between -2 and 2


def scaled(share: float = 1.0) -> nnx.Initializer:
    """Returns truncated normals of variance `share` / fan-in, for the kernels of dense layers.

    As `nnx.initializers.variance_scaling(share, "fan_in", "truncated_normal")`.
    """

    def init(key: Array, shape: tuple[int, ...], dtype=jnp.float32, out_sharding=None) -> Array:
        deviation = np.sqrt(np.float32(share / shape[0])) / OF_TRUNCATED
        draw = partial(jax.random.truncated_normal, key, -2, 2)
        return _draw(draw, shape, deviation).astype(dtype)

    return init


def normal(deviation: float) -> nnx.Initializer:
    """Returns normals of this deviation, for tables; as `nnx.initializers.normal`."""

    def init(key: Array, shape: tuple[int, ...], dtype=jnp.float32, out_sharding=None) -> Array:
        return _draw(partial(jax.random.normal, key), shape, np.float32(deviation)).astype(dtype)

    return init


def _draw(
    draw: Callable[[tuple[int]], Array], shape: tuple[int, ...], deviation: np.float32
) -> Array:
    count = math.prod(shape)
    size = FEW if count <= FEW else -(-count // MANY) * MANY
    return _cut(draw((size,)), deviation, shape)


@partial(jax.jit, static_argnums=2)
def _cut(draw: Array, deviation: Array, shape: tuple[int, ...]) -> Array:
    return draw[: math.prod(shape)].reshape(shape) * deviation
