"""Masked language modelling: how much is hidden, how, and what never is."""

from dataclasses import astuple, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from masked_text import VOCAB, chosen, has_target, is_ordinary, stream

from attn_jax.data.tokenizers import Vocabulary
from attn_jax.models.tokens import Tokens
from attn_jax.objectives.masked_lm import MaskedLM
from attn_jax.objectives.masking import Masking

KEY = jax.random.key(0)


def masked(specials, rate, *shares):
    return MaskedLM(Masking(Vocabulary(VOCAB, specials), rate, rate, *shares))


@pytest.fixture(scope="module")
def large(specials):
    """100,000 tokens and their batch, at a rate of 0.3."""
    tokens = stream(specials, [20, 100, 300], 100, 1000)
    return tokens, jax.jit(masked(specials, 0.3, 0.8, 0.1))(tokens, KEY)


@pytest.fixture(scope="module")
def small(specials):
    """40 rows of many tiny documents, the first and the last of a row cut; and a function."""
    objective = jax.jit(masked(specials, 0.3, 0.8, 0.1))
    return stream(specials, [1, 1, 2, 3], 40, 24), lambda *x, row=0: objective(*x, jnp.int32(row))


def test_the_rate_is_kept(specials, large):
    tokens, batch = (jax.tree.map(np.asarray, x) for x in large)
    ordinary = is_ordinary(specials, tokens)
    assert abs(batch.weights.sum() / ordinary.sum() - 0.3) < 0.01
    # All columns are alike.
    columns = chosen(batch).sum(0) / ordinary.sum(0)
    assert abs(columns - 0.3).max() < 5 * (0.3 * 0.7 / 100) ** 0.5
    assert abs(columns[:500].mean() - columns[500:].mean()) < 0.01


def test_targets_are_masked_random_or_kept_80_10_10(specials, large):
    tokens, batch = (jax.tree.map(np.asarray, x) for x in large)
    where = chosen(batch)
    read, true = np.asarray(batch.inputs.ids)[where], np.asarray(tokens.ids)[where]
    masked, kept = read == specials.mask, read == true
    by_chance = 0.1 / (VOCAB - 6)  # random tokens that are the true ones
    assert abs(masked.mean() - 0.8) < 0.01
    assert abs(kept.mean() - 0.1 - by_chance) < 0.01
    drawn, counts = np.unique(read[~masked & ~kept], return_counts=True)
    assert np.array_equal(drawn, np.setdiff1d(np.arange(VOCAB), astuple(specials)))
    assert abs(counts / counts.mean() - 1).max() < 5 / counts.mean() ** 0.5


def test_other_shares_of_masked_and_random_targets(specials):
    tokens = stream(specials, [20, 100, 300], 20, 1000)
    batch = jax.jit(masked(specials, 0.3, 0.2, 0.5))(tokens, KEY)
    read = np.asarray(batch.inputs.ids)[chosen(batch)]
    kept = read == np.asarray(tokens.ids)[chosen(batch)]
    assert abs((read == specials.mask).mean() - 0.2) < 0.03
    assert abs(kept.mean() - 0.3 - 0.5 / (VOCAB - 6)) < 0.03


def test_what_is_not_chosen_is_read_as_it_is(large):
    tokens, batch = (jax.tree.map(np.asarray, x) for x in large)
    untouched = ~chosen(batch)
    assert np.array_equal(batch.inputs.ids[untouched], tokens.ids[untouched])
    assert np.array_equal(batch.targets, np.take_along_axis(tokens.ids, batch.at, axis=1))
    assert (batch.inputs.blocks == 0).all()
    assert np.array_equal(batch.inputs.segments, tokens.segments)
    assert np.array_equal(batch.inputs.positions, tokens.positions)


