"""Which tokens of a row are hidden, and what is read in their place."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from attn_jax.config import ObjectiveConfig
from attn_jax.data.tokenizers import Vocabulary
from attn_jax.models.tokens import Tokens
from attn_jax.objectives.batch import row_keys

SLACK = 9  # places beyond the rate, for the last word of a row; of spans, three mean lengths


@dataclass(frozen=True)
class Masking:
    """A share `rate` of each row's ordinary tokens, drawn anew each step, is chosen.

    rate, final_rate: at the first and at the last step, in a line between them.
    mask_share, random_share: of the chosen tokens, those that are read as <mask>, and as a random
      ordinary token; the rest is read as it is (Devlin et al. 2019).
    unit: what is chosen whole or not at all: a "token"; a "word"; a "span", for which documents are
      cut anywhere into pieces of geometric length (as the spans of Joshi et al. 2020, SpanBERT,
      but not at word boundaries and without a longest one).
    span_length: mean tokens of a span.
    """

    vocabulary: Vocabulary
    rate: float
    final_rate: float
    mask_share: float
    random_share: float
    unit: str = "token"
    span_length: float = 3.0

    @classmethod
    def of(cls, config: ObjectiveConfig, vocabulary: Vocabulary) -> "Masking":
        """Makes the masking of a config for a tokenizer's ids."""
        return cls(
            vocabulary,
            config.mask_rate,
            config.final_mask_rate or config.mask_rate,
            config.mask_share,
            config.random_share,
            config.mask_unit,
            config.span_length,
        )

    def hide(
        self,
        tokens: Tokens,
        may: Bool[Array, "B T"],
        key: Array,
        first_row: Array | int = 0,
        progress: Array | float = 0.0,
    ) -> tuple[Int[Array, "B T"], Int[Array, "B N"], Bool[Array, "B N"]]:
        """Chooses tokens and replaces them.

        Every document (or piece of one) in a row has at least one, if it has any that may be.

        Args:
          tokens: packed rows.
          may: which tokens may be chosen; special ones and padding never are.
          key: of the step.
          first_row: number of the first row in the global batch.
          progress: share of the training that is done.

        Returns:
          The ids that are read; N = `places(T)` columns; which of them are chosen.
        """
        rate = self.rate
        if self.final_rate != self.rate:
            rate = rate + (self.final_rate - rate) * progress
        may &= (tokens.segments != 0) & ~jnp.isin(tokens.ids, jnp.array(self.vocabulary.special))
        hide = jax.vmap(self._hide_row, (0, 0, 0, 0, None))
        keys = row_keys(key, tokens, first_row)
        return hide(keys, tokens.ids, tokens.segments, may, rate)

    def places(self, T: int) -> int:
        """Returns how many tokens of a row of T may be chosen, a static bound.

        A whole document has at least 3 tokens and a row at most 2 cut ones, so T / 3 + 2 places
        are enough for one token of each.
        """
        spans = math.ceil(3 * self.span_length)
        slack = {"token": 0, "word": SLACK, "span": spans}[self.unit]
        most = math.ceil(max(self.rate, self.final_rate) * T) + slack
        return min(T, max(most, T // 3 + 2))

    def _hide_row(self, key: Array, ids_T: Array, segments_T: Array, may_T: Array, rate):
        choose_key, how_key, token_key, *unit_keys = jax.random.split(key, 5)
        begins = self._begins(unit_keys[0], ids_T, segments_T, may_T)
        at, chosen = self._choose((choose_key, unit_keys[1]), begins, segments_T, may_T, rate)
        how = jax.random.uniform(how_key, at.shape)
        random_ids = jax.random.choice(token_key, self.vocabulary.ordinary, at.shape)
        read = jnp.where(how < self.mask_share, self.vocabulary.specials.mask, ids_T[at])
        is_random = (how >= self.mask_share) & (how < self.mask_share + self.random_share)
        read = jnp.where(is_random, random_ids, read)
        read = jnp.where(chosen, read, ids_T[at])
        return ids_T.at[at].set(read), at, chosen

    def _choose(
        self, keys: tuple[Array, Array], begins: Array, segments_T: Array, may_T: Array, rate
    ) -> tuple[Array, Array]:
        """Returns N columns, and which of them are chosen: whole units, in random order."""
        T = may_T.shape[0]
        N = self.places(T)
        first = jax.lax.cummax(jnp.where(begins, jnp.arange(T), 0))  # of each token's unit
        sizes = jax.ops.segment_sum(may_T.astype(jnp.int32), first, num_segments=T)[first]
        score = jnp.where(may_T, jax.random.uniform(keys[0], (T,))[first], -1.0)
        best = jax.ops.segment_max(score, segments_T, num_segments=T + 1)
        needed = may_T & (score == best[segments_T])
        # The best unit of each document comes first, of all of these first their first tokens: so
        # each document has a target even where not all of these units fit.
        rank = jnp.where(needed & ~begins, 1.0, score + needed)
        rank, at = jax.lax.top_k(rank, N)

        place = jnp.arange(N)
        before = jax.lax.cummax(jnp.where(begins[at], place, 0))  # tokens of earlier units
        left = jnp.round(rate * may_T.sum()) - before
        # A unit that is larger than what is left is chosen with the odds that keep the rate.
        odds = 0.0 if self.unit == "token" else jax.random.uniform(keys[1])
        chosen = (odds * sizes[at] < left) & (before + sizes[at] <= N)
        return at, (chosen | needed[at]) & (rank >= 0)

    def _begins(self, key: Array, ids_T: Array, segments_T: Array, may_T: Array) -> Array:
        """Returns where a unit begins, [T]."""
        if self.unit == "token":
            return may_T
        before = jnp.roll(ids_T, 1)
        cut = ~jnp.roll(may_T, 1) | (jnp.roll(segments_T, 1) != segments_T)
        cut = cut.at[0].set(True)
        if self.unit == "word":
            starts, ends = map(jnp.asarray, self.vocabulary.word_edges)
            return may_T & (cut | (starts[ids_T] & ends[before]))
        return may_T & (cut | (jax.random.uniform(key, ids_T.shape) * self.span_length < 1))
