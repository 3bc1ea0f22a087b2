"""Classifiers find what the hidden states hold, and nothing where there is nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from scipy.special import softmax

from attn_jax.errors import InputError
from attn_jax.evaluation import fine_tuning
from attn_jax.evaluation.fine_tuning import FineTuning
from attn_jax.evaluation.labelled import MASKS, encode, mean_hidden, read_labelled
from attn_jax.evaluation.probe import Probe, fit_logistic
from attn_jax.models.tokens import Tokens

WORDS = ["one", "two", "six", "ten"]
KINDS = {"probe": Probe, "fine_tuning": FineTuning}


def texts_of(count, rng):
    return [" ".join(rng.choice(WORDS, rng.integers(2, 5))) for _ in range(count)]


def has_six(text, rng):
    return "yes" if "six" in text else "no"


@pytest.fixture(scope="module")
def make(tiny_data, make_subject, tmp_path_factory):
    """Returns a function that makes an evaluator of labelled texts, and random parameters."""

    def make(kind, label, keep=lambda text: True, **changes):
        folder, rng = tmp_path_factory.mktemp("labelled"), np.random.default_rng(0)
        for name, count in (("train", 120), ("test", 60)):
            texts = [text for text in texts_of(count, rng) if name == "train" or keep(text)]
            lines = [f"{label(text, rng)}\t{text}\n" for text in texts]
            (folder / f"{name}.tsv").write_text("".join(lines))
        paths = f"{folder}/train.tsv,{folder}/test.tsv"
        fields = {"eval.labelled": paths, "eval.max_items": 0, "eval.tune_epochs": 20}
        fields |= {"eval.tune_learning_rate": 3e-3, "eval.evaluators": kind} | changes
        subject, params = make_subject(tiny_data.config(**fields))
        return KINDS[kind](subject), params

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_label_that_can_be_read_off_is_found(make, kind):
    evaluator, params = make(kind, has_six)
    found = evaluator.run(params)
    assert (found["items"], found["train_items"], found["labels"]) == (60, 120, ["no", "yes"])
    for mask in MASKS:
        assert found[mask]["accuracy"] > max(0.85, found["majority"] + 0.15)
        assert found[mask]["mask"] == mask
    assert found["own_mask"] == "causal"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_learned_from_the_test_texts(make, kind):
    """They all have the label that is rarer in training: neither a mean nor a share of theirs."""
    evaluator, params = make(kind, has_six, keep=lambda text: "six" not in text)
    found = evaluator.run(params)
    assert found["majority"] == 0
    for mask in MASKS:
        assert found[mask]["accuracy"] > 0.7


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_label_is_not_found(make, kind):
    evaluator, params = make(kind, lambda text, rng: rng.choice(["yes", "no"]))
    found = evaluator.run(params)
    for mask in MASKS:
        assert abs(found[mask]["accuracy"] - 0.5) < 3.5 * (0.25 / 60) ** 0.5


def test_fine_tuning_equals_a_loop_by_hand(make, monkeypatch):
    """The same updates, text by text, rates by hand; and the run's own parameters stay."""
    evaluator, params = make(
        "fine_tuning", has_six, **{"eval.tune_epochs": 3, "eval.max_items": 60}
    )
    graph, train = evaluator._subject.graph, evaluator._train
    monkeypatch.setattr(fine_tuning, "CLIP_NORM", 0.1)  # some gradients are larger, some are not
    before = jax.tree.map(np.array, params)
    y = np.array([label == "yes" for label in evaluator._files[0].labels]).astype(int)
    found = evaluator._logits(params, "causal", y)
    jax.tree.map(np.testing.assert_array_equal, before, params)

    @jax.jit
    def logits(all_params, ids, length):
        model = nnx.merge(graph, all_params["model"])
        hidden = mean_hidden(model, ids[None], length[None], "causal")
        return (hidden @ all_params["head"]["kernel"] + all_params["head"]["bias"])[0]

    def padded(sequence):
        return np.pad(sequence, (0, 32 - len(sequence))), np.array(len(sequence))

    def loss(all_params, label, *text):
        return -jax.nn.log_softmax(logits(all_params, *text))[label]

    gradient = jax.jit(jax.grad(loss))
    width = evaluator._subject.config.model.d_model
    tuned = {"model": params, "head": {"kernel": jnp.zeros((width, 2)), "bias": jnp.zeros((1, 2))}}
    # One update of warm-up, then a cosine over the other five.
    rates = jnp.array([3e-3] + [3e-3 * (1 + np.cos(np.pi * i / 5)) / 2 for i in range(5)])
    optimizer = optax.adam(lambda step: rates[step])
    state, rng, norms = optimizer.init(tuned), np.random.default_rng(0), []
    for order in [rng.permutation(len(y)) for _ in range(3)]:
        for chosen in (order[:32], order[32:]):
            grads = [gradient(tuned, y[i], *padded(train[i])) for i in chosen]
            grads = jax.tree.map(lambda *each: sum(each) / len(each), *grads)
            norms.append(float(optax.tree.norm(grads)))
            shrink = min(0.1 / norms[-1], 1)
            grads = jax.tree.map(lambda g, by=shrink: g * by, grads)
            updates, state = optimizer.update(grads, state, tuned)
            tuned = optax.apply_updates(tuned, updates)
    assert min(norms) < 0.1 < max(norms)
    by_hand = [logits(tuned, *padded(sequence)) for sequence in evaluator._test]
    np.testing.assert_allclose(found, np.array(by_hand), rtol=1e-3, atol=1e-5)


