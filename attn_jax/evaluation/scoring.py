"""Makes the scorer of a method for a run."""

from collections.abc import Mapping, Sequence

from flax import nnx

from attn_jax.config import ModelConfig, names_in
from attn_jax.data.tokenizers import Tokenizer
from attn_jax.errors import InputError, nearest
from attn_jax.evaluation.evaluator import Subject
from attn_jax.evaluation.methods import METHODS, OWN, own_method
from attn_jax.evaluation.pair_scorers import PairScorer, SpanScorer
from attn_jax.evaluation.scorers import FUSED, Item, Scorer, Scores, TextScorer, fuse
from attn_jax.objectives import Objective


def make_scorer(
    method: str,
    graph: nnx.GraphDef,
    objective: Objective,
    tokenizer: Tokenizer,
    config: ModelConfig,
    name: str = "method",
) -> "Scorer":
    """Returns a scorer of a method, or of the objective's own, "own".

    Args:
      method: a key of METHODS.
      graph: of the model.
      objective: that it was trained with.
      tokenizer: of the run.
      config: of the model.
      name: of the flag or field that the method comes from.

    Raises:
      InputError: there is no such method, or the model cannot be read so.
    """
    if method == OWN:
        method = own_method(objective)
    if method not in METHODS:
        allowed = ", ".join((OWN, *METHODS))
        hint = nearest(method, (OWN, *METHODS))
        raise InputError(f"{name} = {method!r}: expected one of {allowed}{hint}")
    kind, possible = _scorer_of(objective)
    if method not in possible:
        raise InputError(
            f"{name} = {method!r}: this model was trained to {_TASKS[kind]}; expected one of "
            f"{', '.join((OWN, *possible))}"
        )
    return kind(method, graph, objective, tokenizer, config)


_TASKS = {PairScorer: "translate", SpanScorer: "write hidden spans"}


def _scorer_of(objective: Objective) -> tuple[type[Scorer], tuple[str, ...]]:
    """Returns what scores for a model, and under which methods."""
    if objective.kind == "pair":
        return PairScorer, ("prefix",)
    if objective.shift is None:
        return SpanScorer, ("prefix", "pll")
    return TextScorer, tuple(METHODS)


def make_scorers(subject: Subject, own: Mapping[str, str] | None = None) -> list[Scorer]:
    """Returns the scorers that `eval.scoring` names; a method that is named twice has one.

    Args:
      subject: what is evaluated.
      own: which methods stand in for others where "own" is asked for.

    Raises:
      InputError: the model cannot be read so.
    """
    config = subject.config
    about = subject.graph, subject.objective, subject.dataset.tokenizer, config.model
    mine = own_method(subject.objective)
    mine = (own or {}).get(mine, mine)
    names = [mine if name == OWN else name for name in names_in(config.eval.scoring)]
    found = [make_scorer(name, *about, name="eval.scoring") for name in names]
    return list({scorer.method: scorer for scorer in found}.values())


def score_under_all(
    scorers: Sequence[Scorer], params: dict, items: Sequence[Item]
) -> dict[str, list[Scores]]:
    """Returns `{method: scores of each item}`; what "fused" adds is not read a second time."""
    found: dict[str, list[Scores]] = {}
    for scorer in sorted(scorers, key=lambda scorer: scorer.method == "fused"):
        if scorer.method == "fused" and found.keys() >= set(FUSED):
            found["fused"] = fuse(*(found[method] for method in FUSED))
        else:
            found[scorer.method] = scorer.score(params, items)
    return found
