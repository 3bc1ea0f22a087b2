"""The ceiling: how fast this device multiplies matrices."""

import time
from collections.abc import Sequence
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


def ceiling(
    dtype: str,
    shape: tuple[int, int, int] = SHAPE,
    rounds: int = ROUNDS,
    devices: int | None = None,
) -> float:
    """Returns the FLOP/s of matrix products `[n, k] @ [k, m] @ [m, k]`.

    A multiply-add is 2. It is the best of `rounds` rounds, so that other programs on the machine do
    not lower it, on all devices at once: those of one CPU share its cores.

    Args:
      dtype: of the matrices.
      shape: n, k and m.
      rounds: how often it is timed.
      devices: how many of this process; by default all there are, also those of other processes.
    """
    n, k, m = shape
    keys = jax.random.split(jax.random.key(0))
    a = jax.random.normal(keys[0], (n, k), dtype)
    b = jax.random.normal(keys[1], (k, m), dtype)

    used = jax.local_devices()[:devices]
    operands, pairs = [jax.device_put((a, b, b.T.copy()), device) for device in used], PAIRS
    while (best := _fastest(operands, pairs, rounds)) < LONG:
        pairs *= 8
    count = len(used) * (jax.process_count() if devices is None else 1)
    return count * pairs * 2 * 2 * n * k * m / best


@partial(jax.jit, static_argnums=3)
def _products(a: Array, b: Array, c: Array, pairs: int) -> Array:
    for _ in range(pairs):
        a = (a @ b) @ c  # each needs the one before, so none is dropped as a repetition
    return a


def _fastest(operands: Sequence[tuple[Array, ...]], pairs: int, rounds: int) -> float:
    """Returns the seconds of the fastest of `rounds` calls on all operands, compiled before."""
    best = float("inf")
    for number in range(rounds + 1):
        start = time.perf_counter()
        jax.block_until_ready([_products(*each, pairs) for each in operands])
        if number:  # the first compiles
            best = min(best, time.perf_counter() - start)
    return best


def run(dtype: str) -> dict[str, Any]:
    """Returns the ceilings in GFLOP/s of the shapes that the models use."""
    check_dtype(dtype)
    shapes = {name: round(ceiling(dtype, shape) / 1e9, 1) for name, shape in OTHERS.items()}
    return finish({"kind": "roofline", "dtype": dtype, "gflops": shapes, "peak_mib": peak_mib()})
