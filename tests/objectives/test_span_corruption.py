"""Span corruption: nothing is lost, and the lengths are those of the algebra."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from masked_text import VOCAB, is_ordinary, stream

from attn_jax.config import Config, with_fields
from attn_jax.data.tokenizers import Vocabulary
from attn_jax.errors import InputError
from attn_jax.models.tokens import Tokens
from attn_jax.objectives.span_corruption import (
    PrefixSpanCorruption,
    SpanCorruption,
    span_counts,
)
from attn_jax.validation import validate

KEY = jax.random.key(0)
SENTINELS = tuple(range(VOCAB, VOCAB + 20))
ROW = 96


@pytest.fixture(scope="module")
def vocab(specials):
    return Vocabulary(VOCAB + 20, specials, sentinels=SENTINELS)


@functools.cache
def compiled(kind, vocab, rate, span_length):
    return jax.jit(kind(vocab, rate, span_length))


def corrupt(vocab, tokens, rate=0.15, span_length=3.0, key=KEY, first_row=0):
    batch = compiled(SpanCorruption, vocab, rate, span_length)(tokens, key, jnp.int32(first_row))
    return jax.tree.map(np.asarray, batch)


@pytest.fixture(scope="module")
def text(specials):
    """More than 100,000 ordinary tokens, in rows of documents of very different lengths."""
    tokens = stream(specials, [1, 30, 100, 300], 1100, ROW)
    assert is_ordinary(specials, tokens).sum() > 100_000
    return tokens


@pytest.fixture(scope="module")
def batch(vocab, text):
    return corrupt(vocab, text)


def spans_of(batch, row, segment):
    """The hidden tokens of a document, by sentinel, and its end."""
    places = np.flatnonzero(batch.inputs.segments[row] == segment)
    if not len(places):
        return {}, None
    assert (batch.weights[row, places] == 1).all()
    read = batch.inputs.ids[row, places]
    # What is read is what was to be written one place before.
    assert np.array_equal(read[1:], batch.targets[row, places][:-1])
    written = [read[0], *batch.targets[row, places]]
    spans, sentinel = {}, None
    for token in written[:-1]:
        if token in SENTINELS:
            sentinel = token
            spans[sentinel] = []
        else:
            spans[sentinel].append(token)
    return spans, written[-1]


def restore(batch, row):
    """Each document of a row with its spans put back where their sentinels stand."""
    documents = {}
    for segment in range(1, batch.source.segments[row].max() + 1):
        spans, end = spans_of(batch, row, segment)
        ids = batch.source.ids[row][batch.source.segments[row] == segment]
        inside = [token for token in ids if token in SENTINELS]
        assert inside == list(spans) == list(SENTINELS[: len(inside)])
        assert all(spans.values())
        put_back = [spans.get(token, [token]) for token in ids]
        documents[segment] = [t for part in put_back for t in part], end
    return documents


def check_round_trip(specials, tokens, batch):
    for row in range(len(tokens.ids)):
        ids, segments = np.asarray(tokens.ids[row]), np.asarray(tokens.segments[row])
        for segment, (restored, end) in restore(batch, row).items():
            assert restored == ids[segments == segment].tolist()
            assert end in (None, specials.eos)


@pytest.mark.parametrize(
    ("length", "rate", "span_length"), [(4, 0.15, 3.0), (31, 0.15, 3.0), (31, 0.5, 2.0)]
)
def test_every_text_comes_back_at_every_length(specials, vocab, length, rate, span_length):
    """Rows of one document of 0 to `length` tokens, and of several."""
    ids = np.random.default_rng(length).integers(7, VOCAB, (length + 1, length)).astype(np.int32)
    ids[:, 0] = specials.bos
    tokens = Tokens.of(jnp.asarray(ids), jnp.arange(length)[None] < jnp.arange(length + 1)[:, None])
    batch = corrupt(vocab, tokens, rate, span_length)
    check_round_trip(specials, tokens, batch)
    sizes = batch.source.segments.sum(1), batch.inputs.segments.sum(1)
    exact = 0
    for n in range(2, length + 1):
        hidden, spans = span_counts(n, rate, span_length)
        if n - 1 >= hidden + spans - 1:  # the first token is special
            exact += 1
            assert (sizes[0][n], sizes[1][n]) == (n - hidden + spans, hidden + spans)
    assert exact > 0.8 * (length - 1)


def test_a_packed_text_comes_back(specials, text, batch):
    few = jax.tree.map(lambda x: x[:150], text)
    part = jax.tree.map(lambda x: x[:150], batch)
    check_round_trip(specials, few, part)
    documents = sum(len(restore(part, row)) for row in range(150))
    assert documents == sum(len(np.unique(row)) for row in np.asarray(few.segments))


def test_lengths_are_those_of_the_algebra(batch):
    hidden, spans = span_counts(ROW, 0.15, 3.0)
    assert (hidden, spans) == (14, 5)
    assert batch.source.ids.shape == (1100, 96 - 14 + 5)
    assert batch.inputs.ids.shape == batch.targets.shape == (1100, 14 + 5)
    assert (batch.source.segments > 0).all()
    assert (batch.weights == 1).all()
    sentinels = np.isin(batch.source.ids, SENTINELS).sum(1)
    assert (sentinels == 5).all()


@pytest.mark.parametrize(("rate", "mean"), [(0.15, 3.0), (0.5, 3.0), (0.9, 1.0), (0.01, 8.0)])
def test_shorter_rows_need_no_more_room(rate, mean):
    before = 0, 0
    for n in range(300):
        hidden, spans = span_counts(n, rate, mean)
        assert n - hidden + spans >= before[0]
        assert hidden + spans >= before[1]
        assert 0 <= spans <= hidden <= n
        assert hidden + spans <= n + (n > 1) * spans
        before = n - hidden + spans, hidden + spans
    # T5's numbers: 512 tokens are read of 568, and 114 written, both with an <eos>.
    assert span_counts(568, 0.15, 3.0) == (85, 28)
    assert (568 - 85 + 28 + 1, 85 + 28 + 1) == (512, 114)


def test_rate_and_special_tokens(specials, text, batch):
    words = batch.targets[~np.isin(batch.targets, [*SENTINELS, specials.eos])]
    assert abs(len(words) / is_ordinary(specials, text).sum() - 0.15) < 0.01
    assert set(words) == set(range(VOCAB)) - {0, 1, 2, 3, 5, 6}


def test_spans_have_the_mean_length_and_vary(batch):
    lengths = [len(span) for row in range(600) for span in row_spans(batch, row)]
    assert np.mean(lengths) == 14 / 5
    counts = np.bincount(lengths) / len(lengths)
    assert 0.2 < counts[1] < 0.45  # 1 / 2.8 if they were geometric
    assert counts[6:].sum() > 0.05
    assert (np.diff(counts[1:8]) < 0).all()


def row_spans(batch, row):
    segments = np.unique(batch.inputs.segments[row])
    return [span for s in segments for span in spans_of(batch, row, s)[0].values()]


def test_neither_spans_nor_attention_cross_documents(batch):
    """Fields alone say so: positions from 0 in each, blocks of a causal target."""
    for tokens in (batch.source, batch.inputs):
        same = tokens.segments[:, :, None] == tokens.segments[:, None, :]
        assert np.array_equal(tokens.positions, np.tril(same).sum(-1) - 1)
    assert (batch.source.blocks == 0).all()
    assert np.array_equal(batch.inputs.blocks, batch.inputs.positions)


def test_rows_of_tiny_documents_keep_what_fits(specials, vocab):
    """There is no room for 14 tokens in 5 spans; the end of the source is left out."""
    tokens = stream(specials, [1], 1100, ROW)
    batch = corrupt(vocab, tokens)
    assert (batch.weights.sum(1) <= 10).all()
    for row in range(20):
        kept = (batch.source.segments[row] > 0).sum()
        assert kept == batch.source.ids.shape[1]
        rebuilt = [t for ids, _ in restore(batch, row).values() for t in ids]
        assert rebuilt == np.asarray(tokens.ids[row])[: len(rebuilt)].tolist()


def test_empty_rows_stay_empty(vocab, text):
    empty = jax.tree.map(jnp.zeros_like, text)
    batch = corrupt(vocab, empty)
    assert not batch.weights.any()
    assert not batch.source.segments.any()
    assert not batch.inputs.segments.any()


def test_a_row_is_the_same_wherever_it_lies(vocab, text, batch):
    lower = jax.tree.map(lambda x: jnp.roll(x, -3, axis=0), text)
    part = corrupt(vocab, lower, first_row=3)
    other = corrupt(vocab, text, key=jax.random.key(1))
    for a, b in zip(jax.tree.leaves(batch), jax.tree.leaves(part), strict=True):
        assert np.array_equal(a[3:], b[:-3])
    assert not np.array_equal(other.source.ids, batch.source.ids)


@pytest.fixture(scope="module")
def joined(vocab, text):
    few = jax.tree.map(lambda x: x[:6], text)
    return jax.tree.map(np.asarray, jax.jit(PrefixSpanCorruption(vocab, 0.15, 3.0))(few, KEY, 0))


def test_one_stack_reads_the_source_and_then_the_target(specials, batch, joined):
    S = batch.source.ids.shape[1]
    assert np.array_equal(joined.inputs.ids[:, :S], batch.source.ids[:6])
    starts = batch.inputs.positions[:6] == 0
    read = np.where(starts, specials.sep, batch.inputs.ids[:6])
    assert np.array_equal(joined.inputs.ids[:, S:], read)
    assert np.array_equal(joined.targets, batch.targets[:6])
    assert np.array_equal(joined.at, np.tile(np.arange(S, joined.inputs.ids.shape[1]), (6, 1)))
    assert joined.source is None
    # The source is one block; the target comes after it, in positions and in blocks.
    assert (joined.inputs.blocks[:, :S] == 0).all()
    sources = [
        (joined.inputs.segments[b, :S] == s).sum()
        for b, row in enumerate(joined.inputs.segments[:, S:])
        for s in row
    ]
    after = batch.inputs.positions[:6] + np.reshape(sources, (6, -1))
    assert np.array_equal(joined.inputs.positions[:, S:], after)
    assert np.array_equal(joined.inputs.blocks[:, S:], batch.inputs.positions[:6] + 1)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_what_is_written_later_changes_nothing_before(tiny, batch, joined, architecture):
    """T21: hidden states of a document's target up to a place do not move; the rest does."""
    graph, params = nnx.split(tiny(architecture=architecture))
    found = joined if architecture == "decoder" else jax.tree.map(lambda x: x[:6], batch)
    inputs, source = (jax.tree.map(jnp.asarray, x) for x in (found.inputs, found.source))
    run = jax.jit(lambda tokens: nnx.merge(graph, params)(tokens, source))
    end = inputs.ids.shape[1] - 1
    before = run(inputs)
    after = run(inputs.replace(ids=inputs.ids.at[:, end].add(30)))
    moved = np.asarray(abs(before - after).max(-1))
    assert (moved[:, :end] == 0).all()
    assert (moved[:, end] > 1e-4).all()


def span_config(**changes):
    fields = {"objective.name": "span_corruption", "model.architecture": "encoder_decoder"}
    fields |= {"objective.mask_rate": 0.15, "tokenizer.sentinels": 6}
    return with_fields(Config(), fields | changes)


def test_there_must_be_enough_sentinels():
    validate(span_config())
    with pytest.raises(InputError) as caught:
        validate(span_config(**{"tokenizer.sentinels": 5}))
    assert "tokenizer.sentinels = 5: " in str(caught.value)
    assert "expected at least 6" in str(caught.value)


def test_one_rate_and_a_position_table_that_is_long_enough():
    with pytest.raises(InputError, match=r"final_mask_rate = 0.3: expected 0"):
        validate(span_config(**{"objective.final_mask_rate": 0.3}))
    fields = {"objective.name": "prefix_span_corruption", "model.architecture": "decoder"}
    fields |= {"model.positions": "learned", "model.max_length": 128 + 2 * 6}
    validate(span_config(**fields))
    with pytest.raises(InputError, match="sequences of 140 are longer"):
        validate(span_config(**fields | {"model.max_length": 139}))
