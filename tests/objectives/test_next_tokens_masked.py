"""Masked next-token prediction, and its mixture with causal LM."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from masked_text import VOCAB, chosen, has_target, is_ordinary, stream

from attn_jax.config import ObjectiveConfig
from attn_jax.data.tokenizers import Vocabulary
from attn_jax.models.tokens import Tokens
from attn_jax.objectives import make_objective
from attn_jax.objectives.causal_lm import CausalLM

KEY = jax.random.key(0)
ROW = 128


@functools.cache
def made(specials, name, **fields):
    config = ObjectiveConfig(name=name, **({"mask_rate": 0.15} | fields))
    return make_objective(config, Vocabulary(VOCAB, specials))


@functools.cache
def compiled(specials, name, **fields):
    return jax.jit(made(specials, name, **fields))


def call(specials, name, tokens, key=KEY, first_row=0, **fields):
    batch = compiled(specials, name, **fields)(tokens, key, jnp.int32(first_row))
    return jax.tree.map(np.asarray, batch)


@pytest.fixture(scope="module")
def text(specials):
    return stream(specials, [20, 100, 300], 832, ROW)


@pytest.fixture(scope="module")
def masked(specials, text):
    return call(specials, "masked_next_token", text)


def test_the_prediction_stands_one_place_before_the_hidden_token(text, masked):
    where, ids = chosen(masked, shift=1), np.asarray(text.ids)
    counts = masked.weights > 0
    rows = np.broadcast_to(np.arange(832)[:, None], masked.at.shape)
    assert np.array_equal(masked.targets[counts], ids[rows, masked.at + 1][counts])
    assert (masked.inputs.ids[where] == 0).mean() > 0.78  # <mask> is id 0 here
    assert np.array_equal(masked.inputs.ids[~where], ids[~where])
    assert (masked.inputs.blocks == 0).all()


def test_rate_special_tokens_and_first_tokens(specials, text, masked):
    ordinary, where = is_ordinary(specials, text), chosen(masked, shift=1)
    assert ordinary.sum() > 100_000
    assert abs(where.sum() / ordinary.sum() - 0.15) < 0.01
    assert not where[~ordinary].any()
    first = np.asarray(text.positions) == 0
    assert (first & ordinary).sum() > 700  # rows that begin in the middle of a document
    assert not where[first].any()
    assert has_target(specials, text, where, ~first).all()


def test_a_planted_token_is_read_out_before_its_place(specials):
    """One word and one number of it: the target is where the mask is, the place one before."""
    ids = jnp.full((832, ROW), 9, jnp.int32).at[:, 0].set(specials.bos).at[:, 5].set(20)
    batch = call(specials, "masked_next_token", Tokens.of(ids))
    found = np.argwhere((batch.targets == 20) & (batch.weights > 0))
    assert len(found) > 50
    assert {int(batch.at[b, n]) for b, n in found} == {4}


@pytest.fixture(scope="module")
def by_row(specials, text):
    return call(specials, "mixture", text, mixture_by="row", causal_share=0.3)


def is_causal(batch):
    causal = (batch.inputs.blocks == batch.inputs.positions).all(1)
    assert (causal | (batch.inputs.blocks == 0).all(1)).all()
    return causal


def test_rows_of_a_mixture_are_those_of_its_parts(specials, text, masked, by_row):
    causal = is_causal(by_row)
    alone = jax.tree.map(np.asarray, jax.jit(CausalLM())(text, KEY))
    assert np.array_equal(by_row.inputs.ids[causal], np.asarray(text.ids)[causal])
    assert np.array_equal(by_row.weights[causal], alone.weights[causal])
    assert np.array_equal(by_row.targets, alone.targets)
    assert np.array_equal(by_row.inputs.ids[~causal], masked.inputs.ids[~causal])
    assert np.array_equal(chosen(by_row, shift=1)[~causal], chosen(masked, shift=1)[~causal])
    assert by_row.weights.dtype == np.float32


def test_a_masked_row_keeps_its_targets_at_any_rate(specials, text):
    for rate in (0.5, 0.99):
        alone = call(specials, "masked_next_token", text, mask_rate=rate)
        mixed = call(specials, "mixture", text, mask_rate=rate, causal_share=0.0)
        assert np.array_equal(mixed.weights.sum(1), alone.weights.sum(1))


def kinds(objective, rows, seeds=400):
    """Which rows are causal, [seeds, rows]."""
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    return np.asarray(jax.vmap(objective._is_causal, (0, None))(keys, jnp.arange(rows)))


def test_the_share_of_rows_is_that_of_every_stretch_of_rows(specials, by_row):
    """Of a micro-batch and of a device's rows as well: at most one more or fewer."""
    assert abs(is_causal(by_row).sum() - 0.3 * 832) < 1
    found = kinds(made(specials, "mixture", mixture_by="row", causal_share=0.3), 50)
    for size in (1, 5, 10, 50):
        for start in range(51 - size):
            counts = found[:, start : start + size].sum(1)
            assert abs(counts - 0.3 * size).max() < 1
    # Each row is as often causal as any other.
    assert abs(found.mean(0) - 0.3).max() < 5 * (0.21 / 400) ** 0.5


