"""Which items stand in which batch, and the batches themselves: for documents and for pairs."""

from dataclasses import dataclass, replace
from functools import lru_cache

import grain
import numpy as np

from attn_jax.data import packing
from attn_jax.data.encoded import Column
from attn_jax.data.packing import Bucket, Shape
from attn_jax.data.tokenizers import Specials
from attn_jax.models.tokens import Pair, Tokens

_EPOCHS = 2**31  # more than any run has


@dataclass(frozen=True)
class Plan:
    """What one batch will hold: `items`, int64 [rows], -1 for an empty row, in a static shape."""

    items: np.ndarray
    shape: Shape

    def share(self, index: int, count: int) -> "Plan":
        """Returns the rows of process `index` of `count`; the rows must divide evenly."""
        rows = self.shape.rows // count
        mine = self.items[index * rows : (index + 1) * rows]
        return Plan(mine, replace(self.shape, rows=rows))


class TextBatches:
    """Batches of packed rows; an item is a row."""

    def __init__(self, documents: Column, specials: Specials, length: int, tokens: int) -> None:
        self._documents = documents
        self._specials = specials
        self._packing = packing.pack(documents.lengths, length)
        self.kept = np.arange(self._packing.num_rows)
        self.padding_share = self._packing.padding_share
        self.left_out = 0
        self.shapes = [Shape(tokens // length, length, 0)]

    def train_plans(self, seed: int) -> grain.MapDataset:
        """Returns endless plans, every row once an epoch."""
        rows = grain.MapDataset.range(len(self.kept)).seed(seed).shuffle()
        # Repeated before it is batched: no row is dropped at the end of an epoch, and a
        # corpus smaller than a batch works. (Endless repetition overflows in batches of one.)
        batches = rows.repeat(_EPOCHS).batch(self.shapes[0].rows)
        return batches.map(lambda items: Plan(items, self.shapes[0]))

    def eval_plans(self, items: np.ndarray) -> list[Plan]:
        """Returns plans that hold every one of `items` once."""
        every = Bucket(self.shapes[0], items)
        return [Plan(every.batch(i), every.shape) for i in range(every.num_batches)]

    def build(self, plan: Plan) -> Tokens:
        """Reads the tokens of a plan."""
        layout = self._packing.layout(plan.items)
        real, word = layout.document >= 0, layout.offset - 1  # -1 is <bos>, the length <eos>
        words = self._documents.lengths[layout.document]
        inside = real & (word >= 0) & (word < words)
        ids = np.full(real.shape, self._specials.pad, np.int32)
        where = self._documents.offsets[layout.document] + word
        ids[inside] = self._documents.flat[where[inside]]
        ids[real & (word < 0)] = self._specials.bos
        ids[real & (word == words)] = self._specials.eos
        return Tokens(ids, layout.positions, layout.segments)


class PairBatches:
    """Batches of sentence pairs of similar lengths; an item is a pair.

    Sources are `w1 .. wn <eos>`, targets `<bos> w1 .. wm <eos>`. A pair with a longer side than
    `length`, special ids included, is left out.
    """

    def __init__(
        self,
        sides: tuple[Column, Column],
        specials: Specials,
        length: int,
        tokens: int,
        shapes: list[Shape] | None = None,
    ) -> None:
        self._sides = sides
        self._specials = specials
        source, target = sides[0].lengths + 1, sides[1].lengths + 2
        self._lengths = source, target
        self.kept = kept = np.flatnonzero(np.maximum(source, target) <= length)
        self.left_out = len(source) - len(kept)
        self.shapes = packing.choose_shapes(source[kept], target[kept], tokens, shapes or [])
        self._buckets = packing.bucket(source, target, self.shapes, kept)
        self.padding_share = packing.padding_share(self._buckets, source, target)
        self._cached_order = lru_cache(maxsize=64)(self._order)  # of a few epochs' buckets

    def train_plans(self, seed: int) -> grain.MapDataset:
        """Returns endless plans, every pair once an epoch, in other company each time."""
        batches = [(b, n) for b, each in enumerate(self._buckets) for n in range(each.num_batches)]
        shuffled = grain.MapDataset.source(batches).seed(seed).shuffle().repeat(_EPOCHS)
        return shuffled.map_with_index(
            lambda step, batch: self._plan(
                *batch, self._cached_order(seed, step // len(batches), batch[0])
            )
        )

    def eval_plans(self, items: np.ndarray) -> list[Plan]:
        """Returns plans that hold every one of `items` once."""
        buckets = packing.bucket(*self._lengths, self.shapes, items)
        return [Plan(b.batch(n), b.shape) for b in buckets for n in range(b.num_batches)]

    def build(self, plan: Plan) -> Pair:
        """Reads the tokens of a plan."""
        source, target = self._sides
        return Pair(
            self._padded(source, plan.items, plan.shape.source, first=[]),
            self._padded(target, plan.items, plan.shape.target, first=[self._specials.bos]),
        )

    def _order(self, seed: int, epoch: int, bucket: int) -> np.ndarray:
        """Returns the permutation of a bucket in one epoch."""
        rng = np.random.default_rng((seed, epoch, bucket))
        return rng.permutation(len(self._buckets[bucket].items))

    def _plan(self, bucket: int, number: int, order: np.ndarray) -> Plan:
        chosen = self._buckets[bucket]
        return Plan(chosen.batch(number, order), chosen.shape)

    def _padded(self, column: Column, items: np.ndarray, length: int, first: list[int]) -> Tokens:
        """Returns `first w1 .. wn <eos>` of each item, padded on the right; -1 is all padding."""
        lead = len(first)
        word = np.arange(length) - lead
        words = column.lengths[items][:, None]
        real = (items[:, None] >= 0) & (word <= words)
        inside = real & (word >= 0) & (word < words)
        ids = np.full(real.shape, self._specials.pad, np.int32)
        where = column.offsets[items][:, None] + word
        ids[inside] = column.flat[where[inside]]
        ids[real & (word == words)] = self._specials.eos
        ids[items >= 0, :lead] = first
        positions = np.where(real, np.arange(length), 0).astype(np.int32)
        return Tokens(ids, positions, real.astype(np.int32))
