"""Translation: what is predicted, and that packed or joined pairs mean what each means alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax.models.tokens import Pair, Tokens
from attn_jax.objectives.translation import CausalTranslation, PrefixTranslation, Translation

JOINED = {"causal": CausalTranslation, "prefix": PrefixTranslation}

KEY = jax.random.key(0)
# Words of each side. Joined, `source <eos> <sep> target` always has 6 tokens.
SOURCES = [[10, 11, 12, 13], [14, 15, 16], [17, 18], [19], [], [20, 21]]
TARGETS = [[], [30], [31, 32], [33, 34, 35], [36, 37, 38, 39], [40, 41]]
# Which pairs stand in which row, and how far apart they are.
ONE_A_ROW, PACKED = [[0], [1], [2], [3], [4], [5]], [[4, 0], [1, 2, 5], [3]]


def tokens_of(rows, pad, width, gap=0):
    """Rows of sentences, each a segment, with `gap` places of padding after each."""
    fields = np.zeros((3, len(rows), width), np.int32)
    fields[0] = pad
    for b, row in enumerate(rows):
        start = 0
        for segment, sentence in enumerate(row, 1):
            stop = start + len(sentence)
            fields[:, b, start:stop] = sentence, range(len(sentence)), [segment] * len(sentence)
            start = stop + gap
    return Tokens(*map(jnp.asarray, fields))


def make_pair(specials, rows, gap=0):
    s = specials
    sources = [[[*SOURCES[i], s.eos] for i in row] for row in rows]
    targets = [[[s.bos, *TARGETS[i], s.eos] for i in row] for row in rows]
    return Pair(tokens_of(sources, s.pad, 12, gap), tokens_of(targets, s.pad, 15, gap))


LAYOUTS = pytest.mark.parametrize(
    ("rows", "gap"), [(ONE_A_ROW, 0), (PACKED, 0), (PACKED, 1)], ids=["padded", "packed", "gaps"]
)


def places(rows):
    """(pair, row, segment) of each pair."""
    return [(i, b, s) for b, row in enumerate(rows) for s, i in enumerate(row, 1)]


def of_segment(tokens, row, segment):
    """Columns of one segment."""
    return np.flatnonzero(np.asarray(tokens.segments[row]) == segment)


def call(objective, pair):
    return jax.tree.map(np.asarray, jax.jit(objective)(pair, KEY))


@LAYOUTS
def test_the_target_is_shifted_by_one(specials, rows, gap):
    pair = make_pair(specials, rows, gap)
    batch = call(Translation(specials), pair)
    for i, row, segment in places(rows):
        words = TARGETS[i]
        columns = of_segment(batch.inputs, row, segment)[: len(words) + 1]
        assert batch.inputs.ids[row, columns].tolist() == [specials.bos, *words]
        assert batch.targets[row, columns].tolist() == [*words, specials.eos]
        assert (batch.weights[row, columns] == 1).all()
    # Nothing else counts, and segments 2 and 3 count like the first.
    assert batch.weights.sum() == sum(len(words) + 1 for words in TARGETS)
    assert set(np.unique(batch.weights)) == {0.0, 1.0}
    assert np.array_equal(batch.inputs.blocks, batch.inputs.positions)


def test_the_source_is_read_from_both_sides_and_whole(specials):
    pair = make_pair(specials, PACKED)
    source = call(Translation(specials), pair).source
    assert np.array_equal(source.ids, pair.source.ids)
    assert np.array_equal(source.segments, pair.source.segments)
    assert (source.blocks == 0).all()


@LAYOUTS
@pytest.mark.parametrize("mask", ["causal", "prefix"])
def test_joined_pairs_are_source_sep_target(specials, mask, rows, gap):
    batch = call(JOINED[mask](specials), make_pair(specials, rows, gap))
    assert batch.source is None
    for i, row, segment in places(rows):
        columns = of_segment(batch.inputs, row, segment)[:6]  # a last one may read <eos>
        joined = [*SOURCES[i], specials.eos, specials.sep, *TARGETS[i]]
        assert batch.inputs.ids[row, columns].tolist() == joined
        assert batch.inputs.positions[row, columns].tolist() == list(range(6))
        n = len(SOURCES[i]) + 1
        prefix = [0] * n + list(range(1, 7 - n))
        expected = list(range(6)) if mask == "causal" else prefix
        assert batch.inputs.blocks[row, columns].tolist() == expected
        counted = (batch.weights[row] == 1) & np.isin(batch.at[row], columns)
        assert batch.targets[row, counted].tolist() == [*TARGETS[i], specials.eos]
        assert batch.at[row, counted].tolist() == columns[n:].tolist()
    assert batch.weights.sum() == sum(len(words) + 1 for words in TARGETS)
    sides = batch.inputs.sides
    assert (sides[:, :12] == 0).all()
    assert (sides[:, 12:] == 1).all()


@LAYOUTS
def test_a_loss_on_the_source_counts_its_next_tokens(specials, rows, gap):
    pair = make_pair(specials, rows, gap)
    plain = call(CausalTranslation(specials), pair)
    batch = call(CausalTranslation(specials, source_loss=0.25), pair)
    jax.tree.map(np.testing.assert_array_equal, batch.inputs, plain.inputs)
    assert (batch.at[0] == np.arange(12 + 14)).all()  # every column
    jax.tree.map(  # and of the target nothing changes
        lambda a, b: np.testing.assert_array_equal(a[:, 12:], b),
        (batch.at, batch.targets, batch.weights),
        (plain.at, plain.targets, plain.weights),
    )
    for i, row, segment in places(rows):
        columns = of_segment(batch.inputs, row, segment)[: len(SOURCES[i]) + 1]
        *predicting, last = columns
        ids = batch.inputs.ids[row, columns]
        assert batch.targets[row, predicting].tolist() == ids[1:].tolist()
        assert (batch.weights[row, predicting] == 0.25).all()
        assert batch.weights[row, last] == 0  # <sep> always follows <eos>
    assert batch.weights[:, :12].sum() == 0.25 * sum(map(len, SOURCES))


def test_no_source_token_is_predicted_from_a_state_that_has_seen_it(specials, tiny):
    """Of a causal mask. Negative control: under a prefix mask it would be."""
    model = tiny(num_layers=1)
    batch = call(CausalTranslation(specials, source_loss=1.0), make_pair(specials, PACKED, gap=1))
    ids = jnp.asarray(batch.inputs.ids)
    graph, params = nnx.split(model)
    for inputs, leaks in ((batch.inputs, False), (batch.inputs.replace(blocks=0 * ids), True)):
        hidden = np.asarray(run(graph, params, inputs))
        found = False
        for row, at in np.argwhere(batch.weights > 0):
            if at > 3:
                continue  # the first columns are enough
            column = np.flatnonzero(batch.inputs.segments[row, at + 1 :])[0] + at + 1
            changed = run(graph, params, inputs.replace(ids=ids.at[row, column].set(70)))
            found |= bool(abs(np.asarray(changed)[row, at] - hidden[row, at]).max() > 1e-4)
        assert found == leaks


@partial(jax.jit, static_argnums=0)
def run(graph, params, tokens, source=None):
    return nnx.merge(graph, params)(tokens, source)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_joined_pairs_equal_each_pair_alone_without_padding(specials, tiny, positions):
    """In one row, `source <eos> <sep> target` has no gaps; that is the slow construction."""
    parts = nnx.split(tiny(positions=positions, num_layers=1, max_length=32))
    s = specials
    joined = [[*a, s.eos, s.sep, *b] for a, b in zip(SOURCES, TARGETS, strict=True)]
    alone = Tokens.of(jnp.array(joined, jnp.int32))
    lengths = jnp.array([[len(source) + 1] for source in SOURCES], jnp.int32)
    expected = {"causal": run(*parts, alone.causal()), "prefix": run(*parts, alone.prefix(lengths))}
    assert abs(expected["causal"] - expected["prefix"])[0].max() > 1e-3
    for mask, rows in (("causal", PACKED), ("prefix", PACKED), ("prefix", [[i] for i in range(3)])):
        batch = call(JOINED[mask](specials), make_pair(specials, rows))
        hidden = np.asarray(run(*parts, batch.inputs))
        for i, row, segment in places(rows):
            columns = of_segment(batch.inputs, row, segment)[:6]
            found, wanted = hidden[row, columns], np.asarray(expected[mask])[i]
            np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_packed_pairs_equal_each_pair_alone(specials, tiny):
    """By an encoder-decoder: a target sees the source of its own segment only."""
    parts = nnx.split(tiny(architecture="encoder_decoder", positions="learned", num_layers=1))
    alone, packed = (
        call(Translation(specials), make_pair(specials, rows)) for rows in (ONE_A_ROW, PACKED)
    )
    expected, hidden = (np.asarray(run(*parts, b.inputs, b.source)) for b in (alone, packed))
    for i, row, segment in places(PACKED):
        columns = of_segment(packed.inputs, row, segment)[: len(TARGETS[i]) + 1]
        np.testing.assert_allclose(
            hidden[row, columns], expected[i, : len(TARGETS[i]) + 1], atol=1e-5
        )


@pytest.mark.parametrize("mask", [None, "causal", "prefix"])
def test_decoding_starts_as_training_does(specials, mask):
    pair = make_pair(specials, ONE_A_ROW)
    objective = Translation(specials) if mask is None else JOINED[mask](specials)
    prompt, source = jax.jit(objective.prompt)(pair.source)
    trained = call(objective, pair).inputs
    size = 1 if mask is None else 12 + 1  # <bos>; or the source, and one more token
    first = jax.tree.map(lambda x: x[:, :size], trained)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, prompt, first)))
    assert (source is None) == (mask is not None)
