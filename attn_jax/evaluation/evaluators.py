"""Runs the evaluators that a config names."""

from typing import Any

from flax import nnx

from attn_jax.config import Config, names_in
from attn_jax.data.pipeline import Dataset
from attn_jax.errors import InputError
from attn_jax.evaluation.attention_maps import AttentionMaps
from attn_jax.evaluation.cloze import Cloze
from attn_jax.evaluation.evaluator import Evaluator, Subject
from attn_jax.evaluation.fine_tuning import FineTuning
from attn_jax.evaluation.loss import Loss
from attn_jax.evaluation.minimal_pairs import MinimalPairs
from attn_jax.evaluation.probe import Probe
from attn_jax.evaluation.results import flat_numbers
from attn_jax.evaluation.shared_positions import SharedPositions
from attn_jax.evaluation.translation import TranslationQuality
from attn_jax.objectives import Objective

EVALUATORS: dict[str, type[Evaluator]] = {
    "loss": Loss,
    "shared_positions": SharedPositions,
    "translation": TranslationQuality,
    "attention": AttentionMaps,
    "minimal_pairs": MinimalPairs,
    "cloze": Cloze,
    "probe": Probe,
    "fine_tuning": FineTuning,
}


class Evaluation:
    """The evaluators of a run, made once so that nothing compiles twice."""

    def __init__(self, config: Config, dataset: Dataset, objective: Objective, graph: nnx.GraphDef):
        """Makes the evaluators.

        Raises:
          InputError: an evaluator does not fit the data.
        """
        self._config = config.eval
        subject = Subject(config, dataset, objective, graph)
        refuse_unfit(config, dataset, objective)
        names = {*names_in(config.eval.evaluators), *names_in(config.eval.curve)}
        self._evaluators = {name: EVALUATORS[name](subject) for name in names}

    def run(self, params: dict) -> dict[str, dict[str, Any]]:
        """Returns `{evaluator: results}` of all of `eval.evaluators`."""
        names = names_in(self._config.evaluators)
        return {name: self._evaluators[name].run(params) for name in names}

    def curve(self, params: dict) -> dict[str, int | float]:
        """Returns the numbers of `eval.curve`, named `evaluator/key`."""
        names = names_in(self._config.curve)
        return flat_numbers({name: self._evaluators[name].curve(params) for name in names})


def split_items(results: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns results without what single items scored, and that, by evaluator."""
    items = {name: found["per_item"] for name, found in results.items() if "per_item" in found}
    rest = {
        name: {key: value for key, value in found.items() if key != "per_item"}
        for name, found in results.items()
    }
    return rest, items


def refuse_unfit(config: Config, dataset: Dataset, objective: Objective) -> None:
    """Raises InputError if the objective or an evaluator does not fit the data."""
    if objective.kind != dataset.kind:
        raise InputError(
            f"objective.name = {config.objective.name!r}: trains on {objective.kind} data, "
            f"and data.name = {config.data.name!r} is {dataset.kind} data"
        )
    for field in ("evaluators", "curve"):
        for name in names_in(getattr(config.eval, field)):
            problem = EVALUATORS[name].problem(config, objective)
            if problem:
                raise InputError(f"eval.{field}: {name!r} needs {problem}")
