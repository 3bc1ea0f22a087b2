"""From lengths to batches of static shape: packed rows of documents, buckets of sentence pairs.

Pure numpy on lengths; no ids are touched here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_SHAPES = 8  # of pair batches: each costs a compilation
_ROW_MULTIPLE = 8  # rows of a pair batch, so that they divide over devices


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
            document=np.where(real, document, -1),
            offset=np.where(real, stream - self.bounds[document], 0),
            positions=np.where(real, stream - begin, 0).astype(np.int32),
            segments=np.where(real, document - document[:, :1] + 1, 0).astype(np.int32),
        )


@dataclass(frozen=True)
class Layout:
    """The contents of packed rows, all [B, T].

    document:  index of the document, -1 at padding.
    offset:    index within the framed document, `<bos>` being 0.
    positions: int32, 0.. within each segment.
    segments:  int32, 1.. within each row, 0 at padding.
    """

    document: np.ndarray
    offset: np.ndarray
    positions: np.ndarray
    segments: np.ndarray


def pack(lengths: np.ndarray, length: int) -> Packing:
    """Packs documents of `lengths` tokens, special ones not counted, into rows of `length`."""
    framed = np.asarray(lengths, np.int64) + 2  # <bos> and <eos>
    return Packing(np.concatenate([[0], np.cumsum(framed)]), length)


@dataclass(frozen=True)
class Shape:
    """The static shape of a batch of pairs: rows, source and target positions."""

    rows: int
    source: int
    target: int


@dataclass(frozen=True)
class Bucket:
    """Pairs that are batched together: their indices, int64 [items], and the batch shape."""

    shape: Shape
    items: np.ndarray

    @property
    def num_batches(self) -> int:
        """Batches that hold every item once; the last one may have empty rows."""
        return -(-len(self.items) // self.shape.rows)

    def batch(self, number: int, order: np.ndarray | None = None) -> np.ndarray:
        """Returns the items of one batch, int64 [rows], -1 for an empty row.

        Args:
          number: 0 to `num_batches - 1`.
          order: a permutation of the items; None leaves them as they are.
        """
        rows = self.shape.rows
        chosen = np.arange(len(self.items)) if order is None else order
        chosen = self.items[chosen[number * rows : (number + 1) * rows]]
        return np.pad(chosen, (0, rows - len(chosen)), constant_values=-1)


def shape_for(source: int, target: int, batch_tokens: int) -> Shape:
    """Returns as many rows as `batch_tokens` positions a side allow, a multiple of 8 from 8 on."""
    rows = max(batch_tokens // max(source, target), 1)
    return Shape(rows - rows % _ROW_MULTIPLE if rows >= _ROW_MULTIPLE else rows, source, target)


def choose_shapes(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    batch_tokens: int,
    known: Sequence[Shape] = (),
) -> list[Shape]:
    """Chooses few batch shapes that hold all pairs with little padding.

    Without `known` shapes, boxes (source, target) around single lengths are merged, cheapest
    first, where the cost of a box is items * (source + target), until 8 are left. With them,
    they are kept, so that nothing new is compiled, and one is added if some pair fits in none.
    """
    if known:
        homeless = ~_fits(source_lengths, target_lengths, known).any(0)
        if not homeless.any():
            return list(known)
        boxes = [(source_lengths[homeless].max(), target_lengths[homeless].max())]
    else:
        boxes, counts = _cells(source_lengths, target_lengths)
        while len(boxes) > MAX_SHAPES:
            boxes, counts = _merge_cheapest(boxes, counts)
    return [*known, *(shape_for(int(s), int(t), batch_tokens) for s, t in boxes)]


def _fits(source: np.ndarray, target: np.ndarray, shapes: Sequence[Shape]) -> np.ndarray:
    """Returns bool [shapes, pairs]."""
    return np.array([(source <= s.source) & (target <= s.target) for s in shapes])


def _cells(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct length pairs [cells, 2] and their counts, at most a few hundred.

    Long lengths are rounded up in steps that keep merging, quadratic in the cells, fast.
    """
    lengths = np.stack([source, target], axis=1)
    if not len(lengths):
        return lengths, np.zeros(0, int)
    step = 1
    while True:
        rounded = np.minimum(-(-lengths // step) * step, lengths.max(axis=0))
        cells, counts = np.unique(rounded, axis=0, return_counts=True)
        if len(cells) <= 400:
            return cells, counts
        step += 1


def _merge_cheapest(boxes: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    union = np.maximum(boxes[:, None], boxes[None])  # [cells, cells, 2]
    area = counts * boxes.sum(1)
    growth = (counts[:, None] + counts) * union.sum(-1) - area[:, None] - area
    np.fill_diagonal(growth, np.iinfo(growth.dtype).max)
    a, b = np.unravel_index(np.argmin(growth), growth.shape)
    keep = np.delete(np.arange(len(boxes)), [a, b])
    return (
        np.concatenate([boxes[keep], union[a, b][None]]),
        np.append(counts[keep], counts[a] + counts[b]),
    )


def bucket(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    shapes: Sequence[Shape],
    items: np.ndarray | None = None,
) -> list[Bucket]:
    """Puts every pair into the smallest shape that holds it; a pair that none holds is left out.

    Args:
      source_lengths: tokens of each source, special ones included, int [pairs].
      target_lengths: likewise.
      shapes: see `choose_shapes`.
      items: the pairs to take, increasing; None means all.
    """
    if not shapes:
        return []
    items = np.arange(len(source_lengths)) if items is None else items
    source, target = source_lengths[items], target_lengths[items]
    shapes = sorted(shapes, key=lambda shape: (shape.source + shape.target, shape.source))
    fits = _fits(source, target, shapes)
    first = np.where(fits.any(0), fits.argmax(0), -1)
    buckets = [Bucket(shape, items[first == i]) for i, shape in enumerate(shapes)]
    return [each for each in buckets if len(each.items)]


def padding_share(
    buckets: list[Bucket], source_lengths: np.ndarray, target_lengths: np.ndarray
) -> float:
    """Returns the share of the positions of all batches, both sides, that holds no token."""
    positions = sum(
        b.num_batches * b.shape.rows * (b.shape.source + b.shape.target) for b in buckets
    )
    tokens = sum(int((source_lengths + target_lengths)[b.items].sum()) for b in buckets)
    return 1 - tokens / max(positions, 1)
