import numpy as np
import pytest

from attn_jax.data.packing import pack, pack_pairs, side_layout


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
    got = np.stack([layout.record, layout.offset, layout.positions, layout.segments], axis=-1)
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
    real = layout.record >= 0
    seen = sorted(zip(layout.record[real], layout.offset[real], strict=True))
    assert seen == [(d, o) for d, words in enumerate(lengths) for o in range(words + 2)]


def test_a_negative_row_is_empty():
    layout = pack(np.array([5, 5]), 8).layout(np.array([-1, 0]))
    assert not layout.segments[0].any()
    assert (layout.record[0] == -1).all()
    assert layout.segments[1].all()


@pytest.fixture
def lengths():
    """Lengths of source and target that go together, as those of sentences do."""
    rng = np.random.default_rng(3)
    source = rng.integers(2, 60, 3000)
    return source, np.clip(source + rng.integers(-5, 6, 3000), 3, 64)


def test_every_pair_is_in_one_row_that_holds_it(lengths):
    source, target = lengths
    packing = pack_pairs(source, target, 64)
    members = packing.members
    assert sorted(members[members >= 0]) == list(range(len(source)))
    for row in members:
        row = row[row >= 0]
        assert len(row)
        assert source[row].sum() <= packing.source <= 64
        assert target[row].sum() <= packing.target <= 64


def test_padding_of_pairs_is_counted_and_small(lengths):
    source, target = lengths
    packing = pack_pairs(source, target, 64)
    positions = len(packing.members) * (packing.source + packing.target)
    tokens = (source + target).sum()
    assert packing.padding_share == pytest.approx(1 - tokens / positions)
    assert packing.padding_share < 0.007  # first fit decreasing: 0.009
    one_a_row = 1 - tokens / (len(source) * 128)
    assert packing.padding_share < one_a_row / 2  # the control


def test_a_shorter_side_has_shorter_rows_but_room_for_its_longest():
    source, target = np.full(100, 4), np.full(100, 16)
    packing = pack_pairs(source, target, 64)
    assert (packing.source, packing.target) == (16, 64)
    assert packing.padding_share == 0
    source[7] = 30
    assert pack_pairs(source, target, 64).source == 30


def test_packing_does_not_depend_on_how_the_corpus_is_sorted(lengths):
    source, target = lengths
    order = np.argsort(source)
    share = pack_pairs(source, target, 64).padding_share
    assert pack_pairs(source[order], target[order], 64).padding_share == pytest.approx(
        share, abs=0.02
    )


def test_side_layout_is_that_of_the_obvious_loop(lengths):
    target = lengths[1]
    packing = pack_pairs(*lengths, 64)
    members = np.concatenate([packing.members[:20], np.full_like(packing.members[:1], -1)])
    layout = side_layout(members, target, packing.target)
    got = np.stack([layout.record, layout.offset, layout.positions, layout.segments], axis=-1)
    for row, pairs in zip(got, members, strict=True):
        expected = [
            (pair, offset, offset, slot + 1)
            for slot, pair in enumerate(pairs)
            if pair >= 0
            for offset in range(target[pair])
        ]
        expected += [(-1, 0, 0, 0)] * (packing.target - len(expected))
        np.testing.assert_array_equal(row, expected)
