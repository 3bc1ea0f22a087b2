import numpy as np
import pytest

from attn_jax.data.packing import (
    MAX_SHAPES,
    Shape,
    bucket,
    choose_shapes,
    pack,
    padding_share,
    shape_for,
)


def slow_pack(lengths, length):
    """The obvious way: token by token, a row begun when the last one is full."""
    rows = [[]]
    for document, words in enumerate(lengths):
        for offset in range(words + 2):
            if len(rows[-1]) == length:
                rows.append([])
            row = rows[-1]
            if not row:
                segment, position = 1, 0
            elif row[-1][0] != document:
                segment, position = row[-1][3] + 1, 0
            else:
                segment, position = row[-1][3], row[-1][2] + 1
            row.append((document, offset, position, segment))
    for row in rows:
        row += [(-1, 0, 0, 0)] * (length - len(row))
    return np.array(rows)


@pytest.mark.parametrize("length", [4, 7, 16])
@pytest.mark.parametrize("lengths", [[0], [3, 5, 1, 0, 0, 9], [40, 2], [2, 2, 2, 2], [14]])
def test_rows_are_those_of_the_obvious_packing(lengths, length):
    packing = pack(np.array(lengths), length)
    layout = packing.layout(np.arange(packing.num_rows))
    got = np.stack([layout.document, layout.offset, layout.positions, layout.segments], axis=-1)
    expected = slow_pack(lengths, length)
    np.testing.assert_array_equal(got, expected)
    assert packing.padding_share == pytest.approx((expected[..., 3] == 0).mean())


def test_padding_stands_only_at_the_end_of_the_last_row():
    lengths = np.random.default_rng(0).integers(0, 30, 200)
    packing = pack(lengths, 32)
    segments = packing.layout(np.arange(packing.num_rows)).segments
    assert (segments[:-1] > 0).all()
    assert 0 < packing.padding_share < 1 / packing.num_rows


def test_every_token_of_every_document_stands_in_the_rows_once():
    lengths = np.random.default_rng(1).integers(0, 50, 100)
    packing = pack(lengths, 24)
    layout = packing.layout(np.random.default_rng(2).permutation(packing.num_rows))
    real = layout.document >= 0
    seen = sorted(zip(layout.document[real], layout.offset[real], strict=True))
    assert seen == [(d, o) for d, words in enumerate(lengths) for o in range(words + 2)]


def test_a_negative_row_is_empty():
    layout = pack(np.array([5, 5]), 8).layout(np.array([-1, 0]))
    assert not layout.segments[0].any()
    assert (layout.document[0] == -1).all()
    assert layout.segments[1].all()


@pytest.fixture
def lengths():
    """Lengths of source and target that go together, as those of sentences do."""
    rng = np.random.default_rng(3)
    source = rng.integers(2, 60, 3000)
    return source, np.clip(source + rng.integers(-5, 6, 3000), 3, 64)


def test_every_pair_is_in_one_batch_that_it_fits(lengths):
    source, target = lengths
    buckets = bucket(source, target, choose_shapes(source, target, 1024))
    batches = [(b, b.batch(n)) for b in buckets for n in range(b.num_batches)]
    placed = np.concatenate([items[items >= 0] for _, items in batches])
    assert sorted(placed) == list(range(len(source)))
    for chosen, items in batches:
        items = items[items >= 0]
        assert source[items].max() <= chosen.shape.source
        assert target[items].max() <= chosen.shape.target


def test_batches_keep_to_the_budget_in_few_shapes(lengths):
    source, target = lengths
    buckets = bucket(source, target, choose_shapes(source, target, 1024))
    shapes = {b.shape for b in buckets}
    assert len(shapes) <= MAX_SHAPES
    for shape in shapes:
        assert shape.rows * max(shape.source, shape.target) <= 1024
        assert shape.rows % 8 == 0
    for chosen in buckets:
        assert all(len(chosen.batch(n)) == chosen.shape.rows for n in range(chosen.num_batches))


def test_padding_is_counted_and_small(lengths):
    source, target = lengths
    buckets = bucket(source, target, choose_shapes(source, target, 1024))
    positions = tokens = 0
    for chosen in buckets:
        for number in range(chosen.num_batches):
            items = chosen.batch(number)
            positions += len(items) * (chosen.shape.source + chosen.shape.target)
            tokens += (source + target)[items[items >= 0]].sum()
    assert padding_share(buckets, source, target) == pytest.approx(1 - tokens / positions)
    one_shape = bucket(source, target, [shape_for(59, 64, 1024)])
    assert padding_share(buckets, source, target) < 0.2
    assert padding_share(one_shape, source, target) > 0.4  # the control


def test_pairs_of_few_lengths_need_no_padding():
    source = np.repeat([5, 9], [224, 128])  # two full batches each
    buckets = bucket(source, source, choose_shapes(source, source, 576))
    assert padding_share(buckets, source, source) == 0


@pytest.mark.parametrize(("tokens", "rows"), [(64, 1), (640, 10 - 2), (639, 8), (511, 7), (10, 1)])
def test_rows_are_a_multiple_of_eight_where_possible(tokens, rows):
    assert shape_for(40, 64, tokens) == Shape(rows, 40, 64)


def test_an_order_permutes_the_items_of_a_bucket(lengths):
    source, target = lengths
    chosen = bucket(source, target, choose_shapes(source, target, 1024))[0]
    order = np.random.default_rng(0).permutation(len(chosen.items))
    numbers = range(chosen.num_batches)
    plain = np.concatenate([chosen.batch(n) for n in numbers])
    mixed = np.concatenate([chosen.batch(n, order) for n in numbers])
    assert sorted(plain) == sorted(mixed)
    assert plain.tolist() != mixed.tolist()


def test_known_shapes_are_kept_and_one_is_added_only_for_what_does_not_fit():
    known = [Shape(8, 10, 10), Shape(4, 20, 20)]
    fitting = np.array([3, 12])
    assert choose_shapes(fitting, fitting, 80, known) == known
    larger = np.array([3, 25, 30])
    added = choose_shapes(larger, larger, 80, known)
    assert added == [*known, shape_for(30, 30, 80)]
    assert sum(len(b.items) for b in bucket(larger, larger, added)) == 3


def test_only_the_wanted_items_are_batched():
    source = np.array([4, 4, 9, 4])
    buckets = bucket(source, source, [Shape(8, 5, 5)], np.array([1, 2]))
    assert [b.items.tolist() for b in buckets] == [[1]]
