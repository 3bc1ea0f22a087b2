"""Timing, memory, and the lines that every benchmark reports."""

import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from tqdm import tqdm

from attn_jax.devices import cores
from attn_jax.errors import InputError
from attn_jax.training.run_directory import versions

WARM_UP = 2
MIB = 2**20
TRAINING_CONVENTION = (
    "as ledger.json: a multiply-add is 2; backward costs twice forward; matrix products only; "
    "attention by visible pairs; the vocabulary only at targets; padding not counted"
)
FORWARD_CONVENTION = (
    "as ledger.json, forward only: the source encoded once and the target read once, per token "
    "generated"
)


@dataclass(frozen=True)
class Budget:
    """How long to measure: `steps` of them, or, if that is 0, as many as fit in `seconds`."""

    steps: int = 0
    seconds: float = 15.0
    least: int = 5  # steps in any case, if `steps` is 0

    def __post_init__(self):
        """Raises InputError for seconds that are no number."""
        if math.isnan(self.seconds):
            raise InputError(f"seconds = {self.seconds}: expected a number")

    def count(self, step: float) -> int:
        """Returns how many steps to time, given what one takes in seconds."""
        return self.steps or max(self.least, int(self.seconds / max(step, 1e-9)))


def time_steps(run: Callable[[], Any], budget: Budget, name: str) -> list[float]:
    """Returns the seconds of each call of `run`, its results waited for, after a warm-up of 2.

    Args:
      run: one step; returns arrays.
      budget: how many steps.
      name: of the progress bar on stderr.
    """
    return time_in_turn({name: run}, budget, name)[name]


def time_in_turn(
    works: Mapping[Hashable, Callable[[], Any]], budget: Budget, name: str
) -> dict[Hashable, list[float]]:
    """As `time_steps`, of several works that take turns, so that all meet the same machine.

    Args:
      works: what to call; a step is one call of each.
      budget: how many steps.
      name: of the progress bar on stderr.
    """

    def once(run: Callable[[], Any]) -> float:
        start = time.perf_counter()
        jax.block_until_ready(run())
        return time.perf_counter() - start

    last = [sum(once(run) for run in works.values()) for _ in range(WARM_UP)][-1]
    times = {key: [] for key in works}
    for _ in tqdm(range(budget.count(last)), name, unit="step", file=sys.stderr, mininterval=1):
        for key, run in works.items():
            times[key].append(once(run))
    return times


def compile_ahead(function: Any, *args: Any) -> tuple[float, float]:
    """Compiles a jitted function for `args`; returns seconds, and MiB of temporary buffers."""
    start = time.perf_counter()
    compiled = function.lower(*args).compile()
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    return seconds, memory.temp_size_in_bytes / MIB


def peak_mib() -> float:
    """Returns the most memory used so far in MiB: of the first device, or of this process."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] / MIB
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (MIB if sys.platform == "darwin" else 1024)


def speed(times: list[float], tokens_per_step: float | int) -> dict[str, Any]:
    """Returns step_ms, the median of `times` in seconds, and the tokens/s that follow from it."""
    median = statistics.median(times)
    return {
        "tokens_per_s": tokens_per_step / median,
        "step_ms": 1e3 * median,
        "fastest_ms": 1e3 * min(times),
        "slowest_ms": 1e3 * max(times),
        "steps": len(times),
        "tokens_per_step": tokens_per_step,
    }


def surroundings() -> dict[str, Any]:
    """Returns what a number depends on besides the code."""
    return {
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "cores": len(cores()),
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES", ""),
        "versions": versions(),
    }


def finish(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the result with every key that all kinds have, floats to 6 digits.

    Keys that mean nothing for a kind are null.
    """
    common = (
        "tokens_per_s step_ms compile_s peak_mib temp_mib flops_per_token flops_convention "
        "roofline_share"
    )
    return _rounded(dict.fromkeys(common.split()) | result | surroundings())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
