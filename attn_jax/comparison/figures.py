"""Figures as SVG text that is pasted into the report: curves, bars and attention maps."""

import io
import re
from html import escape
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from attn_jax.comparison.runs import Number

PALETTE = ("#1f6fb2", "#d1582c", "#2f8f5b", "#8657b8", "#b1841c", "#c04a86", "#3b9aa3", "#6b6f76")

LEARNING_RATE = "optimizer.learning_rate"

INK, FAINT = "#3b434d", "#dfe3e8"

HEAT = LinearSegmentedColormap.from_list("heat", ("#ffffff", "#a9cbe8", "#1f6fb2", "#0c2f55"))

STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",  # text stays text: small, sharp, and in the page's own font
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}

Curve = dict[str, list[Number]]


def colors(names: list[str]) -> dict[str, str]:
    """Returns a color for every name, the same in every figure that gets the same dict."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(dict.fromkeys(names))}


def curves(
    by_arm: dict[str, Curve],
    palette: dict[str, str],
    label: str,
    baselines: dict[str, Number] | None = None,
    against: str = "updates",
) -> str:
    """Draws a line for every arm, with the range over seeds as a band and its name at the end.

    An arm of one point is drawn as a point, with the range over seeds as a bar.

    Args:
      by_arm: arm -> `steps` (or whatever it is drawn against), `mean`, `min`, `max`.
      palette: arm -> color.
      label: what the vertical axis shows.
      baselines: name -> height of a dashed line.
      against: what the horizontal axis shows.

    Returns:
      SVG text.
    """
    with rc_context(STYLE | {"svg.hashsalt": label + against}):
        figure = Figure(figsize=(5.4, 3.2), layout="constrained")
        axes = figure.subplots()
        ends = {}
        for arm, curve in by_arm.items():
            _draw(axes, curve, palette[arm])
            ends[arm] = (curve["mean"][-1], palette[arm])
        for name, height in (baselines or {}).items():
            axes.axhline(height, color="#8a929c", linewidth=1.2, linestyle=(0, (4, 3)))
            ends[name] = (height, "#6a727c")
        axes.set(xlabel=against, ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.margins(x=0 if _is_line(by_arm) else 0.3)
        _label_ends(axes, ends)
        return _svg(figure, f"{label} over {against}: {', '.join(by_arm)}")


def bars(by_group: dict[str, dict[str, Number]], palette: dict[str, str], label: str) -> str:
    """Draws one bar for every arm in every group, the groups one below the other.

    Args:
      by_group: group -> arm -> length of the bar, 0 to 1; half is marked as chance.
      palette: arm -> color.
      label: what the bars show.

    Returns:
      SVG text.
    """
    arms = list(dict.fromkeys(arm for own in by_group.values() for arm in own))
    with rc_context(STYLE | {"svg.hashsalt": label, "axes.grid.axis": "x"}):
        height = 0.6 + len(by_group) * (0.15 + 0.13 * len(arms))
        figure = Figure(figsize=(5.4, height), layout="constrained")
        axes = figure.subplots()
        thick = 0.8 / len(arms)
        for number, arm in enumerate(arms):
            rows = [i for i, own in enumerate(by_group.values()) if arm in own]
            lengths = [own[arm] for own in by_group.values() if arm in own]
            at = [row + (number - (len(arms) - 1) / 2) * thick for row in rows]
            axes.barh(at, lengths, 0.9 * thick, color=palette[arm])
        axes.axvline(0.5, color="#8a929c", linewidth=1.2, linestyle=(0, (4, 3)))
        axes.set_yticks(range(len(by_group)), [_visible(name) for name in by_group])
        axes.set(xlabel=label, xlim=(0, 1))
        axes.margins(y=0.01)
        axes.invert_yaxis()
        return _svg(figure, f"{label}: {', '.join(arms)}")


def _is_line(by_arm: dict[str, Curve]) -> bool:
    return all(len(curve["steps"]) > 1 for curve in by_arm.values())


def _draw(axes: Axes, curve: Curve, color: str) -> None:
    x, mean, low, high = (np.asarray(curve[k], float) for k in ("steps", "mean", "min", "max"))
    if len(x) == 1:
        axes.errorbar(x, mean, [mean - low, high - mean], fmt="o", color=color, capsize=4)
        return
    axes.plot(x, mean, color=color, linewidth=2)
    axes.fill_between(x, low, high, color=color, alpha=0.18, lw=0)


def sensitivity(
    by_arm: dict[str, list[tuple[Number | str, Number | None]]],
    palette: dict[str, str],
    field: str,
    label: str,
) -> str:
    """Draws quality against the value of a field, a line for every arm.

    The axis is logarithmic for learning rates and wherever positive values span a factor of ten;
    values that are no numbers stand side by side.

    Args:
      by_arm: arm -> (value, score); a score of None is a cross at the upper edge.
      palette: arm -> color.
      field: what the horizontal axis shows.
      label: what the vertical axis shows.

    Returns:
      SVG text.
    """
    values = list(dict.fromkeys(value for points in by_arm.values() for value, _ in points))
    numeric = all(isinstance(value, Number) and not isinstance(value, bool) for value in values)
    places = {value: value if numeric else place for place, value in enumerate(values)}
    with rc_context(STYLE | {"svg.hashsalt": field}):
        figure = Figure(figsize=(5.4, 3.2), layout="constrained")
        axes = figure.subplots()
        positive = numeric and min(values) > 0
        if positive and (field == LEARNING_RATE or max(values) >= 10 * min(values)):
            axes.set_xscale("log")
        ends = {}
        for arm, points in by_arm.items():
            points = sorted((places[value], score) for value, score in points)
            drawn = [(x, score) for x, score in points if score is not None]
            axes.plot(*zip(*drawn, strict=True), "o-", color=palette[arm], linewidth=2)
            lost = [x for x, score in points if score is None]
            edge = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(lost, [1] * len(lost), "x", color=palette[arm], markersize=8, **edge)
            ends[arm] = (drawn[-1][1], palette[arm])
        axes.set_xticks(list(places.values()), [_visible(f"{v}") for v in places])
        axes.minorticks_off()
        axes.set(xlabel=field, ylabel=label)
        _label_ends(axes, ends)
        return _svg(figure, f"{label} over {field}: {', '.join(by_arm)}")


def attention(found: dict[str, Any], title: str) -> str:
    """Draws one heat map a layer: rows are queries, columns are keys.

    Args:
      found: `pieces`, T strings, and `layers`, each T x T shares of attention.
      title: what the figure shows, for readers who cannot see it.

    Returns:
      SVG text.
    """
    pieces = [_visible(piece) for piece in found["pieces"]]
    layers = found["layers"]
    columns = min(2, len(layers))
    rows = -(-len(layers) // columns)
    with rc_context(STYLE | {"axes.grid": False, "svg.hashsalt": title}):
        figure = Figure(figsize=(3.4 * columns, 3.5 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(layers) :]:
            axes.set_axis_off()
        for number, (axes, layer) in enumerate(zip(grid.flat, layers, strict=False), start=1):
            _heat(axes, np.asarray(layer), pieces)
            axes.set_title(f"layer {number}", fontsize=10, color=INK, loc="left")
        return _svg(figure, title)


def _heat(axes: Axes, weights: np.ndarray, pieces: list[str]) -> None:
    axes.imshow(weights, cmap=HEAT, vmin=0, vmax=1, interpolation="none")
    size = min(9.0, 150 / len(pieces))
    axes.set_xticks(range(len(pieces)), pieces, rotation=90, fontsize=size)
    axes.set_yticks(range(len(pieces)), pieces, fontsize=size)
    axes.spines[:].set_visible(False)


def _visible(piece: str) -> str:
    return piece.strip().replace("$", r"\$") or "␣"


def _label_ends(axes: Axes, ends: dict[str, tuple[Number, str]]) -> None:
    """Writes each name beside the end of its line, pushed apart where they would overlap."""
    low, high = axes.get_ylim()
    gap = 0.075 * (high - low)
    at = low - gap
    for name, (height, color) in sorted(ends.items(), key=lambda item: item[1][0]):
        at = max(at + gap, height)
        axes.annotate(
            name.replace("$", r"\$"),
            (1, at),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=color,
            annotation_clip=False,
        )


def _svg(figure: Figure, title: str) -> str:
    """Returns the figure as an <svg> element that scales to the width of its box."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # Left out: what links elsewhere, page-wide style, the page's own font, and unused names.
    for needless in (
        r"<metadata>.*?</metadata>",
        r"<style.*?</style>",
        r"font-family: [^;]*; ?",
        r'(?<=<g) id="[\w.]+_\d+"',
    ):
        svg = re.sub(needless, "", svg, flags=re.DOTALL)
    head = f'<svg role="img" aria-label="{escape(title)}"'
    return re.sub(r' (?:width|height)="[\d.]+pt"', "", svg).replace("<svg", head, 1)
