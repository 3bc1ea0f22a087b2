"""Reading piece by piece through a cache gives what one look at the whole text gives."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax.errors import InputError
from attn_jax.models.cache import Cache, empty_tokens
from attn_jax.models.tokens import Tokens

T = 6  # rows of a batch, and tokens of a row
CAPACITY = 8  # slots: some stay empty
IDS = jnp.asarray(np.random.default_rng(0).integers(0, 80, (T, T)), jnp.int32)
PLAIN = Tokens.of(IDS)
SOURCE = Tokens.of(IDS[::-1], jnp.arange(T)[None] < jnp.array([[6], [1], [4], [5], [2], [3]]))
CHUNKS = {"one": [1] * T, "three": [3, 3], "prompt": [3, 1, 1, 1]}
MODELS = {
    "rotary": {},
    "learned": {"positions": "learned", "num_layers": 1},
    "sinusoidal": {"positions": "sinusoidal", "norm_position": "post", "num_layers": 1},
    "none": {"positions": "none", "num_layers": 1},
    "window": {"window": 2},  # shorter than the text, even after two layers
    "grouped": {"num_kv_heads": 1, "bias": True, "num_layers": 1},
    "encoder_decoder": {"architecture": "encoder_decoder", "window": 2, "num_layers": 1},
}


@partial(jax.jit, static_argnums=0)
def compiled_step(graph, params, tokens, cache):
    return nnx.merge(graph, params).step(tokens, cache)


def step_by_step(model, tokens, chunks, source=None, step=None):
    step = step or partial(compiled_step, *nnx.split(model))
    cache = model.start(T, CAPACITY, source)
    pieces = []
    for stop, size in zip(itertools.accumulate(chunks), chunks, strict=True):
        hidden, cache = step(tokens_slice(tokens, stop - size, stop), cache)
        pieces.append(np.asarray(hidden))
    return np.concatenate(pieces, axis=1)


def tokens_slice(tokens, start, stop):
    return jax.tree.map(lambda x: np.asarray(x)[:, start:stop], tokens)


def assert_same(model, tokens, chunks, step=None):
    """Compares hidden states at all real tokens."""
    source = SOURCE if model.config.architecture == "encoder_decoder" else None
    real = np.asarray(tokens.segments != 0)
    steps = step_by_step(model, tokens, chunks, source, step)
    full = np.asarray(model(tokens, source))
    np.testing.assert_allclose(steps[real], full[real], atol=1e-5)


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)
def test_step_by_step_equals_the_full_forward(tiny, fields, chunks):
    assert_same(tiny(**fields), PLAIN, chunks)


RAGGED = {
    "right padding": [1, 1, 1, 0, 0, 0],
    "padding between prompt and continuation": [1, 0, 0, 1, 1, 1],
    "gaps": [1, 0, 1, 1, 0, 1],
    "left padding": [0, 0, 1, 1, 1, 1],
    "nothing": [0] * 6,
    "full": [1] * 6,
}


@pytest.mark.parametrize("chunks", ["three", "prompt"])
@pytest.mark.parametrize("fields", ["rotary", "learned", "window", "encoder_decoder"])
def test_ragged_rows(tiny, fields, chunks):
    tokens = Tokens.of(IDS, jnp.array(list(RAGGED.values()), bool))
    assert_same(tiny(**MODELS[fields]), tokens, CHUNKS[chunks])


def test_a_prefix_is_read_from_both_sides_in_one_chunk(tiny):
    assert_same(tiny(num_layers=1), PLAIN.prefix(3), CHUNKS["prompt"])
    with pytest.raises(AssertionError):  # its first token must see the others
        assert_same(tiny(num_layers=1), PLAIN.prefix(3), CHUNKS["one"])


@pytest.mark.parametrize("architecture", ["decoder", "encoder", "encoder_decoder"])
def test_the_whole_text_may_be_one_chunk(tiny, architecture):
    assert_same(tiny(architecture=architecture, num_layers=1), PLAIN, [T])


def test_the_source_is_encoded_once(tiny, monkeypatch):
    model = tiny(**MODELS["encoder_decoder"])
    cache = model.start(T, T, SOURCE)
    monkeypatch.setattr(type(model.encoder), "__call__", None, raising=True)
    with pytest.raises(TypeError):
        model.encode(SOURCE)
    monkeypatch.undo()
    _, after = compiled_step(*nnx.split(model), tokens_slice(PLAIN, 0, 3), cache)
    same = jax.tree.map(np.array_equal, cache.memory, after.memory)
    assert all(jax.tree.leaves(same))
    assert (np.asarray(after.memory.tokens.blocks) == 0).all()
    assert after.cursor == 3


@pytest.mark.parametrize("fields", ["rotary", "learned", "sinusoidal"])
def test_positions_off_by_one_are_noticed(tiny, fields):
    """T19: a decoder that goes on one position too late is not the model that was trained."""
    late = PLAIN.causal()
    late = late.replace(positions=late.positions + np.array([[0, 0, 0, 1, 1, 1]]))
    steps = step_by_step(tiny(**MODELS[fields]), late, CHUNKS["prompt"])
    full = np.asarray(tiny(**MODELS[fields])(PLAIN))
    np.testing.assert_allclose(steps[:, :3], full[:, :3], atol=1e-5)
    assert abs(steps - full)[:, 3:].max() > 1e-3


def no_advance(cache, layers, by):
    return dataclasses.replace(ADVANCE(cache, layers, by), cursor=cache.cursor)


def no_layers(cache, layers, by):
    return Cache(cache.tokens, cache.cursor + by, cache.layers, cache.memory)


def first_slot(cache, layer, new):
    zero = Cache(cache.tokens, jnp.int32(0), cache.layers, cache.memory)
    return WRITE_LAYER(zero, layer, new)


def first_layer(cache, layer, new):
    return WRITE_LAYER(cache, 0, new)


def all_slots_seen(cache, tokens):
    written = WRITE_TOKENS(cache, tokens)
    ones = jnp.ones_like(written.tokens.segments)
    return Cache(written.tokens.replace(segments=ones), cache.cursor, cache.layers, cache.memory)


ADVANCE, WRITE_LAYER, WRITE_TOKENS = Cache.advance, Cache.write_layer, Cache.write_tokens


@pytest.mark.parametrize(
    ("method", "planted"),
    [
        ("advance", no_advance),
        ("advance", no_layers),
        ("write_layer", first_slot),
        ("write_layer", first_layer),
        ("write_tokens", all_slots_seen),
    ],
)
def test_the_comparison_finds_planted_bugs(tiny, monkeypatch, method, planted):
    model = tiny()
    # Bidirectional, so that blocks alone do not hide an empty slot.
    tokens = PLAIN.bidirectional() if planted is all_slots_seen else PLAIN
    chunks = [T] if planted is all_slots_seen else [3, 3]
    assert_same(model, tokens, chunks)
    monkeypatch.setattr(Cache, method, planted)
    with pytest.raises(AssertionError):
        assert_same(model, tokens, chunks, step=jax.jit(lambda *x: model.step(*x)))


LONG = Tokens.of(jnp.concatenate([IDS, IDS[::-1]], axis=1))
GAPS = [[], [0], [1], [3, 1], [2, 3], [0, 1, 2, 3]]  # columns of padding in each row's prompt


@partial(jax.jit, static_argnums=0)
def compiled_forward(graph, params, tokens):
    return nnx.merge(graph, params)(tokens)


# Width of the first chunk, of the others, and window: in window + first slots.
RINGS = {"one by one": (1, 1, 2), "pairs": (2, 2, 3), "a prompt longer than the window": (4, 1, 2)}


@pytest.mark.parametrize("gaps", [False, True], ids=["plain", "gaps"])
@pytest.mark.parametrize("sizes", RINGS.values(), ids=RINGS)
@pytest.mark.slow
def test_a_ring_that_is_gone_round_equals_the_full_forward(tiny, sizes, gaps):
    """12 tokens in 3 to 6 slots; pairs are written across the end."""
    first, size, window = sizes
    real = [[not gaps or c >= first or c not in row for c in range(12)] for row in GAPS]
    tokens = Tokens.of(LONG.ids, jnp.array(real))
    model, split = tiny(window=window), nnx.split(tiny(window=window))
    full = np.asarray(compiled_forward(*split, tokens.causal()))
    cache = model.start(T, 12, prompt=first)
    assert cache.tokens.ids.shape == (T, first + window)
    for start, stop in [(0, first)] + [(i, i + size) for i in range(first, 12, size)]:
        hidden, cache = compiled_step(*split, tokens_slice(tokens, start, stop), cache)
        there = np.array(real)[:, start:stop]
        np.testing.assert_allclose(hidden[there], full[:, start:stop][there], atol=1e-5)
    assert cache.cursor == 12


def test_a_ring_is_as_small_as_the_window_lets_it_be(tiny):
    """One slot less, and the oldest key that is seen is gone."""
    tokens, split = LONG, nnx.split(tiny(window=3))
    full = np.asarray(compiled_forward(*split, tokens.causal()))
    for slots in (3, 2):
        cache = tiny(window=3).start(T, slots)
        cache = Cache(cache.tokens, cache.cursor, cache.layers, window=slots)  # not refused
        for i in range(6):
            hidden, cache = compiled_step(*split, tokens_slice(tokens, i, i + 1), cache)
        assert np.allclose(hidden, full[:, 5:6], atol=1e-5) == (slots == 3)


def test_a_chunk_that_a_ring_cannot_hold_is_refused(tiny):
    model = tiny(window=2)
    cache = model.start(T, 12, prompt=2)

    def take(count):
        return jax.tree.map(lambda x: x[:, :count], LONG)

    jax.eval_shape(model.step, take(3), cache)  # 4 slots: window + 3 - 1
    with pytest.raises(InputError, match=r"4 tokens at once .* 4 slots: .*window = 2 they need 5"):
        jax.eval_shape(model.step, take(4), cache)


def test_there_is_a_ring_only_where_it_saves_slots(tiny):
    assert tiny(window=4).start(2, 7, prompt=3).window == 0  # 3 + 4 are all 7
    assert tiny(window=4).start(2, 8, prompt=3).tokens.ids.shape == (2, 7)
    assert tiny().start(2, 8, prompt=3).tokens.ids.shape == (2, 8)
    assert tiny(window=4).start(2, 8).tokens.ids.shape == (2, 8)  # chunks of any size
    assert tiny(window=4).start(2, 9, prompt=3, beams=5).tokens.ids.shape == (2, 3 + 5 * 4)


def test_beams_see_their_own_slots():
    """A prompt of 2 slots, then 2 beams: both go on from beam 1, then from each other."""
    tokens = empty_tokens(1, 8)
    cache = Cache(tokens, jnp.int32(0), ()).write_tokens(tokens_of([7, 8])).advance((), 2).fork(2)
    seen = []
    for ids, parents in (([10, 11], [0, 0]), ([20, 21], [1, 1]), ([30, 31], [1, 0])):
        cache = cache.choose(jnp.array([parents])).write_tokens(tokens_of(ids)).advance((), 2)
        fields = cache.seen()
        real = np.asarray(fields.segments[0]) != 0
        ids = np.broadcast_to(fields.ids[0], real.shape)
        seen.append([row[keep].tolist() for row, keep in zip(ids, real, strict=True)])
    assert seen[0] == [[7, 8, 10], [7, 8, 11]]
    assert seen[1] == [[7, 8, 11, 20], [7, 8, 11, 21]]
    assert seen[2] == [[7, 8, 11, 21, 30], [7, 8, 11, 20, 31]]


def tokens_of(ids):
    ids = jnp.array([ids], jnp.int32)
    return Tokens(ids, ids, jnp.ones_like(ids), ids)


def test_a_prompt_longer_than_the_cache_is_refused(tiny):
    for architecture in ("decoder", "encoder_decoder"):
        model = tiny(architecture=architecture)
        with pytest.raises(InputError, match="6 tokens does not fit a cache of 5 slots"):
            model.step(PLAIN, model.start(T, 5, SOURCE))


def test_a_new_cache_is_empty_and_a_pytree(tiny):
    model = tiny(num_kv_heads=1, dtype="bfloat16")
    cache = model.start(2, 5)
    assert cache.cursor == 0
    assert cache.memory is None
    assert (cache.tokens.segments == 0).all()
    assert jax.tree.map(jnp.shape, cache.tokens) == jax.tree.map(jnp.shape, empty_tokens(2, 5))
    assert [x.shape for x in jax.tree.leaves(cache.layers)] == [(2, 5, 4)] * 4
    assert {x.dtype for x in jax.tree.leaves(cache.layers)} == {jnp.dtype("bfloat16")}
    step = jax.tree.map(lambda x: x[:2, :1], PLAIN)
    shapes = jax.eval_shape(model.step, step, cache)[1]
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, cache)
