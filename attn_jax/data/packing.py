"""From lengths to packed rows of static length, of documents and of sentence pairs.

Pure numpy on lengths; no ids are touched here.
"""

from dataclasses import dataclass

import numpy as np

PAIRS = "row by row"  # how pairs are packed; another name whenever that changes, for fingerprints
_WINDOW = 8192  # pairs that are packed together, drawn from all lengths


@dataclass(frozen=True)
class Packing:
    """Documents, each `<bos> w1 .. wn <eos>`, end to end and cut into rows of equal length.

    A document that is cut at the end of a row goes on in the next row as a new segment. Only
    the last row has padding.

    bounds: int64 [documents + 1]; where each framed document begins in the stream of them all.
    length: positions of a row.
    """

    bounds: np.ndarray
    length: int

    @property
    def num_rows(self) -> int:
        """Rows that the stream fills, the last one maybe in part."""
        return -(-int(self.bounds[-1]) // self.length)

    @property
    def padding_share(self) -> float:
        """Share of all positions that holds no token."""
        return 1 - int(self.bounds[-1]) / max(self.num_rows * self.length, 1)

    def layout(self, rows: np.ndarray) -> "Layout":
        """Says what stands at each position of `rows`, int [B]; a negative row is empty."""
        stream = rows[:, None] * self.length + np.arange(self.length)
        real = (rows[:, None] >= 0) & (stream < self.bounds[-1])
        stream = np.where(real, stream, 0)
        document = np.searchsorted(self.bounds, stream, side="right") - 1
        begin = np.maximum(self.bounds[document], rows[:, None] * self.length)
        return Layout(
            record=np.where(real, document, -1),
            offset=np.where(real, stream - self.bounds[document], 0),
            positions=np.where(real, stream - begin, 0).astype(np.int32),
            segments=np.where(real, document - document[:, :1] + 1, 0).astype(np.int32),
        )


@dataclass(frozen=True)
class Layout:
    """The contents of packed rows, all [B, T].

    record:    index of the document or pair, -1 at padding.
    offset:    index within it, special ids included.
    positions: int32, 0.. within each segment.
    segments:  int32, 1.. within each row, 0 at padding.
    """

    record: np.ndarray
    offset: np.ndarray
    positions: np.ndarray
    segments: np.ndarray


def pack(lengths: np.ndarray, length: int) -> Packing:
    """Packs documents of `lengths` tokens, special ones not counted, into rows of `length`."""
    framed = np.asarray(lengths, np.int64) + 2  # <bos> and <eos>
    return Packing(np.concatenate([[0], np.cumsum(framed)]), length)


@dataclass(frozen=True)
class PairPacking:
    """Sentence pairs packed into rows: several sources in one, their targets in the other.

    members: int64 [rows, most pairs of a row]; which pairs a row holds, -1 where there is none.
    source, target: positions of a row of either side.
    padding_share: share of the positions of both sides that holds no token.
    """

    members: np.ndarray
    source: int
    target: int
    padding_share: float


def pack_pairs(sources: np.ndarray, targets: np.ndarray, length: int) -> PairPacking:
    """Packs pairs into rows of at most `length` positions a side.

    The side with fewer tokens gets shorter rows in proportion, but room for its longest sentence.

    Args:
      sources: tokens of each source, special ones included, none above `length`.
      targets: likewise.
      length: positions of a row of the longer side.
    """
    totals = np.array([sources.sum(), targets.sum()])
    even = np.ceil(length * totals / max(totals.max(), 1)).astype(int)
    rows = np.maximum(even, [sources.max(initial=1), targets.max(initial=1)])
    # Windows drawn at random: the short fill what the long leave, however the corpus is sorted.
    order = np.random.default_rng(0).permutation(len(sources))
    packed: list[list[int]] = []
    for start in range(0, len(order), _WINDOW):
        packed += _fill_rows(order[start : start + _WINDOW], sources, targets, rows)
    members = np.full((len(packed), max(map(len, packed), default=1)), -1, np.int64)
    for row, pairs in enumerate(packed):
        members[row, : len(pairs)] = pairs
    padding = 1 - totals.sum() / max(len(packed) * rows.sum(), 1)
    return PairPacking(members, int(rows[0]), int(rows[1]), float(padding))


def _fill_rows(
    pairs: np.ndarray, sources: np.ndarray, targets: np.ndarray, rows: np.ndarray
) -> list[list[int]]:
    """Fills row after row, each time with the pair that has most of what the row has most of.

    The dot-product rule of Panigrahy et al. 2011, "Heuristics for Vector Bin Packing".
    """
    sizes, which = np.unique(
        np.stack([sources, targets], axis=1)[pairs], axis=0, return_inverse=True
    )
    waiting = [pairs[which.ravel() == size].tolist() for size in range(len(sizes))]
    left = np.array([len(of_size) for of_size in waiting])
    (source, target), (source_weight, target_weight) = sizes.T, (sizes / rows**2).T
    packed: list[list[int]] = []
    while left.any():
        row, (source_free, target_free) = [], rows.tolist()
        while True:
            fits = (left > 0) & (source <= source_free) & (target <= target_free)
            score = (source_weight * source_free + target_weight * target_free) * fits
            best = int(score.argmax())
            if not fits[best]:
                break
            row.append(waiting[best].pop())
            left[best] -= 1
            source_free -= source[best]
            target_free -= target[best]
        packed.append(row)
    return packed


def side_layout(members: np.ndarray, lengths: np.ndarray, length: int) -> Layout:
    """Says what stands at each position of one side of packed pairs.

    Args:
      members: int64 [B, most pairs of a row], -1 where there is none.
      lengths: tokens of each pair on this side.
      length: positions of a row.
    """
    ends = np.cumsum(np.where(members >= 0, lengths[members], 0), axis=1)
    starts = np.pad(ends, ((0, 0), (1, 0)))[:, :-1]
    columns = np.arange(length)
    slot = (columns[None, :, None] >= ends[:, None, :]).sum(axis=-1)
    real = columns < ends[:, -1:]
    slot = np.where(real, slot, 0)
    offset = np.where(real, columns - np.take_along_axis(starts, slot, axis=1), 0)
    return Layout(
        record=np.where(real, np.take_along_axis(members, slot, axis=1), -1),
        offset=offset,
        positions=offset.astype(np.int32),
        segments=np.where(real, slot + 1, 0).astype(np.int32),
    )
