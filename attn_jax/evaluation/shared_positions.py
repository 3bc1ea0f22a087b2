"""The same held-out positions, predicted by every arm under every mask."""

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from attn_jax.config import Config
from attn_jax.data.pipeline import Dataset
from attn_jax.devices import in_order, over_rows, replicate
from attn_jax.evaluation.evaluator import Evaluator, Subject
from attn_jax.evaluation.ngram import NGrams
from attn_jax.evaluation.results import MASKS
from attn_jax.models.tokens import Tokens
from attn_jax.objectives import Objective

CHUNK = 64  # positions, each with its row, in one forward pass
NUM_SAMPLES = 6  # positions shown in the report
NUM_GUESSES = 4  # likeliest tokens shown for each
CONTEXT = 12  # tokens shown on each side


@dataclass(frozen=True)
class Positions:
    """P places of held-out text: row `i` of `rows` is asked for its column `columns[i]`."""

    rows: Tokens  # [P, T]
    columns: np.ndarray  # [P]
    fingerprint: str

    @property
    def targets(self) -> np.ndarray:
        """The ids at the places, [P]."""
        return np.take_along_axis(self.rows.ids, self.columns[:, None], axis=1)[:, 0]

    def context(self, back: int) -> np.ndarray:
        """Returns the ids `back` places to the left, -1 where that is another document, [P]."""
        inside = self._at(self.rows.positions, 0) >= back
        return np.where(inside, self._at(self.rows.ids, back), -1)

    def _at(self, field: np.ndarray, back: int) -> np.ndarray:
        columns = np.maximum(self.columns - back, 0)
        return np.take_along_axis(field, columns[:, None], axis=1)[:, 0]


class SharedPositions(Evaluator):
    """Bits per token at one fixed random set of held-out positions, under three masks.

    causal:        from the left context, read left to right.
    prefix:        from the left context, read in both directions.
    bidirectional: from both sides.

    A model trained to fill in masks finds a <mask> in the place itself; from any other the place
    is hidden. One trained to predict the next token, be it hidden or not, is read out at the place
    before. So each arm answers in the way it was trained, from the same context.
    """

    kinds = ("text",)

    def __init__(self, subject: Subject):
        self._subject = subject
        config, specials = subject.config.eval, subject.dataset.tokenizer.specials
        ordinary = {specials.bos, specials.eos, specials.unk, specials.mask, specials.sep}
        self._positions = _choose(
            subject.dataset, config.split, config.shared_positions, frozenset(ordinary)
        )

    @classmethod
    def problem(cls, config: Config, objective: Objective) -> str:
        """Needs tokens that are predicted where they stand in the text."""
        name = config.objective.name
        where = f"tokens predicted where they stand, and objective.name = {name!r} writes spans"
        return super().problem(config, objective) or ("" if objective.shift is not None else where)

    def run(self, params: dict) -> dict[str, Any]:
        """Returns bits, standard error and accuracy by mask, the n-gram baselines, samples."""
        own = self._subject.objective.mask
        scores = {mask: self._score(params, mask) for mask in MASKS}
        unigram, trigram = self._baselines()
        return {
            "split": self._subject.config.eval.split,
            "items": len(self._positions.columns),
            "fingerprint": self._positions.fingerprint,
            "own_mask": own,
            "own_bits": _summary(scores[own])["bits"],
            "per_item": {"own_bits": scores[own]["bits"].astype(float).round(4).tolist()},
            "unigram_bits": unigram,
            "trigram_bits": trigram,
            **{mask: _summary(score) for mask, score in scores.items()},
            "samples": [
                self._sample(scores, i)
                for i in range(min(NUM_SAMPLES, len(self._positions.columns)))
            ],
        }

    def curve(self, params: dict) -> dict[str, Any]:
        """Returns the bits and accuracy under the arm's own mask only."""
        own = self._subject.objective.mask
        summary = _summary(self._score(params, own))
        return {"own_bits": summary["bits"], own: summary}

    def _score(self, params: dict, mask: str) -> dict[str, np.ndarray]:
        subject, places = self._subject, self._positions
        params, parts = replicate(params), []
        for start in range(0, len(places.columns), CHUNK):
            piece = slice(start, start + CHUNK)
            rows, columns = jax.tree.map(lambda x, p=piece: x[p], (places.rows, places.columns))
            objective, specials = subject.objective, subject.dataset.tokenizer.specials
            mask_id = specials.mask if objective.fills_masks else None
            args = (subject.graph, objective.shift, mask, mask_id)
            parts.append((_predict(*args, params, rows, columns), len(columns)))
        # Fetched at the end, so that no chunk waits for another.
        parts = [jax.device_get(in_order(part, count)) for part, count in parts]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _baselines(self) -> tuple[float, float]:
        """Returns the bits per position of the unigram and the trigram model."""
        ngrams, places = _ngrams(self._subject.dataset), self._positions
        unigram = ngrams.unigram(places.targets)
        trigram = ngrams.trigram(places.context(2), places.context(1), places.targets)
        return tuple(float(-np.log2(p).mean()) for p in (unigram, trigram))

    def _sample(self, scores: dict[str, dict[str, np.ndarray]], index: int) -> dict[str, Any]:
        tokenizer, places = self._subject.dataset.tokenizer, self._positions
        row, column = places.rows.ids[index], int(places.columns[index])
        inside = places.rows.segments[index] == places.rows.segments[index, column]
        left = [t for t, i in zip(row[:column], inside[:column], strict=True) if i][-CONTEXT:]
        right = [t for t, i in zip(row[column + 1 :], inside[column + 1 :], strict=True) if i]
        guesses = {
            mask: [
                (tokenizer.piece(int(token)), float(probability))
                for token, probability in zip(
                    score["guesses"][index], score["probabilities"][index], strict=True
                )
            ]
            for mask, score in scores.items()
        }
        return {
            "left": "".join(tokenizer.piece(int(token)) for token in left),
            "target": tokenizer.piece(int(row[column])),
            "right": "".join(tokenizer.piece(int(token)) for token in right[:CONTEXT]),
            "own": guesses[self._subject.objective.mask],
            **guesses,
        }


