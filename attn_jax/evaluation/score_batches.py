"""Rows that a model reads to score tokens, in batches of few shapes, and the reading itself."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from attn_jax.devices import over_rows
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.objectives import Objective
from attn_jax.objectives.losses import most_logits

POSITIONS = 2**13  # of a batch, padding included
NARROWEST = 8  # positions of a row
FEW = 8  # places of a row that are projected on the vocabulary: 1, this many, or all
SMALL = 8  # the last batch has so many times fewer rows, if they hold all that is left

Results = tuple[np.ndarray, np.ndarray]


class Copies(NamedTuple):
    """R rows of one text, equally long; their N results each, row by row, are those of its tokens.

    prefix: how many tokens, <bos> included, are read from both sides; the rest is causal.
    at: columns whose hidden states predict the targets.
    """

    ids: Int[np.ndarray, "R L"]
    prefix: int
    at: Int[np.ndarray, "R N"]
    targets: Int[np.ndarray, "R N"]

    def split(self, rows: int) -> tuple["Copies", "Copies"]:
        """Returns the first `rows` rows, and the others."""
        first = Copies(self.ids[:rows], self.prefix, self.at[:rows], self.targets[:rows])
        rest = Copies(self.ids[rows:], self.prefix, self.at[rows:], self.targets[rows:])
        return first, rest


class Rows(NamedTuple):
    """A batch of copies of many texts; a row of length 0 is empty."""

    ids: Int[np.ndarray | Array, "B W"]
    lengths: Int[np.ndarray | Array, " B"]
    prefix: Int[np.ndarray | Array, " B"]
    at: Int[np.ndarray | Array, "B N"]
    targets: Int[np.ndarray | Array, "B N"]


Parts = list[tuple[int, Copies]]


def width_of(length: int, most: int) -> int:
    """Returns the width of a row for `length` tokens: 8, 12, 16, 24, 32, .. but at most `most`."""
    width = NARROWEST
    while width < length:
        is_power = width & (width - 1) == 0
        width = width * 3 // 2 if is_power else width * 4 // 3
    return min(width, most)


def rows_of(width: int) -> int:
    """Returns how many rows of a width make a batch."""
    return max(POSITIONS // width, 1)


def fit(count: int, rows: int) -> int:
    """Returns the rows of a batch that holds `count`: all, or a small batch if that is enough."""
    small = max(rows // SMALL, 1)
    return small if count <= small else rows


def pad(
    sequences: Sequence[Sequence[int]], rows: int, width: int
) -> tuple[Int[np.ndarray, "rows width"], Int[np.ndarray, " rows"]]:
    """Returns the ids of sequences, and their lengths; rows after the last sequence are empty."""
    ids, lengths = np.zeros((rows, width), np.int32), np.zeros(rows, np.int32)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)], lengths[row] = sequence, len(sequence)
    return ids, lengths


def make_batches(copies: Iterable[tuple[int, Copies]], most: int) -> Iterator[tuple[Parts, Rows]]:
    """Yields full batches of the numbered copies, which come longest first.

    Args:
      copies: the number of a text and its rows.
      most: widest row that the model reads.

    Yields:
      The parts in the order of their rows, and the batch.
    """
    parts: Parts = []
    count = width = rows = 0
    for number, rest in copies:
        while len(rest.ids):
            if not parts:
                width = width_of(rest.ids.shape[1], most)
                rows = rows_of(width)
            taken, rest = rest.split(rows - count)
            parts.append((number, taken))
            count += len(taken.ids)
            if count == rows:
                yield parts, _stack(parts, rows, width)
                parts, count = [], 0
    if parts:
        yield parts, _stack(parts, fit(count, rows), width)


def _stack(parts: Parts, rows: int, width: int) -> Rows:
    most = max(part.at.shape[1] for _, part in parts)
    N = next(n for n in (1, FEW, width) if most <= n)
    ids, at, targets = (np.zeros((rows, n), np.int32) for n in (width, N, N))
    lengths, prefix = np.zeros(rows, np.int32), np.ones(rows, np.int32)
    start = 0
    for _, part in parts:
        here = slice(start, start + len(part.ids))
        ids[here, : part.ids.shape[1]] = part.ids
        at[here, : part.at.shape[1]] = part.at
        targets[here, : part.at.shape[1]] = part.targets
        lengths[here], prefix[here] = part.ids.shape[1], part.prefix
        start = here.stop
    return Rows(ids, lengths, prefix, at, targets)


def divide(parts: Parts, results: Results) -> Iterator[tuple[int, Results]]:
    """Yields each part's number and its results, one after the other, out of those of a batch."""
    start = 0
    for number, part in parts:
        R, N = part.at.shape
        yield number, tuple(x[start : start + R, :N].reshape(-1) for x in results)
        start += R


