"""Translation: what is predicted, and that one joined row means what its two sentences mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.models.tokens import Pair, Tokens
from attn_jax.objectives.translation import JoinedTranslation, Translation

KEY = jax.random.key(0)
# Words of each side. Joined, `source <eos> <sep> target` always has 6 tokens.
SOURCES = [[10, 11, 12, 13], [14, 15, 16], [17, 18], [19], [], [20, 21]]
TARGETS = [[], [30], [31, 32], [33, 34, 35], [36, 37, 38, 39], [40, 41]]


def padded(sentences, pad, width):
    ids = np.full((len(sentences), width), pad, np.int32)
    real = np.zeros(ids.shape, bool)
    for i, sentence in enumerate(sentences):
        ids[i, : len(sentence)], real[i, : len(sentence)] = sentence, True
    return Tokens.of(jnp.asarray(ids), jnp.asarray(real))


@pytest.fixture(scope="module")
def pair(specials):
    s = specials
    source = padded([[*words, s.eos] for words in SOURCES], s.pad, 6)
    target = padded([[s.bos, *words, s.eos] for words in TARGETS], s.pad, 7)
    return Pair(source, target)


def counted(batch, row):
    return np.asarray(batch.targets[row])[np.asarray(batch.weights[row]) > 0].tolist()


def test_the_target_is_shifted_by_one(specials, pair):
    batch = Translation(specials)(pair, KEY)
    for row, words in enumerate(TARGETS):
        assert counted(batch, row) == [*words, specials.eos]
        read = batch.inputs.ids[row, : len(words) + 1].tolist()
        assert read == [specials.bos, *words]
        assert batch.weights[row].tolist() == [1] * (len(words) + 1) + [0] * (5 - len(words))
    assert batch.inputs.ids.shape == batch.targets.shape == (6, 6)
    assert np.array_equal(batch.inputs.blocks, batch.inputs.positions)


def test_the_source_is_read_from_both_sides_and_whole(specials, pair):
    source = Translation(specials)(pair, KEY).source
    assert np.array_equal(source.ids, pair.source.ids)
    assert np.array_equal(source.segments, pair.source.segments)
    assert (source.blocks == 0).all()


def test_decoding_starts_as_training_does(specials, pair):
    prompt, source = Translation(specials).prompt(pair.source)
    trained = Translation(specials)(pair, KEY).inputs
    first = jax.tree.map(lambda x: x[:, :1], trained)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, prompt, first)))
    assert source is pair.source


@pytest.mark.parametrize("mask", ["causal", "prefix"])
def test_joined_rows_are_source_sep_target(specials, pair, mask):
    batch = JoinedTranslation(specials, mask)(pair, KEY)
    assert batch.source is None
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        n = len(source) + 1
        real = np.asarray(batch.inputs.segments[row] != 0)
        ids = np.asarray(batch.inputs.ids[row])[real].tolist()
        assert ids[:6] == [*source, specials.eos, specials.sep, *target]
        assert counted(batch, row) == [*target, specials.eos]
        blocks = np.asarray(batch.inputs.blocks[row])[real][:6].tolist()
        prefix = [0] * n + list(range(1, 7 - n))
        assert blocks == (list(range(6)) if mask == "causal" else prefix)
        assert np.asarray(batch.inputs.positions[row])[real][:6].tolist() == list(range(6))
        at = batch.at[row, : len(target) + 1]
        assert np.asarray(batch.inputs.ids[row])[at].tolist() == [specials.sep, *target]


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_joined_rows_equal_each_pair_alone_without_padding(specials, pair, tiny, positions):
    model = tiny(positions=positions)
    run = jax.jit(lambda tokens: model(tokens))
    lengths = jnp.array([[len(source) + 1] for source in SOURCES], jnp.int32)
    s = specials
    joined = zip(SOURCES, TARGETS, strict=True)
    rows = [[*source, s.eos, s.sep, *target] for source, target in joined]
    alone = Tokens.of(jnp.array(rows, jnp.int32))
    hidden = {}
    for mask, tokens in {"causal": alone.causal(), "prefix": alone.prefix(lengths)}.items():
        batch = JoinedTranslation(specials, mask)(pair, KEY)
        hidden[mask] = jnp.take_along_axis(run(batch.inputs), batch.at[:, :, None], axis=1)
        expected = model(tokens)
        for row, target in enumerate(TARGETS):
            count, start = len(target) + 1, 5 - len(target)
            np.testing.assert_allclose(
                hidden[mask][row, :count], expected[row, start : start + count], atol=1e-5
            )
    assert abs(hidden["causal"] - hidden["prefix"])[0].max() > 1e-3


@pytest.mark.parametrize("mask", ["causal", "prefix"])
def test_joined_decoding_starts_as_training_does(specials, pair, mask):
    objective = JoinedTranslation(specials, mask)
    prompt, source = objective.prompt(pair.source)
    trained = objective(pair, KEY).inputs
    first = jax.tree.map(lambda x: x[:, :7], trained)  # the source, and one more token
    assert source is None
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, prompt, first)))
