"""Masked language modelling: hidden tokens are predicted from both sides (BERT)."""

import math
from dataclasses import astuple, dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn_jax.config import ObjectiveConfig
from attn_jax.data.tokenizers import Specials
from attn_jax.models.tokens import Tokens
from attn_jax.objectives.batch import Batch, row_keys


@dataclass(frozen=True)
class MaskedLM:
    """A share `rate` of each row's ordinary tokens, drawn anew each step, becomes targets.

    Of the targets, `mask_share` are read as <mask>, `random_share` as a random ordinary token and
    the rest as they are (Devlin et al. 2019). Special tokens and padding are never targets; every
    document (or piece of one) in a row has at least one, if it has an ordinary token.
    """

    specials: Specials
    vocab_size: int
    rate: float
    mask_share: float
    random_share: float

    kind = "text"
    architectures = ("encoder",)
    mask = "bidirectional"
    shift = 0

    @classmethod
    def of(cls, config: ObjectiveConfig, specials: Specials, vocab_size: int) -> "MaskedLM":
        """Makes the objective of a config for a tokenizer's ids."""
        shares = (config.mask_rate, config.mask_share, config.random_share)
        return cls(specials, vocab_size, *shares)

    def __call__(self, tokens: Tokens, key: Array, first_row: Array | int = 0) -> Batch:
        """Returns the batch for packed rows, with a fixed number of places a row that may count."""
        keys = row_keys(key, tokens, first_row)
        read, at, weights = jax.vmap(self._mask_row)(keys, tokens.ids, tokens.segments)
        targets = jnp.take_along_axis(tokens.ids, at, axis=1)
        return Batch(tokens.replace(ids=read).bidirectional(), targets, weights, at)

    def places(self, T: int) -> int:
        """Returns how many places of a row of T may count, a static bound.

        A whole document has at least 3 tokens and a row at most 2 cut ones, so T / 3 + 2 places
        are enough for one target each.
        """
        return min(T, max(math.ceil(self.rate * T), T // 3 + 2))

    def _mask_row(self, key: Array, ids_T: Array, segments_T: Array):
        T = ids_T.shape[0]
        choose_key, how_key, token_key = jax.random.split(key, 3)
        ordinary = (segments_T != 0) & ~jnp.isin(ids_T, jnp.array(astuple(self.specials)))
        score = jnp.where(ordinary, jax.random.uniform(choose_key, (T,)), -1.0)
        best = jax.ops.segment_max(score, segments_T, num_segments=T + 1)
        needed = ordinary & (score == best[segments_T])
        count = jnp.maximum(jnp.round(self.rate * ordinary.sum()), needed.sum())
        # The best of each document comes first, so it is among the chosen.
        score, at = jax.lax.top_k(score + needed, self.places(T))
        chosen = (jnp.arange(at.shape[0]) < count) & (score >= 0)

        how = jax.random.uniform(how_key, at.shape)
        random_ids = jax.random.choice(token_key, self._ordinary_ids(), at.shape)
        read = jnp.where(how < self.mask_share, self.specials.mask, ids_T[at])
        is_random = (how >= self.mask_share) & (how < self.mask_share + self.random_share)
        read = jnp.where(is_random, random_ids, read)
        read = jnp.where(chosen, read, ids_T[at])
        return ids_T.at[at].set(read), at, chosen.astype(jnp.float32)

    def _ordinary_ids(self) -> np.ndarray:
        return np.setdiff1d(np.arange(self.vocab_size, dtype=np.int32), astuple(self.specials))
