"""The grid of a sweep: its points, their names, and what it means to be the best of them."""

import itertools
from urllib.parse import quote

from attn_jax.comparison.metrics import OWN_BITS
from attn_jax.comparison.runs import Number

Point = dict[str, Number | str | bool]  # dotted config field -> value

GRID_METRICS = (  # what points may be judged by
    "loss/loss",
    OWN_BITS,
    "translation/exact_match",
    "translation/bleu",
    "translation/bleu_tokenized",
    "translation/chrf",
)


def points(grid: dict[str, tuple]) -> list[Point]:
    """Returns every combination of the values of a grid, in its order."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def point_name(point: Point) -> str:
    """Returns a folder name such as "optimizer.learning_rate=0.01,model.dropout=0.1"."""
    return ",".join(f"{name}={quote(str(value), safe='')}" for name, value in point.items())


def best(scores: list[Number | None], less_is_better: bool) -> int | None:
    """Returns the index of the best score, the first of equal ones; None counts as worst.

    Returns:
      None where no score is a number.
    """
    numbers = [(score, index) for index, score in enumerate(scores) if score is not None]
    if not numbers:
        return None
    key = (lambda x: x[0]) if less_is_better else (lambda x: -x[0])
    return min(numbers, key=key)[1]


def borders(grid: dict[str, tuple], point: Point) -> dict[str, str]:
    """Returns field -> "smallest" or "largest", for the numbers at a border of the grid."""
    found = {}
    for name, value in point.items():
        if isinstance(value, bool | str):
            continue
        if value == min(grid[name]):
            found[name] = "smallest"
        elif value == max(grid[name]):
            found[name] = "largest"
    return found
