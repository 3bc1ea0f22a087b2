"""The last word of a text: hidden whole, and right only if every token of it is."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.errors import InputError
from attn_jax.evaluation.cloze import Cloze, read_texts
from attn_jax.evaluation.scorers import Scores, TextScorer

TEXTS = ["one two six", "six  two one ", "two ten"]


@pytest.fixture(scope="module")
def make(tiny_data, make_subject, tmp_path_factory):
    """Returns a function that makes the evaluator, and random parameters."""
    file = tmp_path_factory.mktemp("cloze") / "texts.txt"
    file.write_text("\n\n".join(TEXTS))

    def make(**changes):
        fields = {"eval.evaluators": "cloze", "eval.cloze": str(file)} | changes
        subject, params = make_subject(tiny_data.config(**fields))
        return Cloze(subject), params

    return make


ENCODER = {"objective.name": "masked_lm", "model.architecture": "encoder"}


def test_lines_and_json_lines_are_the_same(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": x}) for x in TEXTS))
    expected = [("one two", "six"), ("six  two", "one"), ("two", "ten")]
    assert read_texts(str(tmp_path / "texts.txt")) == expected
    assert read_texts(str(tmp_path / "texts.jsonl")) == expected


def test_the_word_is_scored_with_the_space_before_it_and_nothing_else(make):
    evaluator, _ = make()
    assert [bytes(item.target) for item in evaluator._items] == [b" six", b" one", b" ten"]
    assert [bytes(item.source) for item in evaluator._items] == [b"one two", b"six  two", b"two"]


def test_a_word_is_right_if_all_its_tokens_are(make, monkeypatch):
    guesses = iter([[True, True], [True, False], [True]])

    def planted(self, params, items):
        return [Scores(np.full(2, -1.5), np.array(next(guesses))) for _ in items]

    monkeypatch.setattr(TextScorer, "score", planted)
    found = make()[0].run({})
    assert (found["items"], found["cut"], found["methods"]) == (3, 0, ["causal"])
    assert found["causal"]["accuracy"] == pytest.approx(2 / 3)
    assert found["causal"]["accuracy_stderr"] == pytest.approx((2 / 9 / 3) ** 0.5)
    assert found["causal"]["log_prob"] == -3.0
    assert found["causal"]["perplexity"] == pytest.approx(math.exp(3))


def test_results_tell_by_which_texts_they_are(make, tmp_path):
    """So that arms scored on others are refused."""
    (tmp_path / "other.txt").write_text("\n".join(TEXTS[1:]))
    same, changed = make()[0], make(**{"eval.cloze": str(tmp_path / "other.txt")})[0]
    assert make()[0]._fingerprint == same._fingerprint != changed._fingerprint


def test_perplexity_and_pseudo_perplexity_have_names_of_their_own(make):
    """T17."""
    evaluator, params = make(**{"eval.scoring": "causal,pll_whole_word"})
    found = evaluator.run(params)
    assert "perplexity" in found["causal"]
    assert "pseudo_perplexity" not in found["causal"]
    assert "pseudo_perplexity" in found["pll_whole_word"]
    assert "perplexity" not in found["pll_whole_word"]


def test_a_masked_model_is_asked_for_a_word_hidden_whole(make):
    evaluator, params = make(**ENCODER)
    assert evaluator.run(params)["methods"] == ["pll_whole_word"]


def test_a_model_without_an_opinion_is_never_right(make):
    evaluator, params = make()
    found = evaluator.run(jax.tree.map(jnp.zeros_like, params))["causal"]
    assert found["accuracy"] == 0
    assert found["log_prob"] == pytest.approx(-4 * math.log(262))


def test_a_context_that_is_too_long_loses_its_beginning(make):
    evaluator, params = make(
        **{"model.positions": "learned", "model.max_length": 16}, **{"data.length": 8}
    )
    assert evaluator.run(params)["cut"] == 0
    evaluator, params = make(
        **{"model.positions": "learned", "model.max_length": 10}, **{"data.length": 8}
    )
    assert evaluator.run(params)["cut"] == 2
    assert bytes(evaluator._items[0].source) == b" two"


def test_what_cannot_be_evaluated_is_refused(make, tmp_path):
    for scoring in ("pll", "causal,fused"):
        with pytest.raises(InputError, match=rf"eval\.scoring = '{scoring}': cloze needs"):
            make(**{"eval.scoring": scoring})
    path = tmp_path / "texts.txt"
    path.write_text("two words\none\n")
    with pytest.raises(InputError, match=r"texts\.txt:2: 'one': expected at least two words"):
        make(**{"eval.cloze": str(path)})
    with pytest.raises(
        InputError, match=r"eval\.cloze is empty: the evaluator 'cloze' needs a file"
    ):
        make(**{"eval.cloze": ""})
