"""What an evaluator is, and what it is made from."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from flax import nnx

from attn_jax.config import Config
from attn_jax.data.pipeline import Dataset
from attn_jax.objectives import Objective


@dataclass(frozen=True)
class Subject:
    """What is evaluated: everything about a run but its parameters."""

    config: Config
    dataset: Dataset
    objective: Objective
    graph: nnx.GraphDef


class Evaluator(Protocol):
    """A small object with one method."""

    kinds: ClassVar[tuple[str, ...]]  # of data that it fits: "text", "pair"

    def __init__(self, subject: Subject): ...

    def run(self, params: dict) -> dict[str, Any]:
        """Returns `{name: value}` of plain numbers, strings, lists and dicts."""
