"""The same held-out places for every arm, each asked from exactly the context it may see."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import SMALL

from attn_jax.data.pipeline import Dataset
from attn_jax.data.tokenizers import Specials
from attn_jax.evaluation import shared_positions
from attn_jax.evaluation.shared_positions import MASKS, SharedPositions, _predict
from attn_jax.models.tokens import Tokens
from attn_jax.training.state import split_model

V, MASK_ID, T = 80, 0, 8
# Rows of one document of 8, and of documents of 5 and 3; what is asked for is at COLUMNS.
ONE, TWO = [1] * 8, [1, 1, 1, 1, 1, 2, 2, 2]
SEGMENTS = np.array([ONE, ONE, ONE, TWO, TWO, TWO], np.int32)
COLUMNS = np.array([1, 4, 7, 3, 6, 7], np.int32)
INSIDE = np.take_along_axis(SEGMENTS, COLUMNS[:, None], 1) == SEGMENTS
WHERE = np.arange(T)[None] - COLUMNS[:, None]  # < 0 left of the place, 0 there, > 0 right
IDS = np.random.default_rng(0).integers(7, V, (6, T)).astype(np.int32)
OTHER = (IDS - 7 + 30) % (V - 7) + 7  # another token everywhere


SHIFTS = {"next": 1, "mask": 0, "both": 1}


def tokens_of(ids):
    positions = np.where(SEGMENTS == 2, np.arange(T) - 5, np.arange(T)).astype(np.int32)
    return Tokens(*map(jnp.asarray, (ids, positions, SEGMENTS)))


@pytest.fixture(scope="module")
def predict(tiny):
    """Returns a function from (way, mask, ids) to the distribution over all words, [6, V].

    The ways: "next", a decoder read out one place before, the place hidden; "mask", an encoder read
    out at a <mask>; "both", a decoder read out one place before a <mask>. All have two layers, so
    that context has context.
    """
    decoder = tiny(architecture="decoder")
    models = {"next": decoder, "mask": tiny(architecture="encoder"), "both": decoder}

    def run(way, mask, ids):
        graph, params = split_model(models[way])
        mask_id = None if way == "next" else MASK_ID
        args = (graph, SHIFTS[way], mask, mask_id, params)
        found = _predict(*args, tokens_of(ids), jnp.asarray(COLUMNS))
        spread = np.zeros((6, V), np.float32)
        np.put_along_axis(spread, np.asarray(found["guesses"]), found["probabilities"], axis=1)
        np.testing.assert_allclose(spread.sum(1), 1, rtol=1e-5)
        target = np.take_along_axis(spread, ids[np.arange(6), COLUMNS][:, None], 1)[:, 0]
        np.testing.assert_allclose(found["bits"], -np.log2(target), rtol=1e-4, atol=1e-5)
        best = spread.argmax(1) == ids[np.arange(6), COLUMNS]
        assert np.array_equal(np.asarray(found["correct"]), best)
        return spread

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_positions, "NUM_GUESSES", V)  # so that nothing stays hidden
        run.models = models
        yield run


def changed_rows(predict, way, mask, where):
    """Which rows answer otherwise once the tokens `where` are others."""
    before = predict(way, mask, IDS)
    after = predict(way, mask, np.where(where, OTHER, IDS))
    return abs(before - after).max(1) > 1e-6


each_arm = pytest.mark.parametrize("mask", MASKS)
each_way = pytest.mark.parametrize("way", list(SHIFTS))


@each_way
@each_arm
def test_the_target_never_leaks(predict, way, mask):
    assert not changed_rows(predict, way, mask, WHERE == 0).any()


@each_way
@each_arm
def test_the_future_is_seen_only_from_both_sides(predict, way, mask):
    future = (WHERE > 0) & INSIDE
    seen = changed_rows(predict, way, mask, future)
    assert np.array_equal(seen, future.any(1) & (mask == "bidirectional"))
    assert future.any(1).sum() == 4


@each_way
@each_arm
def test_the_past_is_always_seen_and_other_documents_never(predict, way, mask):
    assert changed_rows(predict, way, mask, (WHERE < 0) & INSIDE).all()
    first = (np.arange(T) == 0) & INSIDE  # even the first token, from far away
    assert np.array_equal(changed_rows(predict, way, mask, first), first.any(1))
    assert not changed_rows(predict, way, mask, ~INSIDE).any()
    assert (~INSIDE).any()


def read_out(model, tokens, columns):
    hidden = np.asarray(model(tokens))[np.arange(6), columns]
    return np.asarray(jax.nn.softmax(model.logits(jnp.asarray(hidden))))


def test_causal_next_token_predictions_are_those_of_the_language_model(predict):
    expected = read_out(predict.models["next"], tokens_of(IDS).causal(), COLUMNS - 1)
    np.testing.assert_allclose(predict("next", "causal", IDS), expected, atol=1e-6)


@each_way
def test_a_prefix_is_the_left_context_alone_read_from_both_sides(predict, way):
    """The oracle cuts the row off and reads what is left with a bidirectional mask."""
    ids = np.where(WHERE == 0, MASK_ID, IDS)
    last = -1 if way == "next" else 0  # the <mask> is a part of the prefix
    left = jnp.asarray(np.where(last >= WHERE, SEGMENTS, 0), jnp.int32)
    tokens = tokens_of(ids).replace(segments=left).bidirectional()
    expected = read_out(predict.models[way], tokens, COLUMNS - SHIFTS[way])
    found = predict(way, "prefix", IDS)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # The first row has one token on the left: nothing to read in two ways.
    difference = abs(found - predict(way, "causal", IDS)).max(1)
    assert (difference[[1, 2, 3, 5]] > 1e-4).all()


def test_both_sides_are_those_of_the_masked_language_model(predict):
    tokens = tokens_of(np.where(WHERE == 0, MASK_ID, IDS)).bidirectional()
    for way in ("mask", "both"):
        expected = read_out(predict.models[way], tokens, COLUMNS - SHIFTS[way])
        np.testing.assert_allclose(predict(way, "bidirectional", IDS), expected, atol=1e-6)
    # Without the <mask> it would be another question.
    assert abs(predict("next", "bidirectional", IDS) - expected).max() > 1e-3


def test_left_to_right_a_mask_in_the_place_is_not_seen(predict):
    found = predict("both", "causal", IDS)
    np.testing.assert_allclose(found, predict("next", "causal", IDS), atol=1e-6)


ENCODER = {"objective.name": "masked_lm", "model.architecture": "encoder"}


@pytest.fixture(scope="module")
def arms(tiny_data, make_subject):
    """Subjects of several arms, seeds and batch sizes."""
    changes = ({}, {"train.seed": 5}, {"data.batch_tokens": 32}, {"objective.name": "prefix_lm"})
    return [make_subject(tiny_data.config(**fields))[0] for fields in (*changes, ENCODER)]


def test_all_arms_and_seeds_are_asked_at_the_same_places(arms, tiny_data, make_subject):
    chosen = [SharedPositions(subject)._positions for subject in arms]
    assert len({positions.fingerprint for positions in chosen}) == 1
    for other in chosen[1:]:
        assert np.array_equal(other.columns, chosen[0].columns)
        assert np.array_equal(other.rows.ids, chosen[0].rows.ids)
    fewer, _ = make_subject(tiny_data.config(eval__shared_positions=39))
    assert SharedPositions(fewer)._positions.fingerprint != chosen[0].fingerprint


def test_places_are_ordinary_tokens_with_one_to_their_left(arms):
    positions = SharedPositions(arms[0])._positions
    assert len(positions.columns) == SMALL["eval.shared_positions"]
    assert (positions.targets < 256).all()  # bytes; what follows are special ids
    rows = np.arange(len(positions.columns))
    segments = positions.rows.segments
    assert np.array_equal(segments[rows, positions.columns], segments[rows, positions.columns - 1])
    assert (segments[rows, positions.columns] > 0).all()
    places = {
        (*ids, column) for ids, column in zip(positions.rows.ids, positions.columns, strict=True)
    }
    assert len(places) == len(rows)  # no place twice


def test_places_hold_no_special_token_and_their_context_stays_in_the_document():
    """By hand: one row of `<bos> a b <unk> c <eos>` and of the beginning of another document."""
    bos, eos, unk, a, b, c = 1, 2, 5, 7, 8, 9
    ids = np.array([[bos, a, b, unk, c, eos, bos, a]], np.int32)
    positions = np.array([[0, 1, 2, 3, 4, 5, 0, 1]], np.int32)
    segments = np.array([[1, 1, 1, 1, 1, 1, 2, 2]], np.int32)
    specials = Specials(pad=0, bos=bos, eos=eos, mask=3, sep=4, unk=unk)

    class Held(Dataset):
        def __init__(self):
            self.tokenizer = SimpleNamespace(specials=specials)

        def eval_batches(self, split):
            return [(None, Tokens(ids, positions, segments))]

    config = SimpleNamespace(eval=SimpleNamespace(split="test", shared_positions=99))
    places = SharedPositions(SimpleNamespace(config=config, dataset=Held()))._positions
    order = np.argsort(places.columns)
    assert places.columns[order].tolist() == [1, 2, 4, 7]
    assert places.targets[order].tolist() == [a, b, c, a]
    assert places.context(1)[order].tolist() == [bos, a, unk, bos]
    assert places.context(2)[order].tolist() == [-1, bos, b, -1]


def test_results_and_baselines(tiny_data, make_subject):
    subject, params = make_subject(tiny_data.config())
    found = SharedPositions(subject).run(params)
    assert found["own_mask"] == "causal"
    assert found["own_bits"] == found["causal"]["bits"]
    assert found["items"] == SMALL["eval.shared_positions"]
    assert {"bits", "stderr", "accuracy"} == set(found["prefix"])
    bits = found["per_item"]["own_bits"]
    assert len(bits) == found["items"]
    assert np.mean(bits) == pytest.approx(found["own_bits"], abs=1e-4)
    # Add-one counts of the training documents, each with its <bos> and <eos>.
    counts = np.ones(262)
    specials = subject.dataset.tokenizer.specials
    for text in subject.dataset.texts("train"):
        for token in [specials.bos, *text.encode(), specials.eos]:
            counts[token] += 1
    targets = SharedPositions(subject)._positions.targets
    expected = -np.log2(counts[targets] / counts.sum()).mean()
    assert found["unigram_bits"] == pytest.approx(expected)
    assert found["trigram_bits"] < found["unigram_bits"] - 1
    sample = found["samples"][0]
    assert {"left", "target", "right", "own", *MASKS} == set(sample)
    curve = SharedPositions(subject).curve(params)
    assert curve == {"own_bits": found["own_bits"], "causal": found["causal"]}


def test_one_place_is_enough(tiny_data, make_subject, monkeypatch):
    monkeypatch.setattr(shared_positions, "MASKS", ("causal",))
    subject, params = make_subject(tiny_data.config(eval__shared_positions=1))
    found = SharedPositions(subject).run(params)
    assert found["items"] == len(found["samples"]) == 1
    assert np.isfinite(found["causal"]["stderr"])