def test_every_document_and_fragment_has_a_target(specials, small):
    tokens, objective = small
    assert np.asarray(tokens.segments).max() == 9  # hardly more documents fit in 24 tokens
    for seed in range(5):
        batch = objective(tokens, jax.random.key(seed))
        assert has_target(specials, tokens, chosen(batch)).all()
    # Negative control: the rate alone leaves documents without any.
    alone = objective(tokens.replace(segments=jnp.minimum(tokens.segments, 1)), KEY)
    assert not has_target(specials, tokens, chosen(alone)).all()


def test_special_tokens_and_padding_are_never_targets(specials, small):
    tokens, objective = small
    # An unknown word, and padding that looks like a word: the segment says what it is.
    ids, segments = np.array(tokens.ids), np.array(tokens.segments)
    ids[:, 3], ids[:, -4:], segments[:, -4:] = specials.unk, 9, 0
    tokens = Tokens(jnp.asarray(ids), tokens.positions, jnp.asarray(segments))
    batch = objective(tokens, KEY)
    assert not chosen(batch)[~is_ordinary(specials, tokens)].any()
    assert not np.isin(np.asarray(batch.targets)[batch.weights > 0], astuple(specials)).any()
    assert has_target(specials, tokens, chosen(batch)).all()


def test_weights_are_zeros_and_ones_and_not_segment_ids(small):
    """T5."""
    tokens, objective = small
    weights = objective(tokens, KEY).weights
    assert weights.dtype == jnp.float32
    assert set(np.unique(weights)) == {0.0, 1.0}


def test_token_0_is_a_word_like_any_other(specials):
    """T7: padding has another id, and id 0 may be a target and be drawn."""
    moved = replace(specials, mask=25, pad=24)
    tokens = stream(moved, [8], 40, 24)
    batch = jax.jit(masked(moved, 0.5, 0.0, 1.0))(tokens, KEY)
    counted = np.asarray(batch.weights) > 0
    assert (np.asarray(batch.targets)[counted] == 0).any()
    read = np.asarray(batch.inputs.ids)[chosen(batch)]
    assert set(read) == set(range(VOCAB)) - set(astuple(moved))


def test_a_row_is_masked_the_same_wherever_it_lies(small):
    tokens, objective = small
    lower = jax.tree.map(lambda x: np.roll(x, -20, axis=0), tokens)
    calls = ((tokens, 0), (lower, 20), (lower, 0))
    whole, part, wrong = (jax.tree.map(np.asarray, objective(x, KEY, row=row)) for x, row in calls)
    assert np.array_equal(part.inputs.ids[:20], whole.inputs.ids[20:])
    assert np.array_equal(part.at[:20], whole.at[20:])
    assert not np.array_equal(wrong.inputs.ids[:20], whole.inputs.ids[20:])


def test_masking_depends_on_the_key_and_on_the_row(small):
    tokens, objective = small
    first, again, other = (chosen(objective(tokens, jax.random.key(s))) for s in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    equal = jax.tree.map(lambda x: np.repeat(np.asarray(x)[:1], len(x), axis=0), tokens)
    rows = chosen(objective(equal, KEY))
    assert len({tuple(row) for row in rows.tolist()}) > 10


def test_rows_without_words_have_no_targets(specials, small):
    tokens, objective = small
    for empty in (
        tokens.replace(segments=jnp.zeros_like(tokens.segments)),
        tokens.replace(ids=jnp.full_like(tokens.ids, specials.eos)),
    ):
        batch = objective(empty, KEY)
        assert (batch.weights == 0).all()
        assert np.array_equal(batch.inputs.ids, empty.ids)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.99])
def test_places_are_enough_for_the_rate_and_for_all_documents(specials, rate):
    objective = masked(specials, rate, 0.8, 0.1).masking
    for T in range(1, 40):
        documents = 2 + max(T - 2, 0) // 3  # two cut ones of one token, whole ones of three
        assert objective.places(T) >= min(T, max(rate * T, documents))
        assert objective.places(T) <= T
