"""A linear probe finds what the hidden states hold, and nothing where there is nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import softmax

from attn_jax.errors import InputError
from attn_jax.evaluation.probe import MASKS, Probe, encode, fit_logistic, read_labelled
from attn_jax.models.tokens import Tokens

WORDS = ["one", "two", "six", "ten"]


def texts_of(count, rng):
    return [" ".join(rng.choice(WORDS, rng.integers(2, 5))) for _ in range(count)]


@pytest.fixture(scope="module")
def make(tiny_data, make_subject, tmp_path_factory):
    """Returns a function that makes the evaluator of labelled texts, and random parameters."""

    def make(label, **changes):
        folder, rng = tmp_path_factory.mktemp("labelled"), np.random.default_rng(0)
        for name, count in (("train", 120), ("test", 60)):
            lines = [f"{label(text, rng)}\t{text}\n" for text in texts_of(count, rng)]
            (folder / f"{name}.tsv").write_text("".join(lines))
        paths = f"{folder}/train.tsv,{folder}/test.tsv"
        fields = {"eval.evaluators": "probe", "eval.probe": paths, "eval.max_items": 0} | changes
        subject, params = make_subject(tiny_data.config(**fields))
        return Probe(subject), params

    return make


def test_a_label_that_can_be_read_off_is_found(make):
    evaluator, params = make(lambda text, rng: "yes" if text.count("six") else "no")
    found = evaluator.run(params)
    assert (found["items"], found["train_items"], found["labels"]) == (60, 120, ["no", "yes"])
    for mask in MASKS:
        assert found[mask]["accuracy"] > max(0.85, found["majority"] + 0.15)
        assert found[mask]["mask"] == mask
    assert found["own_mask"] == "causal"


def test_a_random_label_is_not_found(make):
    evaluator, params = make(lambda text, rng: rng.choice(["yes", "no"]))
    found = evaluator.run(params)
    for mask in MASKS:
        assert abs(found[mask]["accuracy"] - 0.5) < 3.5 * (0.25 / 60) ** 0.5


def test_features_are_mean_hidden_states_in_the_order_of_the_texts(make):
    evaluator, params = make(lambda text, rng: "yes" if "six" in text else "no")
    graph = evaluator._subject.graph
    read = jax.jit(lambda tokens: nnx.merge(graph, params)(tokens)[0].mean(0))
    for mask in MASKS:
        features = evaluator._features(params, mask, evaluator._sequences[1])
        for i in (0, 7):
            tokens = Tokens.of(jnp.array([evaluator._sequences[1][i]]))
            tokens = tokens.causal() if mask == "causal" else tokens.bidirectional()
            np.testing.assert_allclose(features[i], read(tokens), atol=1e-5)


def test_logistic_regression_is_at_its_minimum():
    """The gradient, by a loop over the examples."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    weights = fit_logistic(x, y, 3)
    gradient = np.vstack([weights[:-1], np.zeros((1, 3))])
    for features, label in zip(x, y, strict=True):
        inputs = np.append(features, 1)
        gradient += np.outer(inputs, softmax(inputs @ weights) - np.eye(3)[label])
    assert abs(gradient).max() < 1e-2
    assert abs(weights).max() > 0.1


def test_pairs_are_read_with_a_separator(make):
    evaluator, _ = make(lambda text, rng: "yes" if "six" in text else "no")
    tokenizer = evaluator._subject.dataset.tokenizer
    s = tokenizer.specials
    assert encode(tokenizer, [("a", "bc"), ("d", "e")]) == [
        [s.bos, 97, s.sep, 98, 99, s.eos],
        [s.bos, 100, s.sep, 101, s.eos],
    ]
    assert encode(tokenizer, [("a",)]) == [[s.bos, 97, s.eos]]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("a\tx\nb\n", "a\tx\n", r"train.tsv:2: 'b': expected label<TAB>text"),
        ("a\tx\nb\ty\tz\n", "a\tx\n", r"train.tsv:2: .* in all lines alike"),
        ("a\tx\na\ty\n", "a\tx\n", r"train.tsv: all labels are 'a'"),
        ("a\tx\nb\ty\n", "c\tx\n", r"test.tsv: label 'c' is not in .*train.tsv"),
        ("a\tx\nb\ty\n", "a\tx\ty\n", r"as many columns in both files"),
    ],
)
def test_wrong_files_are_named(tmp_path, train, test, message):
    (tmp_path / "train.tsv").write_text(train)
    (tmp_path / "test.tsv").write_text(test)
    with pytest.raises(InputError, match=message):
        read_labelled(f"{tmp_path}/train.tsv,{tmp_path}/test.tsv")


def test_two_files_are_needed_and_at_most_so_many_texts_are_read(tmp_path):
    with pytest.raises(InputError, match=r"eval\.probe = 'one\.tsv': expected two files"):
        read_labelled("one.tsv")
    (tmp_path / "x.tsv").write_text("".join(f"{i % 2}\ttext {i}\n" for i in range(40)))
    train, test = read_labelled(f"{tmp_path}/x.tsv,{tmp_path}/x.tsv", 10)
    assert len(train.labels) == len(test.texts) == 10
