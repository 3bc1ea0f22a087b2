"""Beam search: the whole search is one jitted loop over `step`, with beams as query positions."""

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attn_jax.decoding.prompts import Prepared, prepare, read_prompt
from attn_jax.decoding.vocabulary import Scores, normalizers, read_out, top, top_k
from attn_jax.devices import in_order, over_rows
from attn_jax.errors import InputError
from attn_jax.models.cache import Cache
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer

# Letters of this file: M beams, C = 2 M candidates, R hypotheses of a row.

MAX_BEAMS = 1000
MAX_PENALTY = 5.0  # more would overflow float32 for long texts


@dataclass(frozen=True)
class Beam:
    """How to search."""

    size: int = 5  # hypotheses that are continued at once
    length_penalty: float = 1.0  # alpha of score = log-probability / length ** alpha; 0: the sum,
    # 1: the mean; the length is that of the new tokens, <eos> included
    n_best: int = 1  # hypotheses returned a row, at most `size`
    early_stopping: bool = True  # ends a row with `size` finished ones, though a live one might win

    def __post_init__(self):
        """Raises InputError for a value that is not allowed."""
        if not 1 <= self.size <= MAX_BEAMS:
            raise InputError(f"beam_size = {self.size!r}: expected from 1 to {MAX_BEAMS}")
        if not 0 <= self.length_penalty <= MAX_PENALTY:
            allowed = f"from 0 to {MAX_PENALTY:g}"
            raise InputError(f"length_penalty = {self.length_penalty!r}: expected {allowed}")
        if not 1 <= self.n_best <= self.size:
            raise InputError(
                f"n_best = {self.n_best!r}: expected from 1 to beam_size = {self.size}"
            )


class Hypotheses(NamedTuple):
    """Texts and scores.

    ids: [B, R, max_new], <eos> included, padding after it; all padding where there is none.
    scores: [B, R], float32; -inf where there is none.
    """

    ids: Int[Array, "B R max_new"]
    scores: Float[Array, "B R"]

    def best(self, count: int) -> tuple["Hypotheses", Int[Array, "B count"]]:
        """Returns the best ones, best first, and which of these they were."""
        scores, at = top_k(self.scores, count)
        return Hypotheses(jnp.take_along_axis(self.ids, at[:, :, None], axis=1), scores), at

    def and_best_of(self, more: "Hypotheses") -> "Hypotheses":
        """Returns the best of both, as many as these; of equal ones, these."""
        both = (jnp.concatenate(pair, axis=1) for pair in zip(self, more, strict=True))
        return Hypotheses(*both).best(self.scores.shape[1])[0]


class _State(NamedTuple):
    """What the loop carries: `i` tokens of each hypothesis of `live` are written.

    parents: which beam of the last step each live one goes on from.
    live: M a row, scored by the sum of log-probabilities.
    done: the best of those that have ended, scored.
    ended: how many have.
    active: rows that go on.
    """

    i: Int[Array, ""]
    cache: Cache
    parents: Int[Array, "B M"]
    live: Hypotheses
    done: Hypotheses
    ended: Int[Array, " B"]
    active: Bool[Array, " B"]


class _Rules(NamedTuple):
    """What a search goes by; `lengths`[n - 1] is n ** length_penalty."""

    size: int
    n_best: int
    early_stopping: bool
    eos: int
    lengths: Float[Array, " max_new"]

    def extend(self, state: _State, scores_WIN: Scores) -> _State:
        """Writes one more token: of the 2 M best continuations, M that go on, and those that end.

        A hypothesis ends where <eos> is among the M best: with one beam, where it is the best, as
        in greedy decoding. At most M of the 2 M end, one a beam, so M are left to go on.
        """
        sums = normalizers(scores_WIN).reshape(state.live.scores.shape)
        sums_BC, parents, tokens = top(scores_WIN, state.live.scores - sums, 2 * self.size)
        ids = jnp.take_along_axis(state.live.ids, parents[:, :, None], axis=1)
        ids = jax.lax.dynamic_update_slice_in_dim(ids, tokens[:, :, None], state.i, axis=2)
        ends = tokens == self.eos

        scores = jnp.where(ends & state.active[:, None], sums_BC / self.lengths[state.i], -jnp.inf)
        ended = Hypotheses(ids[:, : self.size], scores[:, : self.size])
        done = state.done.and_best_of(ended)
        count = state.ended + jnp.sum(ended.scores > -jnp.inf, axis=1)
        live, at = Hypotheses(ids, jnp.where(ends, -jnp.inf, sums_BC)).best(self.size)
        # Sums only fall, and none is divided by more than the greatest length allows.
        highest = live.scores[:, 0] / self.lengths[-1]
        active = state.active & (highest > done.scores[:, -1])
        if self.early_stopping:
            active &= count < self.size
        parents = jnp.take_along_axis(parents, at, axis=1)
        return _State(state.i + 1, state.cache, parents, live, done, count, active)

    def finish(self, state: _State) -> Hypotheses:
        """Returns the result; what has no room for <eos> counts as it is, where it may win."""
        cut = state.live.scores / self.lengths[-1]
        cut = jnp.where(state.active[:, None], cut, -jnp.inf)
        return state.done.and_best_of(Hypotheses(state.live.ids, cut))


