"""Greedy decoding against a slow loop that looks at the whole text again for every token."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from oracles import tokens_of

from attn_jax.data.tokenizers import Tokenizer
from attn_jax.decoding import beam, sampling, text, vocabulary
from attn_jax.decoding.prompts import prepare
from attn_jax.decoding.sampling import GREEDY, greedy
from attn_jax.errors import InputError
from attn_jax.models.transformer import Decoder
from attn_jax.objectives.translation import CausalTranslation, PrefixTranslation, Translation

JOINED = {"causal": CausalTranslation, "prefix": PrefixTranslation}

PROMPTS = [[10, 11, 12, 13, 14], [15], [16, 17, 18], [10, 11], [19, 20, 21, 22], [23]]
NEW = 5
NEVER = 79  # taken for <eos> where rows should not end; the tests check that it is not written


def slow_greedy(model, rows, source=None, prefix=None, eos=NEVER, pad=6):
    """No cache: the whole rows are read again, without gaps, for each new token."""

    @jax.jit
    def run(tokens):
        tokens = tokens.causal() if prefix is None else tokens.prefix(prefix)
        return jnp.argmax(model.logits(model(tokens, source)), -1)

    rows, written = [list(row) for row in rows], [[] for _ in rows]
    width, starts = max(map(len, rows)) + NEW - 1, [len(row) for row in rows]
    for _ in range(NEW):
        # Of a joined pair, the target begins with the last token of the prompt.
        sides = jnp.arange(width)[None] >= jnp.array(starts)[:, None] - 1
        best = np.asarray(run(tokens_of(rows, width).replace(sides=sides.astype(jnp.int32))))
        for i, row in enumerate(rows):
            finished = eos in written[i]
            written[i].append(pad if finished else int(best[i, len(row) - 1]))
            row.append(written[i][-1])
    return np.array(written)


SCHEMES = {
    "rotary": {"num_layers": 1},
    "learned": {"num_layers": 1, "positions": "learned", "window": 3, "max_length": 9},
}


@pytest.fixture(scope="module", params=SCHEMES.values(), ids=SCHEMES)
def decoder(request, tiny):
    """A decoder, and what the slow loop writes with it."""
    model = tiny(**request.param)
    return model, slow_greedy(model, PROMPTS)


def run(model, prompts, eos=NEVER):
    prompt = tokens_of(prompts, max(map(len, prompts)))
    return np.asarray(greedy(model, prompt, max_new=NEW, eos=eos, pad=6))


def test_greedy_equals_a_slow_loop(decoder):
    """Ragged prompts, of 1 to 5 tokens: T16; positions go on where each prompt ends: T19."""
    model, expected = decoder
    written = run(model, PROMPTS)
    assert written.shape == (6, NEW)
    assert np.array_equal(written, expected)
    assert NEVER not in written
    assert len(np.unique(written)) > 3  # not just one word again and again


def test_a_prompt_in_a_ragged_batch_equals_the_prompt_alone(tiny):
    model = tiny(num_layers=1)
    together = run(model, PROMPTS)
    assert np.array_equal(run(model, PROMPTS[1:2])[0], together[1])


def test_eos_ends_a_row_and_padding_follows(tiny):
    model = tiny(num_layers=1)
    free = run(model, PROMPTS)
    # Some row begins with it, some row never writes it.
    eos = next(int(x) for x in free[:, 0] if not (free == x).any(axis=1).all())
    written = run(model, PROMPTS, eos=eos)
    for row, expected in zip(written, free, strict=True):
        ends = np.flatnonzero(expected == eos)
        stop = ends[0] + 1 if len(ends) else NEW
        assert np.array_equal(row[:stop], expected[:stop])
        assert (row[stop:] == 6).all()
    assert [eos, 6, 6, 6, 6] in written.tolist()
    assert np.array_equal(written, slow_greedy(model, PROMPTS, eos=eos))


def test_decoding_stops_when_all_rows_are_finished(tiny):
    calls = []

    class Counting(Decoder):
        """Writes id + 1 after each id, and notes when it takes a step."""

        def step(self, tokens, cache):
            jax.debug.callback(lambda: calls.append(1))
            return jax.nn.one_hot(tokens.ids, 80), cache

        def logits(self, hidden):
            return jnp.roll(hidden, 1, axis=-1)

    shapes = nnx.eval_shape(lambda: Counting(tiny(num_layers=1).config, 80, nnx.Rngs(0)))
    graph, params = nnx.split(shapes)
    model = nnx.merge(graph, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params))
    prompt = tokens_of([[27], [28, 26], [26], []], 2)
    written = np.asarray(greedy(model, prompt, max_new=50, eos=30, pad=6))
    rows = [[28, 29, 30, 6], [27, 28, 29, 30], [27, 28, 29, 30], [6, 6, 6, 6]]
    assert written[:, :4].tolist() == rows
    assert (written[:, 4:] == 6).all()
    jax.effects_barrier()
    assert len(calls) == 4  # the prompt, and all but the last token of the longest row


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_parameters_are_read_as_they_lie(tiny, search, monkeypatch):
    """Neither the vocabulary nor a kernel is copied, and each is the left side of its products."""
    monkeypatch.setattr(vocabulary, "count_lanes", lambda size: 16)  # as of a large one
    model = tiny(num_layers=1, d_model=64)
    ready, prompt, ends = prepare(model), tokens_of([[10, 11], [12]], 2), (20, 30, 6)
    if search == "beam":
        arguments = (*ready, prompt, None, jnp.ones(20), beam.Beam(3), *ends[1:])
        program = beam._search_jit
    else:
        arguments = (*ready, prompt, None, jax.random.split(jax.random.key(0), 2), GREEDY, *ends)
        program = sampling._sample_jit
    compiled = program.lower(*arguments).compile().as_text()
    shapes = {frozenset(x.shape) for x in jax.tree.leaves(ready.params) if x.ndim == 2}
    made = re.findall(r"= f32\[(\d+),(\d+)\]\S* (?:copy|transpose)\(", compiled)
    assert shapes.isdisjoint(frozenset(map(int, shape)) for shape in made)
    products = re.findall(r"= f32\[(\d+),(\d+)\]\S* dot\(", compiled)
    rows = {"2", "4", "6"}  # of a step, of the prompt, of a step of three beams
    assert len(products) >= 10
    assert {right for _, right in products} <= rows
    assert rows.isdisjoint(left for left, _ in products)


SOURCES = [[10, 11, 12, 13, 3], [15, 3], [16, 17, 3], [3], [19, 20, 21, 3], [11, 10, 3]]


@pytest.mark.parametrize("share_sides", [False, True])
def test_an_encoder_decoder_equals_a_slow_loop(specials, tiny, share_sides):
    fields = {"architecture": "encoder_decoder", "positions": "sinusoidal"}
    model = tiny(**fields, num_layers=1, share_sides=share_sides)
    prompt, source = jax.jit(Translation(specials).prompt)(tokens_of(SOURCES, 5))
    written = greedy(model, prompt, source, max_new=NEW, eos=NEVER, pad=6)
    expected = slow_greedy(model, [[specials.bos]] * 6, source)
    assert np.array_equal(written, expected)
    assert len({tuple(row) for row in expected.tolist()}) > 1  # the source matters


@pytest.mark.parametrize("sides", [False, True])
@pytest.mark.parametrize("mask", ["causal", "prefix"])
def test_joined_translation_equals_a_slow_loop(specials, tiny, mask, sides):
    model = tiny(positions="learned", num_layers=1, side_embeddings=sides)
    prompt, source = jax.jit(JOINED[mask](specials).prompt)(tokens_of(SOURCES, 5))
    written = greedy(model, prompt, source, max_new=NEW, eos=NEVER, pad=6)
    lengths = jnp.array([[len(row)] for row in SOURCES])
    rows = [[*row, specials.sep] for row in SOURCES]
    expected = slow_greedy(model, rows, prefix=lengths if mask == "prefix" else None)
    assert np.array_equal(written, expected)


def test_a_learned_table_that_is_too_short_is_an_input_error(tiny):
    model = tiny(positions="learned", max_length=8, num_layers=1)
    with pytest.raises(InputError, match=r"9 tokens .* model\.max_length = 8"):
        run(model, PROMPTS)


class Letters(Tokenizer):
    """As far as a `Writer` needs one: ids are letters, a being 10."""

    vocab_size, sentinels = 40, range(0)
    _piece = _num_bytes = state = None

    def __init__(self, specials):
        self.specials = specials

    def encode(self, text):
        return [ord(letter) - ord("a") + 10 for letter in text]

    def _starts_word(self, token):
        return False

    def _decode(self, ids):
        return "".join(chr(ord("a") + i - 10) for i in ids)


TEXTS = ["bc", "abcd", "a"]


@pytest.mark.parametrize("joined", [False, True])
def test_texts_of_the_configured_length_fit_the_table(specials, tiny, monkeypatch, joined):
    """Of a config that `validate` accepts: data.length tokens a side, and no room to spare."""
    monkeypatch.setattr(text, "ROWS", 3)
    length, architecture = 5, "decoder" if joined else "encoder_decoder"
    tokenizer = Letters(specials)
    model = tiny(
        architecture=architecture,
        positions="learned",
        max_length=length * (1 + joined),
        num_layers=1,
    )
    objective = PrefixTranslation(specials) if joined else Translation(specials)
    writer = text.Writer(model, objective, tokenizer, length)
    found = writer.write_texts(TEXTS)
    assert writer.limit >= length
    # The longest text comes out as by `greedy`.
    prompt, source = objective.prompt(tokens_of([[10, 11, 12, 13, specials.eos]] * 3, 5))
    ends = {"eos": specials.eos, "pad": specials.pad}
    alone = np.asarray(greedy(model, prompt, source, max_new=5, **ends))[0]
    assert found[1] == tokenizer.decode(alone)
    assert found[1] != ""
