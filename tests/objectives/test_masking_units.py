"""Tokens, words and spans that are hidden whole, at a rate that may change in training."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from masked_text import VOCAB, chosen, has_target, is_ordinary, stream, word_vocabulary, words_of

from attn_jax.config import ObjectiveConfig
from attn_jax.models.tokens import Tokens
from attn_jax.objectives.masked_lm import MaskedLM
from attn_jax.objectives.masking import SLACK, Masking

KEY = jax.random.key(0)
UNITS = ("token", "word", "span")
ROW = 128


@pytest.fixture(scope="module")
def run(specials):
    """Returns a function that masks rows; compiled once for each kind and shape."""
    vocabulary = word_vocabulary(specials)

    @functools.cache
    def compiled(unit, rate, final_rate, shares):
        masking = Masking(vocabulary, rate, final_rate or rate, *shares, unit)
        return jax.jit(MaskedLM(masking))

    def call(tokens, unit, rate=0.3, final_rate=0.0, shares=(1.0, 0.0), key=KEY, progress=0.0):
        function = compiled(unit, rate, final_rate, shares)
        return jax.tree.map(np.asarray, function(tokens, key, 0, progress))

    call.vocabulary = vocabulary
    return call


@pytest.fixture(scope="module")
def text(specials):
    """More than 100,000 ordinary tokens."""
    tokens = stream(specials, [20, 100, 300], 832, ROW)
    assert is_ordinary(specials, tokens).sum() > 100_000
    return tokens


@pytest.fixture(scope="module")
def batches(run, text):
    return {unit: run(text, unit) for unit in UNITS}


@pytest.mark.parametrize("unit", UNITS)
def test_the_rate_is_kept(specials, text, batches, unit):
    ordinary, where = is_ordinary(specials, text), chosen(batches[unit])
    assert abs(where.sum() / ordinary.sum() - 0.3) < 0.01
    assert not where[~ordinary].any()
    columns = where.sum(0) / ordinary.sum(0)
    # The ends of a row hold short pieces of documents, each with a target; else all are alike.
    assert abs(columns[:8].mean() - 0.3) < 0.04
    assert abs(columns[-8:].mean() - 0.3) < 0.04
    assert abs(columns[8:64].mean() - columns[64:-8].mean()) < 0.025


@pytest.mark.parametrize("unit", UNITS)
def test_everything_hidden_is_a_mask_where_all_are_asked_for(specials, text, batches, unit):
    where, read = chosen(batches[unit]), batches[unit].inputs.ids
    assert (read[where] == specials.mask).all()
    assert np.array_equal(read[~where], np.asarray(text.ids)[~where])


def test_words_are_hidden_whole_or_not_at_all(specials, run, text, batches):
    ordinary, where = is_ordinary(specials, text), chosen(batches["word"])
    partly = sizes = 0
    for b in range(200):
        ids, segments = np.asarray(text.ids[b]), np.asarray(text.segments[b])
        words = words_of(run.vocabulary, ids, segments, ordinary[b])
        hidden = [where[b][word].mean() for word in words]
        assert set(hidden) <= {0.0, 1.0}
        sizes += sum(map(len, words)) / len(words) / 200
        tokenwise = chosen(batches["token"])[b]
        partly += sum(0 < tokenwise[word].mean() < 1 for word in words)
    assert sizes > 2
    assert partly > 1000  # the negative control


def test_long_words_are_not_hidden_less_often_than_short_ones(specials, run, text, batches):
    ordinary, where = is_ordinary(specials, text), chosen(batches["word"])
    hidden = {}
    for b in range(len(where)):
        ids, segments = np.asarray(text.ids[b]), np.asarray(text.segments[b])
        for word in words_of(run.vocabulary, ids, segments, ordinary[b]):
            hidden.setdefault(min(len(word), 6), []).append(where[b, word[0]])
    for values in hidden.values():
        assert abs(np.mean(values) - 0.3) < 5 * (0.21 / len(values)) ** 0.5


def test_spans_are_of_the_mean_length(specials, text, batches):
    """Chosen spans may lie side by side: a run of them ends with odds (1 - rate) / 3 a token."""
    ordinary, where = is_ordinary(specials, text), chosen(batches["span"])
    same = np.asarray(text.segments)[:, 1:] == np.asarray(text.segments)[:, :-1]
    goes_on = ordinary[:, 1:] & ordinary[:, :-1] & same & where[:, :-1]
    ends = (goes_on & ~where[:, 1:]).sum() / goes_on.sum()
    assert abs(ends - 0.7 / 3) < 0.01
    where = chosen(batches["token"])
    goes_on = ordinary[:, 1:] & ordinary[:, :-1] & same & where[:, :-1]
    assert (goes_on & ~where[:, 1:]).sum() / goes_on.sum() > 0.65


def slow_choice(vocabulary, keys, places, ids, segments, may, rate):
    """One row by a loop over its words, drawn as the objective draws them."""
    score = np.asarray(jax.random.uniform(keys[0], ids.shape))
    odds = float(jax.random.uniform(keys[1]))
    words = words_of(vocabulary, ids, segments, may)
    best = {}
    for word in words:
        s = segments[word[0]]
        if s not in best or score[word[0]] > score[best[s][0]]:
            best[s] = word
    first = list(best.values())
    rest = sorted((w for w in words if w not in first), key=lambda w: -score[w[0]])
    found = {t for word in first for t in word}
    budget, before = np.round(rate * may.sum()), len(found)
    for word in rest:
        if odds * len(word) < budget - before and before + len(word) <= places:
            found |= set(word)
        before += len(word)
    return found


def test_words_equal_a_loop(specials, run, text, batches):
    batch = batches["word"]
    where, ordinary = chosen(batch), is_ordinary(specials, text)
    for b in range(40):
        choose, _, _, _, odds = jax.random.split(jax.random.fold_in(KEY, b), 5)
        row = np.asarray(text.ids[b]), np.asarray(text.segments[b]), ordinary[b]
        places = batch.at.shape[1]
        expected = slow_choice(run.vocabulary, (choose, odds), places, *row, 0.3)
        assert set(np.flatnonzero(where[b]).tolist()) == expected


@pytest.mark.parametrize("unit", ["word", "span"])
def test_every_document_has_a_target_even_if_no_unit_fits(specials, run, unit):
    """Documents of one long word: all of these words would be too many."""
    tokens = stream(specials, [1, 2, 5], 832, ROW)
    ordinary = is_ordinary(specials, tokens)
    tokens = tokens.replace(ids=jnp.where(ordinary, 20, tokens.ids))  # never starts a word
    where = chosen(run(tokens, unit))
    assert ordinary.sum(1).min() > run(tokens, unit).at.shape[1]
    assert has_target(specials, tokens, where).all()
    assert not where[~ordinary].any()


def test_a_word_is_cut_by_documents_and_special_tokens(specials):
    vocabulary = word_vocabulary(specials)
    ids = np.array([20, 21, specials.unk, 22, 23, 13, 7, 8, 24, 25])
    segments = np.array([1, 1, 1, 1, 2, 2, 2, 2, 2, 0])
    may = np.array([1, 1, 0, 1, 1, 1, 1, 1, 1, 0], bool)
    begins = Masking(vocabulary, 0.3, 0.3, 1.0, 0.0, "word")._begins(
        KEY, *map(jnp.asarray, (ids, segments, may))
    )
    # 13 starts a word and does not end it, so 7 goes on with it.
    assert np.flatnonzero(begins).tolist() == [0, 3, 4, 5, 7]
    words = words_of(vocabulary, ids, segments, may)
    assert words == [[0, 1], [3], [4], [5, 6], [7, 8]]


def test_the_rate_goes_in_a_line_from_the_first_step_to_the_last(specials, run, text):
    ordinary = is_ordinary(specials, text).sum()
    for progress, rate in ((0.0, 0.4), (0.25, 0.325), (1.0, 0.1)):
        batch = run(text, "token", 0.4, 0.1, progress=progress)
        assert abs(batch.weights.sum() / ordinary - rate) < 0.01
        assert batch.at.shape[1] == np.ceil(0.4 * ROW)  # enough for the larger rate


@pytest.mark.parametrize("unit", UNITS)
def test_places_leave_room_for_the_last_unit(specials, unit):
    masking = Masking(word_vocabulary(specials), 0.1, 0.3, 0.8, 0.1, unit, span_length=10.0)
    slack = {"token": 0, "word": SLACK, "span": 30}[unit]
    assert masking.places(100) == max(35, 30 + slack)
    assert masking.places(1000) == 335
    assert dataclasses.replace(masking, final_rate=0.5).places(1000) == 500 + slack
    assert masking.places(4) == (3 if unit == "token" else 4)


def test_fields_of_the_config_are_those_of_the_masking(specials):
    vocabulary = word_vocabulary(specials)
    config = ObjectiveConfig(mask_rate=0.4, mask_share=1.0, random_share=0.0)
    assert Masking.of(config, vocabulary) == Masking(vocabulary, 0.4, 0.4, 1.0, 0.0)
    config.final_mask_rate, config.mask_unit, config.span_length = 0.1, "span", 2.0
    assert Masking.of(config, vocabulary) == Masking(vocabulary, 0.4, 0.1, 1.0, 0.0, "span", 2.0)


def test_sentinels_are_never_targets_and_never_drawn(specials, vocabulary):
    masking = Masking(vocabulary, 0.5, 0.5, 0.0, 1.0)
    ids = jnp.tile(jnp.arange(40, 80, dtype=jnp.int32), (50, 1))
    batch = jax.jit(MaskedLM(masking))(Tokens.of(ids), KEY)
    targets = np.asarray(batch.targets)[np.asarray(batch.weights) > 0]
    assert set(targets) == set(range(40, 76))
    read = np.asarray(batch.inputs.ids)[chosen(batch)]
    assert read.max() == 75
    assert VOCAB < 40
