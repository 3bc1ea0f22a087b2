"""What scores a target given a source: translation models, and those that write hidden spans."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import jax
import numpy as np

from attn_jax.devices import in_order
from attn_jax.evaluation.score_batches import (
    POSITIONS,
    PairRows,
    Results,
    fit,
    rows_of,
    score_pairs,
    width_of,
)
from attn_jax.evaluation.scorers import Item, Scorer, Scores, cut_text, read_on
from attn_jax.objectives import Objective
from attn_jax.objectives.translation import PrefixTranslation, Translation


class Sides(NamedTuple):
    """What is read on both sides, and how many of the tokens after the target's first count."""

    source: list[int]
    target: list[int]
    count: int

    @property
    def longer(self) -> int:
        """The tokens of the longer side."""
        return max(len(self.source), len(self.target))


class PairScorer(Scorer):
    """Scores `target <eos>` given `source <eos>`, read as the translation objectives do."""

    @property
    def limit(self) -> int:
        """The most tokens of a side."""
        if self._config.positions != "learned":
            return POSITIONS // 2
        one_row = self._config.architecture != "encoder_decoder"
        return self._config.max_length // 2 if one_row else self._config.max_length

    def length(self, item: Item) -> int:
        """Returns the tokens of the longer side."""
        return max(len(item.source) + 1, len(item.target) + 2)

    def cut(self, item: Item) -> Item:
        """Drops the end of a side that is too long."""
        return Item(item.source[: self.limit - 1], item.target[: self.limit - 2])

    def predicted(self, item: Item) -> Sequence[int]:
        """Returns the ids that are scored, <eos> included."""
        return (*item.target, self._tokenizer.specials.eos)

    def read(self, source: str, target: str) -> Item:
        """Returns the ids of both sides."""
        return Item(*(tuple(self._tokenizer.encode(text.strip())) for text in (source, target)))

    def sides(self, item: Item) -> list[Sides]:
        """Returns the pairs that are read for an item, whose results in a row are its own."""
        bos, eos = self._tokenizer.specials.bos, self._tokenizer.specials.eos
        return [Sides([*item.source, eos], [bos, *item.target, eos], len(item.target) + 1)]

    def _reader(self) -> Objective:
        """Returns the objective that reads the pairs."""
        return self._objective.scored()

    def _score(self, params: dict, items: list[Item]) -> list[Scores]:
        pairs = [self.sides(item) for item in items]
        found = self._read(params, [sides for of_item in pairs for sides in of_item])
        bounds = pairwise(accumulate(map(len, pairs), initial=0))
        return [
            Scores(*(np.concatenate(x) for x in zip(*found[a:b], strict=True))) for a, b in bounds
        ]

    def _read(self, params: dict, pairs: list[Sides]) -> list[Results]:
        reader = self._reader()
        order = sorted(range(len(pairs)), key=lambda i: -pairs[i].longer)
        # All are dispatched before any is fetched.
        running = [
            (chosen, score_pairs(self._graph, reader, params, rows), len(rows.source))
            for chosen, rows in self._batches([pairs[i] for i in order])
        ]
        found = [
            tuple(x[: sides.count] for x in of_pair)
            for chosen, results, count in running
            # The rows that are left over in a batch are empty.
            for sides, *of_pair in zip(
                chosen, *jax.device_get(in_order(results, count)), strict=False
            )
        ]
        by_pair = dict(zip(order, found, strict=True))
        return [by_pair[i] for i in range(len(pairs))]

    def _batches(self, pairs: list[Sides]) -> Iterator[tuple[list[Sides], PairRows]]:
        """Yields the pairs of a batch, and the batch; the longest come first."""
        while pairs:
            width = width_of(pairs[0].longer, self.limit)
            rows = rows_of(2 * width)
            chosen, pairs = pairs[:rows], pairs[rows:]
            sides = [(source, target) for source, target, _ in chosen]
            yield chosen, PairRows.of(sides, fit(len(chosen), rows), width)


class SpanScorer(PairScorer):
    """Scores the tokens of a text as spans that are hidden behind the first sentinel.

    With "pll" each token is a span of its own: `<bos> a <sentinel> c <eos>` asks for b. With
    "prefix" the whole target is one, at the end: `<bos> source <sentinel> <eos>`. What ends a span,
    <eos>, is not scored, so that the same tokens are as with other models.
    """

    def length(self, item: Item) -> int:
        """Returns the most tokens that a side may have."""
        return len(item.source) + len(item.target) + 3

    def cut(self, item: Item) -> Item:
        """Drops the oldest tokens of the source first, then the end of the target."""
        return cut_text(item, self.limit - 3)

    def predicted(self, item: Item) -> Sequence[int]:
        """Returns the ids that are scored."""
        return item.target

    def read(self, source: str, target: str) -> Item:
        """Returns the ids of a source and of what follows it."""
        return read_on(self._tokenizer, source, target)

    def sides(self, item: Item) -> list[Sides]:
        """Returns the pairs that are read for an item: one, or one for each of its tokens."""
        specials, sentinel = self._tokenizer.specials, self._tokenizer.sentinels[0]
        bos, eos = specials.bos, specials.eos
        if self.method == "prefix":
            target = [sentinel, *item.target, eos]
            return [Sides([bos, *item.source, sentinel, eos], target, len(item.target))]
        text, start = [bos, *item.source, *item.target, eos], 1 + len(item.source)
        return [
            Sides([*text[:at], sentinel, *text[at + 1 :]], [sentinel, token, eos], 1)
            for at, token in enumerate(item.target, start)
        ]

    def _reader(self) -> Objective:
        one_stack = self._config.architecture != "encoder_decoder"
        return (PrefixTranslation if one_stack else Translation)(self._tokenizer.specials)