def _search(
    ready: Prepared,
    prompt: Tokens,
    source: Tokens | None,
    rules: _Rules,
    pad: int,
) -> Hypotheses:
    B, M, max_new = prompt.ids.shape[0], rules.size, len(rules.lengths)
    started = read_prompt(ready.model, prompt, source, max_new, M)

    def nothing(count: int, score: float) -> Hypotheses:
        ids = jnp.full((B, count, max_new), pad, jnp.int32)
        return Hypotheses(ids, jnp.full((B, count), score, jnp.float32))

    def unfinished(state: _State) -> Array:
        return (state.i < max_new) & jnp.any(state.active)

    def write_one(state: _State) -> _State:
        last = jax.lax.dynamic_index_in_dim(state.live.ids, state.i - 1, axis=2, keepdims=False)
        real = state.active[:, None] & (state.live.scores > -jnp.inf)
        tokens = started.following(state.i - 1, last, real)
        hidden_BMD, cache = ready.model.step(tokens, state.cache.choose(state.parents))
        scores_WIN = read_out(ready.model, hidden_BMD.reshape(B * M, -1))
        return rules.extend(state._replace(cache=cache), scores_WIN)

    start = _State(
        i=jnp.int32(0),
        cache=started.cache.fork(M),
        parents=jnp.zeros((B, 1), jnp.int32),
        live=nothing(1, 0.0),
        done=nothing(rules.n_best, -jnp.inf),
        ended=jnp.zeros(B, jnp.int32),
        active=started.real,
    )
    state = rules.extend(start, read_out(ready.model, started.hidden))
    if max_new > 1:
        state = jax.lax.while_loop(unfinished, write_one, state)
    return rules.finish(state)


@partial(jax.jit, static_argnums=(0, 5, 6, 7))
def _search_jit(graph, params, prompt, source, lengths, beam, eos, pad):
    def of_rows(shared, rows):
        params, lengths = shared
        rules = _Rules(beam.size, beam.n_best, beam.early_stopping, eos, lengths)
        return _search(Prepared(graph, params), *rows, rules, pad)

    return over_rows(of_rows, (params, lengths), (prompt, source))


def beam_search(
    model: Transformer | Prepared,
    prompt: Tokens,
    source: Tokens | None = None,
    *,
    beam: Beam,
    max_new: int,
    eos: int,
    pad: int,
) -> Hypotheses:
    """Finds likely continuations of each prompt, up to <eos> or `max_new` tokens.

    The score of a continuation of n tokens, <eos> included, is log-probability / n ** alpha, alpha
    being `beam.length_penalty` (Wu et al. 2016 divide by another power of the length). One without
    <eos> takes part only at the length `max_new`.

    A row ends when M, the size of the beam, have finished, as usual (Kasai et al. 2022). It also
    ends, and without `early_stopping` only then, when `n_best` have finished and no live one can
    get a score above the worst of them: when live log-probability / max_new ** alpha is not above
    it. As log-probabilities only fall, and max_new ** alpha is the most to divide by, going on
    would change nothing.

    The M beams of a row are M query positions of one batch row. So they share the keys and values
    of its prompt and of its source; those of what each writes stay where they were written.

    Args:
      model: any architecture with `start` and `step`, or what `prepare` made of one.
      prompt: [B, P] of any lengths, with padding (segment 0) anywhere.
      source: what an encoder-decoder reads.
      beam: how to search.
      max_new: most tokens written a row.
      eos: the id that ends a text; it is part of the result.
      pad: the id written after that.

    Returns:
      The `n_best` hypotheses of each row, best first, all different; none for an empty prompt.

    Raises:
      InputError: prompt and `max_new` - 1 together exceed the learned position table.
    """
    ready = prepare(model)
    # In float64, so that rounding leaves them in order.
    lengths = np.arange(1, max_new + 1, dtype=np.float64) ** beam.length_penalty
    lengths = jnp.asarray(lengths, jnp.float32)
    beam = replace(beam, length_penalty=0.0)  # is in the lengths: one program serves all
    found = _search_jit(*ready, prompt, source, lengths, beam, eos, pad)
    return in_order(found, len(prompt.ids))