class PairRows(NamedTuple):
    """A batch of pairs, `source <eos>` and `<bos> target <eos>`; a row of length 0 is empty."""

    source: Int[np.ndarray | Array, "B W"]
    source_lengths: Int[np.ndarray | Array, " B"]
    target: Int[np.ndarray | Array, "B W"]
    target_lengths: Int[np.ndarray | Array, " B"]

    @classmethod
    def of(cls, pairs: list[tuple[list[int], list[int]]], rows: int, width: int) -> "PairRows":
        """Pads the sides of some pairs."""
        fields = []
        for side in zip(*pairs, strict=True):
            fields += pad(side, rows, width)
        return cls(*fields)


def _tokens(ids: Array, lengths: Array) -> Tokens:
    return Tokens.of(ids, jnp.arange(ids.shape[1])[None, :] < lengths[:, None])


@partial(jax.jit, static_argnums=0)
def score_rows(
    graph: nnx.GraphDef, params: dict, rows: Rows
) -> tuple[Float[Array, "B N"], Bool[Array, "B N"]]:
    """Returns the log-probability of each target, and whether it is strictly the likeliest."""
    tokens = _tokens(rows.ids, rows.lengths).prefix(rows.prefix[:, None])
    return over_rows(partial(_read_out, graph), params, (tokens, None, rows.at, rows.targets))


@partial(jax.jit, static_argnums=(0, 1))
def score_pairs(
    graph: nnx.GraphDef, objective: Objective, params: dict, rows: PairRows
) -> tuple[Float[Array, "B N"], Bool[Array, "B N"]]:
    """Does the same for each target token of pairs, <eos> included, read as in training."""
    pair = Pair(
        _tokens(rows.source, rows.source_lengths), _tokens(rows.target, rows.target_lengths)
    )
    batch = objective(pair, jax.random.key(0))  # nothing is random in it
    rows = batch.inputs, batch.source, batch.at, batch.targets
    return over_rows(partial(_read_out, graph), params, rows)


def _read_out(
    graph: nnx.GraphDef,
    params: dict,
    rows: tuple[Tokens, Tokens | None, Array | None, Array],
) -> tuple[Array, Array]:
    """Reads the tokens, and projects on the vocabulary only where something is predicted.

    A token that is exactly as likely as another one is not the likeliest: a model without an
    opinion must not look perfect.
    """
    model, (tokens, source, at, targets) = nnx.merge(graph, params), rows
    hidden = model(tokens, source)
    if at is not None:
        hidden = jnp.take_along_axis(hidden, at[:, :, None], axis=1)
    B, N, D = hidden.shape

    def score(place: tuple[Array, Array]) -> tuple[Array, Array]:
        hidden_D, target = place
        logits = model.logits(hidden_D)
        chosen = logits[target]
        return chosen - jax.nn.logsumexp(logits), jnp.sum(logits >= chosen) == 1

    places = hidden.reshape(B * N, D), targets.reshape(B * N)
    piece = max(most_logits() // model.embedding[...].shape[0], 1)
    scores = jax.lax.map(score, places, batch_size=min(piece, B * N))
    return tuple(x.reshape(B, N) for x in scores)
