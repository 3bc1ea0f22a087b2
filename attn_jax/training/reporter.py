"""What a run says while it trains: a progress bar, and lines of metrics.jsonl one step late."""

import math
import time
from dataclasses import dataclass, fields
from typing import Any

import optax
from jaxtyping import Array
from tqdm import tqdm

from attn_jax.training.metrics import MetricsLog


@dataclass
class Totals:
    """What a run has consumed; saved with every checkpoint."""

    tokens: int = 0  # of text, padding not counted
    targets: float = 0.0  # loss-bearing tokens, up to the last logged step
    seconds: float = 0.0  # in the loop, evaluation and checkpoints included

    @classmethod
    def of(cls, values: Any) -> "Totals":
        """Returns the totals that `asdict` gave; raises ValueError for anything else."""
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            raise ValueError(f"expected {', '.join(names)}, not {values!r}")
        if not all(isinstance(x, int | float) and math.isfinite(x) for x in values.values()):
            raise ValueError(f"expected finite numbers, not {values!r}")
        return cls(**values)


class Reporter:
    """Keeps the totals, and turns window sums into log lines.

    Sums are queued by `queue` and read by `flush` after the next step was dispatched, so that the
    host never waits for the device in between.
    """

    def __init__(self, log: MetricsLog | None, rate: optax.Schedule, totals: Totals, bar: tqdm):
        self.totals = totals
        self._log, self._rate, self._bar = log, rate, bar
        self._before = totals.seconds
        self._started = self._lap_time = time.perf_counter()
        self._lap_tokens = totals.tokens
        self._pending: tuple[int, dict[str, Array], int] | None = None

    def seconds(self) -> float:
        """Returns the seconds spent by all starts of this run."""
        return self._before + time.perf_counter() - self._started

    def queue(self, step: int, sums: dict[str, Array]) -> None:
        """Remembers the window that ends with `step`."""
        self._pending = (step, sums, self.totals.tokens)

    def flush(self) -> None:
        """Writes the queued line, if there is one.

        Raises:
          FloatingPointError: the loss of the window is not finite.
        """
        if self._pending is None:
            return
        step, sums, tokens = self._pending
        self._pending = None
        sums = refuse_not_finite(step, sums)
        self.totals.targets += sums["weight"]
        now = time.perf_counter()
        speed = (tokens - self._lap_tokens) / (now - self._lap_time)
        self._lap_time, self._lap_tokens = now, tokens
        weight = max(sums["weight"], 1.0)
        values = {
            "loss": sums["nll"] / weight,
            "accuracy": sums["correct"] / weight,
            "grad_norm": sums["grad_norm"] / sums["steps"],
            "learning_rate": float(self._rate(step - 1)),
            "tokens": tokens,
            "targets": self.totals.targets,
            "seconds": round(self.seconds(), 3),
            "tokens_per_s": round(speed, 1),
        }
        self._bar.set_postfix(
            loss=f"{values['loss']:.3f}", tokens_per_s=f"{speed:,.0f}", refresh=False
        )
        self.write(step, "train", values)

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Writes a line; only the main process does."""
        if self._log is not None:
            self._log.write(step, split, values)

    def advance(self) -> None:
        """Moves the progress bar by one step."""
        self._bar.update()

    def skip_time(self) -> None:
        """Leaves what just happened (evaluation, saving) out of the next tokens/s."""
        self._lap_time, self._lap_tokens = time.perf_counter(), self.totals.tokens


def refuse_not_finite(step: int, sums: dict[str, Array]) -> dict[str, float]:
    """Returns the sums as numbers; raises FloatingPointError if one is not finite."""
    values = {name: float(value) for name, value in sums.items()}
    if not all(math.isfinite(value) for value in values.values()):
        raise FloatingPointError(f"the loss or its gradient is not finite at step {step}")
    return values
