"""The ceiling: how fast this device multiplies matrices."""

import time
from functools import partial
from typing import Any

import jax
from jaxtyping import Array

from attn_jax.benchmark.measure import finish, peak_mib
from attn_jax.benchmark.presets import check_dtype

SHAPE = (2048, 512, 2048)  # rows, summed over, columns: of the ceiling
OTHERS = {"mlp": (2048, 512, 2048), "square": (1024, 1024, 1024), "vocabulary": (2048, 512, 8192)}
ROUNDS = 15
PAIRS = 2  # of products in one program, at the least
LONG = 1e-2  # seconds a program takes at the least: to start one is then nothing beside it


def ceiling(dtype: str, shape: tuple[int, int, int] = SHAPE, rounds: int = ROUNDS) -> float:
    """Returns the FLOP/s of matrix products `[n, k] @ [k, m] @ [m, k]` on all devices together.

    A multiply-add is 2. It is the best of `rounds` rounds on one device, so that other programs
    on the machine do not lower it, times the number of devices.
    """
    n, k, m = shape
    keys = jax.random.split(jax.random.key(0))
    a = jax.random.normal(keys[0], (n, k), dtype)
    b = jax.random.normal(keys[1], (k, m), dtype)

    c, pairs = b.T.copy(), PAIRS
    while (best := _fastest(a, b, c, pairs, rounds)) < LONG:
        pairs *= 8
    return jax.device_count() * pairs * 2 * 2 * n * k * m / best


@partial(jax.jit, static_argnums=3)
def _products(a: Array, b: Array, c: Array, pairs: int) -> Array:
    for _ in range(pairs):
        a = (a @ b) @ c  # each needs the one before, so none is dropped as a repetition
    return a


def _fastest(a: Array, b: Array, c: Array, pairs: int, rounds: int) -> float:
    """Returns the seconds of the fastest of `rounds` calls, compiled before."""
    _products(a, b, c, pairs).block_until_ready()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        _products(a, b, c, pairs).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return best


def run(dtype: str) -> dict[str, Any]:
    """Returns the ceilings in GFLOP/s of the shapes that the models use."""
    check_dtype(dtype)
    shapes = {name: round(ceiling(dtype, shape) / 1e9, 1) for name, shape in OTHERS.items()}
    return finish({"kind": "roofline", "dtype": dtype, "gflops": shapes, "peak_mib": peak_mib()})
