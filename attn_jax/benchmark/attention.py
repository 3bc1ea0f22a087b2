"""Attention kernels over long sequences: time and memory of forward and backward."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn_jax.benchmark.measure import (
    TRAINING_CONVENTION,
    Budget,
    compile_ahead,
    finish,
    peak_mib,
    speed,
    time_steps,
)
from attn_jax.benchmark.presets import check_dtype, choose
from attn_jax.benchmark.roofline import ceiling
from attn_jax.models import kernels as model_kernels
from attn_jax.models.attention import attend
from attn_jax.models.tokens import Tokens

HEADS, HEAD_WIDTH = 8, 64


KERNELS = {"reference": attend, **model_kernels.KERNELS}


def packed_row(T: int, document: int) -> Tokens:
    """Returns the fields [1, T] of one causal row cut into documents of `document` tokens.

    0 stands for one document as long as the row; the last one may be shorter.
    """
    places = jnp.arange(T, dtype=jnp.int32)[None]
    size = document or T
    return Tokens(jnp.zeros((1, T), jnp.int32), places % size, places // size + 1).causal()


def flops(T: int, document: int) -> float:
    """Returns the FLOPs of forward and backward, by the pairs that a causal mask lets through."""
    whole, rest = divmod(T, document or T)
    sizes = [document or T] * whole + [rest]
    pairs = sum(n * (n + 1) // 2 for n in sizes)
    return 3.0 * 2 * 2 * HEADS * HEAD_WIDTH * pairs


def linear_fit(lengths: Sequence[int], mib: Sequence[float]) -> dict[str, float]:
    """Fits `mib = intercept + slope * T` by least squares.

    Returns:
      MiB per 1,024 positions, the intercept in MiB, and the largest distance of a point from the
      line as a share of the largest memory: near 0 where memory is linear.
    """
    slope, intercept = np.polyfit(lengths, mib, 1)
    worst = np.max(np.abs(np.asarray(mib) - (intercept + slope * np.asarray(lengths))))
    return {
        "mib_per_1024": float(1024 * slope),
        "intercept_mib": float(intercept),
        "worst_share": float(worst / max(mib)) if max(mib) else 0.0,
    }


def measure(kernel: str, T: int, document: int, dtype: str, budget: Budget) -> dict[str, Any]:
    """Times forward and backward of a kernel on one causal row of T positions, 8 heads of 64."""
    attend_by = choose("kernels", kernel, KERNELS)
    row = packed_row(T, document)
    q, k, v, dy = jax.random.normal(jax.random.key(0), (4, 1, HEADS, T, HEAD_WIDTH), dtype)

    @jax.jit
    def both(q: Array, k: Array, v: Array, dy: Array, row: Tokens) -> tuple:
        y, backward = jax.vjp(lambda q, k, v: attend_by(q, k, v, row, row), q, k, v)
        return y, backward(dy)

    seconds, temp = compile_ahead(both, q, k, v, dy, row)
    times = time_steps(lambda: both(q, k, v, dy, row), budget, f"{kernel} {T}")
    result = {"kernel": kernel, "T": T, "compile_s": seconds, "temp_mib": temp}
    return result | {"flops_per_token": flops(T, document) / T} | speed(times, T)


def run(
    kernels: Sequence[str], lengths: Sequence[int], document: int, dtype: str, budget: Budget
) -> dict[str, Any]:
    """Measures every kernel at every length; returns the report.

    Its keys outside of `results` are those of the last kernel at its last length.

    Args:
      kernels: names in KERNELS.
      lengths: T, positions of the one row.
      document: tokens of each packed document; 0: one as long as the row.
      dtype: of queries, keys and values.
      budget: of each measurement.
    """
    check_dtype(dtype)
    for kernel in kernels:
        choose("kernels", kernel, KERNELS)  # refused before anything is measured
    results = {
        kernel: [measure(kernel, T, document, dtype, budget) for T in lengths] for kernel in kernels
    }
    top = ceiling(dtype, devices=1)  # which is what a row is on
    for entry in (entry for entries in results.values() for entry in entries):
        entry["roofline_share"] = entry["flops_per_token"] * entry["tokens_per_s"] / top
    report = {"kind": "attention", "dtype": dtype, "documents": document, "results": results}
    report |= {"peak_mib": peak_mib(), "ceiling_gflops": top / 1e9}
    if len(set(lengths)) > 2:  # two points fit any line
        report["memory_fit"] = {
            kernel: linear_fit(lengths, [entry["temp_mib"] for entry in entries])
            for kernel, entries in results.items()
        }
    last = results[kernels[-1]][-1]
    return finish({"flops_convention": TRAINING_CONVENTION} | report | last)
