"""Batches of packed rows: of documents, and of sentence pairs."""

from abc import ABC, abstractmethod

import grain
import numpy as np

from attn_jax.data.encoded import Column
from attn_jax.data.packing import Layout, pack, pack_pairs, side_layout
from attn_jax.data.tokenizers import Specials
from attn_jax.models.tokens import Pair, Tokens

_EPOCHS = 2**31  # more than any run has


class Batches(ABC):
    """Packed rows of a split, `rows` of them a batch, all batches of one shape."""

    num_rows: int  # of the split
    rows: int  # of a batch
    padding_share: float  # of the positions that hold no token
    left_out: int  # records that are too long for a row

    @abstractmethod
    def build(self, rows: np.ndarray) -> Tokens | Pair:
        """Reads the given rows, int [B]; a negative one is empty."""

    @abstractmethod
    def items(self, rows: np.ndarray) -> np.ndarray:
        """Returns what the rows hold: rows of text, or pairs; -1 stands for nothing."""

    def train_rows(self, seed: int) -> grain.MapDataset:
        """Returns the rows of endless batches, int [rows] each: every row once an epoch."""
        order = grain.MapDataset.range(self.num_rows).seed(seed).shuffle()
        # Repeated before it is batched: no row is dropped at the end of an epoch, and a
        # corpus smaller than a batch works. (Endless repetition overflows in batches of one.)
        return order.repeat(_EPOCHS).batch(self.rows)

    def eval_rows(self, chosen: np.ndarray | None = None) -> list[np.ndarray]:
        """Returns batches that hold every (chosen) row once; the last is filled with -1."""
        chosen = np.arange(self.num_rows) if chosen is None else chosen
        chosen = np.pad(chosen, (0, -len(chosen) % self.rows), constant_values=-1)
        return list(chosen.reshape(-1, self.rows))


class TextBatches(Batches):
    """Documents `<bos> w1 .. wn <eos>`, end to end and cut into rows."""

    def __init__(self, documents: Column, specials: Specials, length: int, tokens: int) -> None:
        self._documents, self._specials = documents, specials
        self._packing = pack(documents.lengths, length)
        self.num_rows, self.rows = self._packing.num_rows, tokens // length
        self.padding_share, self.left_out = self._packing.padding_share, 0

    def build(self, rows: np.ndarray) -> Tokens:
        """Reads the given rows."""
        return _read(self._documents, self._packing.layout(rows), self._specials, framed=True)

    def items(self, rows: np.ndarray) -> np.ndarray:
        """Returns the rows themselves."""
        return rows


class PairBatches(Batches):
    """Sentence pairs, several to a row: sources `w1 .. wn <eos>`, targets `<bos> w1 .. wm <eos>`.

    The n-th source and the n-th target of a row are segment n. A pair with a longer side than
    `length`, special ids included, is left out.
    """

    def __init__(
        self,
        sides: tuple[Column, Column],
        specials: Specials,
        length: int,
        tokens: int,
        most: int = 0,
    ) -> None:
        """Packs all pairs, or `most` of them, spread over the split."""
        self._sides, self._specials = sides, specials
        source, target = sides[0].lengths + 1, sides[1].lengths + 2
        self._lengths = source, target
        kept = np.flatnonzero(np.maximum(source, target) <= length)
        self.left_out = len(source) - len(kept)
        kept = spread(len(kept), most, kept)
        self._packing = pack_pairs(source[kept], target[kept], length)
        # Index -1 stays -1.
        self._members = np.append(kept, -1)[self._packing.members]
        self.num_rows, self.rows = len(self._members), tokens // length
        self.padding_share = self._packing.padding_share

    def build(self, rows: np.ndarray) -> Pair:
        """Reads the given rows."""
        members, packing = self.items(rows), self._packing
        source = side_layout(members, self._lengths[0], packing.source)
        target = side_layout(members, self._lengths[1], packing.target)
        return Pair(
            _read(self._sides[0], source, self._specials, framed=False),
            _read(self._sides[1], target, self._specials, framed=True),
        )

    def items(self, rows: np.ndarray) -> np.ndarray:
        """Returns the pairs in each row, [B, most pairs of a row]."""
        return np.where(rows[:, None] >= 0, self._members[rows], -1)


def spread(count: int, most: int, values: np.ndarray | None = None) -> np.ndarray:
    """Returns `most` (0: all) of `count` values, in order, drawn evenly and always the same."""
    values = np.arange(count) if values is None else values
    if not 0 < most < count:
        return values
    return values[np.sort(np.random.default_rng(0).permutation(count)[:most])]


def _read(column: Column, layout: Layout, specials: Specials, framed: bool) -> Tokens:
    """Reads the ids of a layout; `framed` records begin with <bos>, all end with <eos>."""
    real, word = layout.record >= 0, layout.offset - int(framed)
    words = column.lengths[layout.record]
    inside = real & (word >= 0) & (word < words)
    ids = np.full(real.shape, specials.pad, np.int32)
    ids[inside] = column.flat[(column.offsets[layout.record] + word)[inside]]
    ids[real & (word < 0)] = specials.bos
    ids[real & (word == words)] = specials.eos
    return Tokens(ids, layout.positions, layout.segments)