def test_batches_are_of_one_kind_in_their_share(specials):
    found = kinds(made(specials, "mixture", causal_share=0.25), 8)
    assert (found == found[:, :1]).all()
    assert abs(found.mean() - 0.25) < 5 * (0.1875 / 400) ** 0.5


@pytest.mark.parametrize("by", ["row", "batch"])
@pytest.mark.parametrize(("share", "expected"), [(0.0, False), (1.0, True)])
def test_a_share_of_all_or_nothing(specials, text, by, share, expected):
    objective = made(specials, "mixture", mixture_by=by, causal_share=share)
    assert (kinds(objective, 5000, seeds=5) == expected).all()


def test_a_row_is_the_same_on_whichever_device_it_lies(specials, text, by_row):
    lower = jax.tree.map(lambda x: jnp.roll(x, -3, axis=0), text)
    part = call(specials, "mixture", lower, first_row=3, mixture_by="row", causal_share=0.3)
    for a, b in zip(jax.tree.leaves(by_row), jax.tree.leaves(part), strict=True):
        assert np.array_equal(a[3:], b[:-3])


def test_the_future_changes_nothing_under_causal_rows_only(by_row, tiny):
    """T21: a token of the second half is changed, and the logits of the first half compared."""
    graph, params = nnx.split(tiny(architecture="decoder"))
    inputs = jax.tree.map(lambda x: jnp.asarray(x[:8, :16]), by_row.inputs)
    # Changed after hiding, so that the same places stay hidden.
    changed = inputs.replace(ids=inputs.ids.at[:, 12].add(40))
    run = jax.jit(lambda tokens: nnx.merge(graph, params)(tokens))
    before, after = (np.asarray(run(tokens)) for tokens in (inputs, changed))
    moved = abs(before - after).max(-1)[:, :12].max(1)
    same_document = inputs.segments[:, 12] == inputs.segments[:, 11]
    causal = is_causal(by_row)[:8]
    assert 0 < causal.sum() < 8
    assert (moved[causal] == 0).all()
    assert (moved[~causal & same_document] > 1e-4).all()


def test_a_mixture_is_measured_by_its_parts_and_generates_causally(specials, text):
    mixture = made(specials, "mixture")
    assert mixture.parts() == {"causal": (0.5, CausalLM()), "masked": (0.5, mixture.masked)}
    assert mixture.masked == made(specials, "masked_next_token")
    assert made(specials, "masked_next_token").parts() == {}
    prompt, source = mixture.prompt(text)
    assert source is None
    assert np.array_equal(prompt.blocks, text.positions)
