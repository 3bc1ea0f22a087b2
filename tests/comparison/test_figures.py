"""Bars, lines and bands stand where their numbers are."""

import re

import pytest
from matplotlib.figure import Figure

from attn_jax.comparison import figures


def test_bars_have_the_lengths_given():
    rows = {"first": {"a": 0.25, "b": 0.75}, "second": {"a": 1.0}}
    svg = figures.bars(rows, figures.colors(["a", "b"]), "accuracy")
    paths = re.findall(r'd="M ([\d.]+) [\d.]+ \nL ([\d.]+) [^"]*" [^>]*fill: (#\w+)', svg)
    lengths = {}
    for start, end, color in paths:
        lengths.setdefault(color, []).append(float(end) - float(start))
    (first, second), (third,) = lengths[figures.PALETTE[0]], lengths[figures.PALETTE[1]]
    assert second == pytest.approx(4 * first, rel=1e-3)
    assert third == pytest.approx(3 * first, rel=1e-3)


def test_lines_are_means_and_bands_go_from_the_lowest_to_the_highest_seed():
    curve = {"steps": [1, 2], "mean": [5.0, 4.0], "min": [3.0, 3.5], "max": [9.0, 8.0]}
    axes = Figure().subplots()
    figures._draw(axes, curve, "black")
    assert axes.lines[0].get_ydata().tolist() == curve["mean"]
    corners = axes.collections[0].get_paths()[0].vertices.tolist()
    ends = {(x, y) for name in ("min", "max") for x, y in zip((1, 2), curve[name], strict=True)}
    assert set(map(tuple, corners)) == ends
    point = {name: values[:1] for name, values in curve.items()}
    axes = Figure().subplots()
    figures._draw(axes, point, "black")
    (bar,) = axes.collections[0].get_segments()
    assert bar.tolist() == [[1, 3], [1, 9]]
    assert axes.lines[0].get_ydata().tolist() == [5]


def test_figures_are_the_same_every_time(collected):
    by_arm = collected["masking"]["curves"]["train"]["loss"]
    palette = figures.colors(list(by_arm))
    assert figures.curves(by_arm, palette, "loss") == figures.curves(by_arm, palette, "loss")
