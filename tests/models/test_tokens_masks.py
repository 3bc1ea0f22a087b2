"""Tokens and the mask: what the fields say, and nothing else, decides who sees whom."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens


def slow_visible(queries, keys, window=0):
    """The definition, as three nested loops."""
    q, k = jax.tree.map(np.asarray, (queries, keys))
    (B, T), S = q.ids.shape, k.ids.shape[1]
    seen = np.zeros((B, T, S), bool)
    for b in range(B):
        for t in range(T):
            for s in range(S):
                same = q.segments[b, t] == k.segments[b, s] and q.segments[b, t] != 0
                earlier = k.blocks[b, s] <= q.blocks[b, t]
                distance = abs(int(q.positions[b, t]) - int(k.positions[b, s]))
                seen[b, t, s] = same and earlier and (window == 0 or distance < window)
    return seen


def random_tokens(rng, T):
    positions, segments, blocks = (rng.integers(0, n, (2, T), np.int32) for n in (6, 3, 4))
    fields = (np.zeros((2, T), np.int32), positions, segments, blocks)
    return Tokens(*map(jnp.asarray, fields))


def disagreements(mask, tries=25):
    """How many of some random cases the function `mask` gets wrong."""
    rng, wrong = np.random.default_rng(0), 0
    for i in range(tries):
        queries, keys, window = random_tokens(rng, 4), random_tokens(rng, 6), i % 5
        got = np.asarray(mask(queries, keys, window))
        wrong += not np.array_equal(got, slow_visible(queries, keys, window))
    return wrong


def tokens_of(text, field="blocks", **others):
    """One row with a field written out, e.g. `0 0 1`; segments are 1 and blocks causal if open."""
    values = jnp.array([[int(x) for x in text.split()]], jnp.int32)
    tokens = Tokens.of(jnp.zeros_like(values)).causal().replace(**{field: values})
    return tokens.replace(**{k: jnp.array([v], jnp.int32) for k, v in others.items()})


def picture(seen):
    """The rows of a mask [T, S] as the docstring of `visible` writes them."""
    return [" ".join("x" if x else "." for x in row) for row in np.asarray(seen)]


def test_visible_equals_three_loops():
    assert disagreements(visible) == 0


def corner(q, k, window):
    return visible(q, k, window) & jnp.tril(jnp.ones((1, q.ids.shape[1], k.ids.shape[1]), bool))


def index_window(q, k, window):
    index = jnp.arange(6)[None, None, :] - jnp.arange(4)[None, :, None]
    return visible(q, k, 0) & ((window == 0) | (jnp.abs(index) < window))


def padding_seen(q, k, window):
    return visible(q.replace(segments=q.segments + 1), k.replace(segments=k.segments + 1), window)


def segments_merged(q, k, window):
    one = lambda x: x.replace(segments=jnp.minimum(x.segments, 1))  # noqa: E731
    return visible(one(q), one(k), window)


def strict_order(q, k, window):
    return visible(q.replace(blocks=q.blocks - 1), k, window)


def window_too_wide(q, k, window):
    return visible(q, k, window and window + 1)


def one_sided_window(q, k, window):
    late = q.positions[:, :, None] >= k.positions[:, None, :]
    return visible(q, k, window) & (late | (window == 0))


PLANTED = [
    corner,
    index_window,
    padding_seen,
    segments_merged,
    strict_order,
    window_too_wide,
    one_sided_window,
]


@pytest.mark.parametrize("planted", PLANTED)
def test_three_loops_find_planted_bugs(planted):
    assert disagreements(planted) > 0


# The panels of the docstring of `visible`: title -> tokens and window.
PANELS = {
    "bidirectional": (tokens_of("0 0 0 0"), 0),
    "causal": (tokens_of("0 1 2 3"), 0),
    "prefix of 3": (tokens_of("0 0 0 1"), 0),
    "blocks of 2": (tokens_of("0 0 1 1"), 0),
    "packed, causal": (
        tokens_of("1 1 2 2", "segments", positions=[0, 1, 0, 1], blocks=[0, 1, 0, 1]),
        0,
    ),
    "window 2, causal": (tokens_of("1 1 1 1", "segments"), 2),
    "window 2, both": (tokens_of("0 0 0 0"), 2),
    "padding last": (tokens_of("1 1 1 0", "segments", blocks=[0, 0, 0, 0]), 0),
}


def docstring_panels():
    """{title: (the line of fields, the rows)} of the 4x4 pictures in the docstring."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in visible.__doc__.splitlines()]
    panels = {}
    for i, titles in enumerate(lines):
        if titles[0] in ("bidirectional", "packed, causal"):
            fields, *rows = lines[i + 1 : i + 6]
            panels |= {t: (fields[n], [row[n] for row in rows]) for n, t in enumerate(titles)}
    return panels


def test_the_docstring_shows_the_panels_tested_here():
    assert docstring_panels().keys() == PANELS.keys()


@pytest.mark.parametrize("title", PANELS)
def test_the_docstring_is_true(title):
    tokens, window = PANELS[title]
    fields, rows = docstring_panels()[title]
    name, values = fields.split(" ", 1)
    assert getattr(tokens, name)[0].tolist() == [int(x) for x in values.split()]
    assert picture(visible(tokens, tokens, window)[0]) == rows


