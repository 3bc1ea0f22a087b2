"""How the cost of a training step grows with each size of the model and of the batch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from attn_jax.benchmark.measure import Budget, finish, peak_mib
from attn_jax.benchmark.presets import TRAIN, TrainSizes, choose
from attn_jax.benchmark.train import measure, synthetic
from attn_jax.comparison.figures import PALETTE, STYLE

SIZES = {  # and what their axis says
    "length": "sequence length T",
    "width": "width D",
    "layers": "layers L",
    "vocab": "vocabulary V",
    "batch": "rows of a batch B",
}
FACTORS = (1, 2, 4)


def scaled(sizes: TrainSizes, name: str, factor: int) -> TrainSizes:
    """Returns the sizes with one of them times `factor`; heads keep their width."""
    changes = {name: factor * getattr(sizes, name)}
    if name == "width":
        changes["heads"] = factor * sizes.heads
    return replace(sizes, **changes)


def run(
    preset: str, objective: str, dtype: str, budget: Budget, picture: Path | None = None
) -> dict[str, Any]:
    """Times the step with one size after the other at 1, 2 and 4 times the preset's.

    Args:
      preset: a name in TRAIN.
      objective: causal_lm or masked_lm.
      dtype: of activations.
      budget: of each measurement.
      picture: an SVG file to draw.

    Returns:
      The report; `results` has, for each size, its values, milliseconds a step, and MiB of
      temporary memory.
    """
    base = choose("preset", preset, TRAIN)
    results = {}
    for name in SIZES:
        points = [scaled(base, name, factor) for factor in FACTORS]
        found = [
            measure(synthetic(sizes, objective, dtype), budget, f"{name} {getattr(sizes, name)}")
            for sizes in points
        ]
        results[name] = {
            "values": [getattr(sizes, name) for sizes in points],
            "step_ms": [result["step_ms"] for result in found],
            "temp_mib": [result["temp_mib"] for result in found],
        }
    if picture is not None:
        draw(results, picture)
    report = {"kind": "growth", "name": preset, "objective": objective, "dtype": dtype}
    return finish(report | {"results": results, "peak_mib": peak_mib()})


def draw(results: dict[str, Any], picture: Path) -> None:
    """Draws one panel a size, milliseconds over values, beside a line of equal growth."""
    with rc_context(STYLE | {"svg.hashsalt": "growth", "svg.fonttype": "path"}):
        figure = Figure(figsize=(12, 2.9), layout="constrained")
        for axes, (name, found) in zip(
            figure.subplots(1, len(SIZES), squeeze=False)[0], results.items(), strict=True
        ):
            values, times = found["values"], found["step_ms"]
            equal = [times[0] * value / values[0] for value in values]
            axes.plot(values, equal, color="#9aa3ad", linestyle="--", linewidth=1)
            axes.plot(values, times, color=PALETTE[0], marker="o", markersize=4)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.set_xticks(values, [str(value) for value in values])
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_xlabel(SIZES[name])
        figure.axes[0].set_ylabel("ms a step (dashed: equal growth)")
        figure.savefig(picture, metadata={"Date": None})
