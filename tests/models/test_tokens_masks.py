"""Tokens and the mask: what the fields say, and nothing else, decides who sees whom."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens

# Compiled whole: one operation after another, each new shape would be compiled for each operation.
compiled_visible = jax.jit(visible, static_argnums=2)


def look(queries, keys=None, window=0):
    """The mask of the first row, [T, S]."""
    return np.asarray(compiled_visible(queries, queries if keys is None else keys, window))[0]


def same_fields(a, b):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


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
    return Tokens(np.zeros((2, T), np.int32), positions, segments, blocks)


def disagreements(mask, tries=30):
    """How many of some random cases the function `mask` gets wrong."""
    rng, wrong, jitted = np.random.default_rng(0), 0, jax.jit(mask, static_argnums=2)
    for i in range(tries):
        queries, keys, window = random_tokens(rng, 4), random_tokens(rng, 6), i % 3
        got = np.asarray(jitted(queries, keys, window))
        wrong += not np.array_equal(got, slow_visible(queries, keys, window))
    return wrong


def row(length=4, segments=None, positions=None, blocks=None):
    """One row, of one causal document where the fields are not given."""
    count = list(range(length))
    segments, positions = segments or [1] * length, positions or count
    fields = (count, positions, segments, positions if blocks is None else blocks)
    return Tokens(*(jnp.asarray(np.array([x], np.int32)) for x in fields))


def picture(seen):
    """The rows of a mask [T, S] as the docstring of `visible` writes them."""
    return [" ".join("x" if x else "." for x in row) for row in np.asarray(seen)]


def test_visible_equals_three_loops():
    assert disagreements(visible) == 0


def corner(q, k, window):
    return visible(q, k, window) & np.tri(4, 6, dtype=bool)[None]


def index_window(q, k, window):
    index = np.arange(6)[None, None, :] - np.arange(4)[None, :, None]
    return visible(q, k, 0) & ((window == 0) | (abs(index) < window))


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
    "bidirectional": (row(blocks=[0, 0, 0, 0]), 0),
    "causal": (row(), 0),
    "prefix of 3": (row(blocks=[0, 0, 0, 1]), 0),
    "blocks of 2": (row(blocks=[0, 0, 1, 1]), 0),
    "packed, causal": (row(segments=[1, 1, 2, 2], positions=[0, 1, 0, 1]), 0),
    "window 2, causal": (row(), 2),
    "window 2, both": (row(blocks=[0, 0, 0, 0]), 2),
    "padding last": (row(segments=[1, 1, 1, 0], blocks=[0, 0, 0, 0]), 0),
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
    assert picture(look(tokens, window=window)) == rows


def test_the_docstring_is_true_of_cross_attention_and_decoding():
    pictures = [line.split() for line in visible.__doc__.splitlines() if "x x x ." in line][-2:]
    assert [" ".join(x) for x in pictures] == ["x x x . x x x .", "x x x ."]
    source = row(segments=[1, 1, 1, 0], blocks=[0, 0, 0, 0])
    assert picture(look(row(2), source)) == ["x x x .", "x x x ."]
    query = row(1, positions=[2])
    cache = row(segments=[1, 1, 1, 0], positions=[0, 1, 2, 0])
    assert picture(look(query, cache)) == ["x x x ."]


def test_a_cached_query_sees_all_earlier_keys():
    keys = row(6)
    for t in range(6):
        assert look(row(1, positions=[t]), keys)[0].tolist() == [s <= t for s in range(6)]


def test_order_of_columns_does_not_matter():
    tokens, rng = row(6), np.random.default_rng(1)
    for window in (0, 2, 3):
        order = rng.permutation(6)
        shuffled = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[:, order]), tokens)  # noqa: B023
        expected = look(tokens, window=window)[order][:, order]
        assert np.array_equal(look(shuffled, window=window), expected)


def test_a_window_counts_positions_across_a_gap():
    tokens = row(6, segments=[1, 1, 0, 0, 0, 1], positions=[0, 1, 0, 0, 0, 2])
    assert look(tokens, window=2)[5].tolist() == [False, True, False, False, False, True]


def test_packed_rows_equal_their_documents():
    packed, alone = row(6, [1, 1, 1, 2, 2, 2], [0, 1, 2, 0, 1, 2]), row(3)
    for window in (0, 2):
        seen, one = look(packed, window=window), look(alone, window=window)
        assert np.array_equal(seen[:3, :3], one)
        assert np.array_equal(seen[3:, 3:], one)
        assert not seen[:3, 3:].any()
        assert not seen[3:, :3].any()


def test_prefix_goes_from_causal_to_bidirectional():
    """T20."""
    tokens = row(5)
    masks = [look(tokens.prefix(n)) for n in range(6)]
    causal, both = look(tokens.causal()), look(tokens.bidirectional())
    assert np.array_equal(masks[0], causal)
    assert np.array_equal(masks[1], causal)
    assert np.array_equal(masks[5], both)
    assert np.array_equal(causal, np.tri(5, dtype=bool))
    assert both.all()
    for shorter, longer in itertools.pairwise(masks[1:]):
        assert (shorter <= longer).all()
        assert (shorter != longer).any()


def test_a_prefix_is_counted_in_each_segment():
    packed = row(6, [1, 1, 1, 2, 2, 2], [0, 1, 2, 0, 1, 2])
    mixed = packed.prefix(jnp.array([[1, 1, 1, 2, 2, 2]]))
    assert mixed.blocks.tolist() == [[0, 1, 2, 0, 0, 1]]
    assert packed.prefix(2).blocks.tolist() == [[0, 0, 1, 0, 0, 1]]


def test_block_causal_goes_from_causal_to_bidirectional():
    tokens = row(5)
    assert same_fields(tokens.block_causal(1), tokens.causal())
    assert tokens.block_causal(2).blocks.tolist() == [[0, 0, 1, 1, 2]]
    assert same_fields(tokens.block_causal(5), tokens.bidirectional())


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