def test_a_diverged_fine_tuning_is_no_accuracy(make):
    evaluator, params = make("fine_tuning", has_six)
    broken = jax.tree.map(lambda x: x * jnp.nan, params)
    found = evaluator.run(broken)
    for mask in MASKS:
        assert found[mask] == {"mask": mask, "diverged": True}


def test_results_tell_by_which_texts_they_are(make, monkeypatch):
    """So that arms scored on others are refused."""
    monkeypatch.setattr(Probe, "_logits", lambda self, *_: np.zeros((len(self._test), 2)))

    def mark(**changes):
        evaluator, params = make("probe", has_six, **changes)
        return evaluator.run(params)["fingerprint"]

    assert mark() == mark() != mark(keep=lambda text: "ten" in text)


def test_texts_seen_in_training_and_the_error_of_the_accuracy(make, monkeypatch):
    monkeypatch.setattr(Probe, "_logits", lambda self, *_: np.zeros((len(self._test), 2)))
    evaluator, params = make("probe", has_six)
    found, (train, test) = evaluator.run(params), evaluator._files
    assert found["known"] == sum(text in train.texts for text in test.texts)
    assert 0 < found["known"] < found["items"]
    share = test.labels.count("no") / 60  # the first class, which is always said
    assert found["causal"]["accuracy"] == pytest.approx(share)
    error = (share * (1 - share) / 60) ** 0.5
    assert found["causal"]["accuracy_stderr"] == pytest.approx(error) != 0


def test_dropout_is_for_training_and_the_same_when_trained_again(make):
    changes = {"eval.tune_epochs": 1, "eval.max_items": 60}
    plain, params = make("fine_tuning", has_six, **changes)
    noisy, _ = make("fine_tuning", has_six, **changes, **{"model.dropout": 0.5})
    y = np.array([label == "yes" for label in plain._files[0].labels]).astype(int)
    first, again = (noisy._logits(params, "causal", y) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert abs(first - plain._logits(params, "causal", y)).max() > 1e-4


def test_features_are_mean_hidden_states_in_the_order_of_the_texts(make):
    evaluator, params = make("probe", has_six)
    graph = evaluator._subject.graph
    read = jax.jit(lambda tokens: nnx.merge(graph, params)(tokens)[0].mean(0))
    for mask in MASKS:
        features = evaluator._features(params, mask, evaluator._test)
        for i in (0, 7):
            tokens = Tokens.of(jnp.array([evaluator._test[i]]))
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
    evaluator, _ = make("probe", has_six)
    tokenizer = evaluator._subject.dataset.tokenizer
    s = tokenizer.specials
    pairs = [
        [s.bos, 97, s.sep, 98, 99, s.eos],
        [s.bos, 100, s.sep, 101, s.eos],
    ]
    assert encode(tokenizer, [("a", "bc"), ("d", "e")], 6) == (pairs, 0)
    assert encode(tokenizer, [("a",)], 3) == ([[s.bos, 97, s.eos]], 0)
    # What is too long loses the end of its longer text, and <eos> stays.
    cut = [[s.bos, 97, s.sep, 98, s.eos], [s.bos, 100, s.sep, 101, s.eos]]
    assert encode(tokenizer, [("a", "bc"), ("d", "e")], 5) == (cut, 1)
    assert encode(tokenizer, [("aaaa", "bc")], 8) == ([[s.bos, *b"aaa", s.sep, *b"bc", s.eos]], 1)
    assert encode(tokenizer, [("aaaa", "bbbb")], 8) == ([[s.bos, *b"aaa", s.sep, *b"bb", s.eos]], 1)
    assert encode(tokenizer, [("abc",)], 3) == ([[s.bos, 97, s.eos]], 1)


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
    with pytest.raises(InputError, match=r"eval\.labelled = 'one\.tsv': expected two files"):
        read_labelled("one.tsv")
    (tmp_path / "x.tsv").write_text("".join(f"{i % 2}\ttext {i}\n" for i in range(40)))
    train, test = read_labelled(f"{tmp_path}/x.tsv,{tmp_path}/x.tsv", 10)
    assert len(train.labels) == len(test.texts) == 10


def test_a_sample_of_a_sorted_file_has_all_its_labels_or_says_so(tmp_path):
    lines = [f"{i // 20}\ttext {i}\n" for i in range(40)]
    (tmp_path / "x.tsv").write_text("".join(lines))
    assert set(read_labelled(f"{tmp_path}/x.tsv,{tmp_path}/x.tsv", 10)[0].labels) == {"0", "1"}
    kept = r"x\.tsv \(of which eval\.max_items = 1 keeps 1 texts\): all labels are '.'"
    with pytest.raises(InputError, match=kept):
        read_labelled(f"{tmp_path}/x.tsv,{tmp_path}/x.tsv", 1)
