"""What configs may name is what there is, and what is logged are numbers."""

from attn_jax import validation
from attn_jax.evaluation.evaluators import EVALUATORS
from attn_jax.evaluation.results import flat_numbers


def test_configs_may_name_every_evaluator_and_no_other():
    assert set(validation.EVALUATORS) == set(EVALUATORS)
    assert set(validation.FILES) <= set(EVALUATORS)


def test_numbers_of_results_and_nothing_else():
    found = {"a": {"b": {"c": 1, "diverged": True}, "name": "x"}, "d": 2.5, "e": [1, 2]}
    assert flat_numbers(found) == {"a/b/c": 1, "d": 2.5}