@lru_cache(maxsize=4)
def _choose(dataset: Dataset, split: str, count: int, special: frozenset[int]) -> Positions:
    """Draws `count` places (or all there are) with a token to their left and no special id."""
    batches = [batch for _, batch in dataset.eval_batches(split)]
    rows = jax.tree.map(lambda *x: np.concatenate(x), *batches)
    allowed = (rows.positions >= 1) & (rows.segments != 0) & ~np.isin(rows.ids, list(special))
    places = np.argwhere(allowed)
    chosen = np.random.default_rng(0).permutation(len(places))[:count]
    row, column = places[chosen].T
    picked = jax.tree.map(lambda x: x[row], rows)
    digest = hashlib.sha256(picked.ids.tobytes() + column.tobytes()).hexdigest()
    return Positions(picked, column.astype(np.int32), digest[:16])


@lru_cache(maxsize=4)
def _ngrams(dataset: Dataset) -> NGrams:
    """Counts the training documents, each `<bos> .. <eos>` as the models see them."""
    (documents,), specials = dataset.columns("train"), dataset.tokenizer.specials
    lengths = documents.lengths + 2
    starts = np.cumsum(lengths) - lengths
    ids = np.full(lengths.sum(), specials.eos, np.int64)
    ids[starts] = specials.bos
    inner = np.ones(len(ids), bool)
    inner[starts] = inner[starts + lengths - 1] = False
    ids[inner] = documents.flat
    return NGrams(ids, starts, dataset.tokenizer.vocab_size)


def _summary(score: dict[str, np.ndarray]) -> dict[str, float]:
    bits = score["bits"].astype(float)
    return {
        "bits": float(bits.mean()),
        "stderr": float(bits.std(ddof=1) / math.sqrt(len(bits))) if len(bits) > 1 else 0.0,
        "accuracy": float(score["correct"].mean()),
    }


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _predict(
    graph: nnx.GraphDef,
    shift: int,
    mask: str,
    mask_id: int | None,
    params: dict,
    tokens: Tokens,
    column: Array,
) -> dict[str, Array]:
    """Scores the token at one column of each row from the context that `mask` lets through.

    With a `mask_id` that stands in its place; without, nobody sees the place.
    """
    return over_rows(partial(_score_rows, graph, shift, mask, mask_id), params, (tokens, column))


def _score_rows(
    graph: nnx.GraphDef,
    shift: int,
    mask: str,
    mask_id: int | None,
    params: dict,
    rows: tuple[Tokens, Array],
) -> dict[str, Array]:
    tokens, column = rows
    column = column[:, None]
    target = jnp.take_along_axis(tokens.ids, column, axis=1)
    position = jnp.take_along_axis(tokens.positions, column, axis=1)
    here = jnp.arange(tokens.ids.shape[1])[None, :] == column
    if mask_id is not None:
        tokens = tokens.replace(ids=jnp.where(here, mask_id, tokens.ids))
    else:  # a model that was never shown a <mask> would be misled by it
        tokens = tokens.replace(segments=jnp.where(here, 0, tokens.segments))
    if mask == "prefix":
        # The left context, and the <mask> if there is one, as one prefix.
        tokens = tokens.prefix(position + (mask_id is not None))
    else:
        tokens = tokens.causal() if mask == "causal" else tokens.bidirectional()
    model = nnx.merge(graph, params)
    hidden = jnp.take_along_axis(model(tokens), (column - shift)[:, :, None], axis=1)[:, 0]
    log_probs = jax.nn.log_softmax(model.logits(hidden))
    chosen = jnp.take_along_axis(log_probs, target, axis=1)[:, 0]
    probabilities, guesses = jax.lax.top_k(log_probs, NUM_GUESSES)
    return {
        "bits": -chosen / math.log(2),
        "correct": guesses[:, 0] == target[:, 0],
        "guesses": guesses,
        "probabilities": jnp.exp(probabilities),
    }
