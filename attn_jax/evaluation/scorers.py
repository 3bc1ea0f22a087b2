"""What reads the tokens that are scored: here one stack; pair_scorers.py has the others."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from attn_jax.config import ModelConfig
from attn_jax.data.tokenizers import Tokenizer
from attn_jax.devices import in_order, replicate
from attn_jax.evaluation.score_batches import (
    POSITIONS,
    Copies,
    Results,
    divide,
    make_batches,
    score_rows,
)
from attn_jax.objectives import Objective


class Item(NamedTuple):
    """A target that is scored and a source, maybe empty, that is only read; as ids."""

    source: tuple[int, ...]
    target: tuple[int, ...]


class Scores(NamedTuple):
    """Per predicted token: log-probability in nats, and whether it is strictly the likeliest."""

    log_probs: np.ndarray
    correct: np.ndarray

    @property
    def total(self) -> float:
        """The score of the whole target, in nats."""
        return float(self.log_probs.sum(dtype=np.float64))


FUSED = ("causal", "pll")  # the methods whose scores "fused" adds


def fuse(causal: list[Scores], pll: list[Scores]) -> list[Scores]:
    """Returns the sum of both scores of each item."""
    return [
        Scores(a.log_probs + b.log_probs, a.correct & b.correct)
        for a, b in zip(causal, pll, strict=True)
    ]


class Scorer:
    """Scores items under one method, in batches."""

    def __init__(
        self,
        method: str,
        graph: nnx.GraphDef,
        objective: Objective,
        tokenizer: Tokenizer,
        config: ModelConfig,
    ):
        """Keeps what all items have in common; arguments as in `make_scorer`."""
        self.method = method
        self._graph, self._objective, self._tokenizer = graph, objective, tokenizer
        self._config = config

    @property
    def limit(self) -> int:
        """The longest item that the model reads."""
        raise NotImplementedError

    def length(self, item: Item) -> int:
        """Returns how long an item is, special tokens included."""
        raise NotImplementedError

    def cut(self, item: Item) -> Item:
        """Cuts an item down to the limit."""
        raise NotImplementedError

    def predicted(self, item: Item) -> Sequence[int]:
        """Returns the ids that are scored."""
        return item.target

    def read(self, source: str, target: str) -> Item:
        """Returns the ids of a source, maybe empty, and of what follows it.

        In one stack a space joins the two; it belongs to the target.
        """
        raise NotImplementedError

    def score(self, params: dict, items: Sequence[Item]) -> list[Scores]:
        """Returns the scores of each item; equal items have equal scores, bit for bit."""
        distinct = [item for item in dict.fromkeys(items) if self.predicted(item)]
        distinct.sort(key=self.length, reverse=True)
        found = dict(zip(distinct, self._score(replicate(params), distinct), strict=True))
        nothing = Scores(np.zeros(0, np.float32), np.zeros(0, bool))
        return [found.get(item, nothing) for item in items]

    def _score(self, params: dict, items: list[Item]) -> list[Scores]:
        """Scores items, the longest first."""
        raise NotImplementedError


class TextScorer(Scorer):
    """Scores texts `<bos> source target <eos>` with one stack."""

    @property
    def limit(self) -> int:
        """The most tokens of a row."""
        return self._config.max_length if self._config.positions == "learned" else POSITIONS

    def length(self, item: Item) -> int:
        """Returns the tokens of the row."""
        return len(item.source) + len(item.target) + 2

    def cut(self, item: Item) -> Item:
        """Drops the oldest tokens of the source first, then the end of the target."""
        return cut_text(item, self.limit - 2)

    def read(self, source: str, target: str) -> Item:
        """Returns the ids of a source and of what follows it."""
        return read_on(self._tokenizer, source, target)

    def _score(self, params: dict, items: list[Item]) -> list[Scores]:
        if self.method != "fused":
            return self._read(params, items, self.method)
        return fuse(*(self._read(params, items, method) for method in FUSED))

    def _read(self, params: dict, items: list[Item], method: str) -> list[Scores]:
        all_copies = ((number, self.copies(x, method)) for number, x in enumerate(items))
        # All are dispatched before any is fetched: rows are made while others are read.
        running = [
            (parts, score_rows(self._graph, params, rows), len(rows.ids))
            for parts, rows in make_batches(all_copies, self.limit)
        ]
        found: list[list[Results]] = [[] for _ in items]
        for parts, results, count in running:
            for number, of_part in divide(parts, jax.device_get(in_order(results, count))):
                found[number].append(of_part)
        return [
            Scores(*(np.concatenate(x) for x in zip(*of_item, strict=True))) for of_item in found
        ]

    def copies(self, item: Item, method: str) -> Copies:
        """Returns the rows that are read for an item: one, or one for each of its tokens."""
        specials, shift = self._tokenizer.specials, self._objective.shift
        text = [*item.source, *item.target]
        ids = np.array([specials.bos, *text, specials.eos], np.int32)
        places = np.arange(1 + len(item.source), 1 + len(text))
        targets = ids[places]
        prefix = {"causal": 1, "prefix": 1 + len(item.source)}.get(method, len(ids))
        if method in ("causal", "prefix"):
            if shift == 1:
                return Copies(ids[None, :-1], prefix, places[None] - 1, targets[None])
            hidden = places[:, None] == np.arange(len(ids))[None]
        else:
            starts = [True, *self._tokenizer.word_starts(text), True]
            hidden = hidden_places(method, np.cumsum(starts), places)
        rows = np.where(hidden, np.int32(specials.mask), ids[None])
        return Copies(rows, prefix, places[:, None] - shift, targets[:, None])


def cut_text(item: Item, room: int) -> Item:
    """Returns at most `room` tokens: the source loses its oldest first, then the target its end."""
    target = item.target[:room]
    over = max(len(item.source) + len(target) - room, 0)
    return Item(item.source[over:], target)


def read_on(tokenizer: Tokenizer, source: str, target: str) -> Item:
    """Returns the ids of a source, maybe empty, and of a text that goes on after a space."""
    source = source.strip()
    if not source:
        return Item((), tuple(tokenizer.encode(target)))
    # No token of any tokenizer goes on after a space.
    ids = tokenizer.encode(f"{source} {target.lstrip()}")
    start = len(tokenizer.encode(source))
    return Item(tuple(ids[:start]), tuple(ids[start:]))


def hidden_places(method: str, words: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns which tokens are hidden when each place is scored, bool [places, L].

    Args:
      method: a pll method.
      words: the number of each token's word, [L]; <eos>, the last, has one of its own.
      places: columns of the scored tokens.
    """
    columns = np.arange(len(words))[None]
    same_word = words[None] == words[places][:, None]
    later = columns > places[:, None]
    here = columns == places[:, None]
    return {
        "pll": here,
        "pll_within_word": here | (same_word & later),
        "pll_whole_word": same_word,
        "pll_global": here | (later & (columns < len(words) - 1)),
    }[method]