def test_the_docstring_is_true_of_cross_attention_and_decoding():
    pictures = [line.split() for line in visible.__doc__.splitlines() if "x x x ." in line][-2:]
    assert [" ".join(x) for x in pictures] == ["x x x . x x x .", "x x x ."]
    target = Tokens.of(jnp.zeros((1, 2), jnp.int32)).causal()
    source = tokens_of("1 1 1 0", "segments").bidirectional()
    assert picture(visible(target, source)[0]) == ["x x x .", "x x x ."]
    query = tokens_of("2", positions=[2])
    cache = tokens_of("1 1 1 0", "segments", positions=[0, 1, 2, 0], blocks=[0, 1, 2, 0])
    assert picture(visible(query, cache)[0]) == ["x x x ."]


def test_a_cached_query_sees_all_earlier_keys():
    tokens = Tokens.of(jnp.zeros((1, 6), jnp.int32)).causal()
    for t in range(6):
        query = jax.tree.map(lambda x: x[:, t : t + 1], tokens)  # noqa: B023
        assert np.array_equal(visible(query, tokens)[0, 0], np.arange(6) <= t)


def test_order_of_columns_does_not_matter():
    rng = np.random.default_rng(1)
    tokens = Tokens.of(jnp.zeros((1, 6), jnp.int32)).causal()
    for window in (0, 2, 3):
        order = jnp.asarray(rng.permutation(6))
        shuffled = jax.tree.map(lambda x: x[:, order], tokens)  # noqa: B023
        expected = visible(tokens, tokens, window)[:, order][:, :, order]
        assert np.array_equal(visible(shuffled, shuffled, window), expected)


def test_a_window_counts_positions_across_a_gap():
    tokens = Tokens.of(jnp.zeros((1, 6), jnp.int32), jnp.array([[1, 1, 0, 0, 0, 1]], bool))
    seen = visible(tokens.causal(), tokens.causal(), window=2)
    assert seen[0, 5].tolist() == [False, True, False, False, False, True]


def test_packed_rows_equal_their_documents():
    packed = tokens_of(
        "1 1 1 2 2 2", "segments", positions=[0, 1, 2, 0, 1, 2], blocks=[0, 1, 2, 0, 1, 2]
    )
    alone = Tokens.of(jnp.zeros((1, 3), jnp.int32)).causal()
    for window in (0, 2):
        seen, one = visible(packed, packed, window)[0], visible(alone, alone, window)[0]
        assert np.array_equal(seen[:3, :3], one)
        assert np.array_equal(seen[3:, 3:], one)
        assert not seen[:3, 3:].any()
        assert not seen[3:, :3].any()


def test_prefix_goes_from_causal_to_bidirectional():
    tokens = Tokens.of(jnp.zeros((1, 5), jnp.int32))
    masks = [visible(t, t) for t in (tokens.prefix(n) for n in range(6))]
    causal, both = (visible(t, t) for t in (tokens.causal(), tokens.bidirectional()))
    assert np.array_equal(masks[0], causal)
    assert np.array_equal(masks[1], causal)
    assert np.array_equal(masks[5], both)
    assert np.array_equal(causal[0], np.tril(np.ones((5, 5), bool)))
    for shorter, longer in itertools.pairwise(masks[1:]):
        assert (shorter <= longer).all()
        assert (shorter != longer).any()


def test_a_prefix_is_counted_in_each_segment():
    packed = tokens_of("1 1 1 2 2 2", "segments", positions=[0, 1, 2, 0, 1, 2])
    mixed = packed.prefix(jnp.array([[1, 1, 1, 2, 2, 2]]))
    assert mixed.blocks.tolist() == [[0, 1, 2, 0, 0, 1]]
    assert packed.prefix(2).blocks.tolist() == [[0, 0, 1, 0, 0, 1]]


def test_block_causal_goes_from_causal_to_bidirectional():
    tokens = Tokens.of(jnp.zeros((1, 5), jnp.int32))
    assert tokens.block_causal(1).blocks.tolist() == tokens.causal().blocks.tolist()
    assert tokens.block_causal(2).blocks.tolist() == [[0, 0, 1, 1, 2]]
    assert tokens.block_causal(5).blocks.tolist() == tokens.bidirectional().blocks.tolist()


@pytest.mark.parametrize(
    ("real", "positions"),
    [
        ([1, 1, 1, 1], [0, 1, 2, 3]),
        ([1, 1, 1, 0], [0, 1, 2, None]),
        ([0, 0, 1, 1], [None, None, 0, 1]),
        ([1, 0, 0, 1], [0, None, None, 1]),
        ([0, 0, 0, 0], [None] * 4),
    ],
)
def test_padding_may_lie_anywhere(real, positions):
    tokens = Tokens.of(jnp.arange(4, dtype=jnp.int32)[None], jnp.array([real], bool))
    assert tokens.segments.tolist() == [real]
    found = tokens.positions[0].tolist()
    assert [p if r else None for p, r in zip(found, real, strict=True)] == positions
    assert min(found) >= 0


def test_without_padding_all_tokens_are_real():
    ids = jnp.arange(6, dtype=jnp.int32).reshape(2, 3)
    tokens = Tokens.of(ids)
    assert tokens.positions.tolist() == [[0, 1, 2]] * 2
    assert tokens.segments.tolist() == [[1, 1, 1]] * 2
    assert tokens.blocks is None
    assert tokens.ids is ids
