"""What the report shows of a sweep: a table of all points, and quality against each field."""

from markupsafe import Markup

from attn_jax.comparison import figures, wording
from attn_jax.comparison.grid import best
from attn_jax.comparison.metrics import metric_of
from attn_jax.comparison.runs import Json, Number
from attn_jax.comparison.sweeps import warnings


def view(sweep: Json | None, palette: dict[str, str]) -> Json | None:
    """Returns what the template shows of a collected sweep, None where there is none.

    Args:
      sweep: what `collect_sweep` returned.
      palette: arm -> color.
    """
    if sweep is None:
        return None
    metric = metric_of(sweep["metric"])
    label = metric.words
    charts = [
        (name, Markup(figures.sensitivity(_lines(sweep, name), palette, name, label)))
        for name in sweep["fields"]
    ]
    return {
        "metric": label,
        "better": "lower" if sweep["less_is_better"] else "higher",
        "seeds": sweep["seeds"],
        "fields": list(sweep["fields"]),
        "rows": _rows(sweep, metric.digits),
        "charts": charts,
        "warnings": warnings(sweep),
    }


def _rows(sweep: Json, digits: int) -> list[Json]:
    """Returns one row a point: the values of the fields, and a cell of each arm."""
    rows = []
    for of_point in zip(*sweep["arms"].values(), strict=True):
        cells = {}
        for arm, found in zip(sweep["arms"], of_point, strict=True):
            score = found["score"]
            text = "not finite" if score is None else wording.number(score, digits)
            cells[arm] = {"text": text, "best": found["point"] == sweep["best"][arm]}
        rows.append({"values": list(of_point[0]["point"].values()), "cells": cells})
    return rows


def _lines(sweep: Json, name: str) -> dict[str, list[tuple[Number | str, Number | None]]]:
    """Returns arm -> (value of a field, score), each at the best values of the other fields."""
    lines = {}
    for arm, scored in sweep["arms"].items():
        lines[arm] = []
        for value in sweep["fields"][name]:
            scores = [found["score"] for found in scored if found["point"][name] == value]
            index = best(scores, sweep["less_is_better"])
            lines[arm].append((value, None if index is None else scores[index]))
    return lines
