"""What an evaluator is, and what it is made from."""

from dataclasses import dataclass
from typing import Any, ClassVar

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


class Evaluator:
    """A small object that measures parameters."""

    kinds: ClassVar[tuple[str, ...]]  # of data that it fits: "text", "pair"

    def __init__(self, subject: Subject):
        """Prepares what does not depend on the parameters."""

    @classmethod
    def problem(cls, config: Config, objective: Objective) -> str:
        """Returns what it needs and does not find, or an empty string."""
        needed = " or ".join(cls.kinds)
        data = f"{needed} data, and data.name = {config.data.name!r} is {objective.kind} data"
        return "" if objective.kind in cls.kinds else data

    def run(self, params: dict) -> dict[str, Any]:
        """Returns `{name: value}` of plain numbers, strings, lists and dicts.

        Of these `per_item`, if there, is `{metric: [a number, or a list of numbers, an item]}`,
        kept apart for tests over items.
        """
        raise NotImplementedError

    def curve(self, params: dict) -> dict[str, Any]:
        """Returns what is worth its time while training: all, unless there is something cheaper."""
        return self.run(params)


def single_stack(config: Config) -> str:
    """Returns the problem of an evaluator that reads one sequence with a model of two."""
    alone = config.model.architecture != "encoder_decoder"
    return "" if alone else "a single stack, and model.architecture = 'encoder_decoder'"
