"""Prefix language modelling: both sides of a prefix, then left to right (T5, UniLM)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_jax.config import ObjectiveConfig
from attn_jax.data.tokenizers import Vocabulary
from attn_jax.models.tokens import Tokens
from attn_jax.objectives.batch import Batch, row_keys
from attn_jax.objectives.causal_lm import next_tokens
from attn_jax.objectives.objective import Objective


@dataclass(frozen=True)
class PrefixLM(Objective):
    """The prefix of each segment is 1 to n-1 of its n tokens; only what follows is predicted."""

    kind = "text"
    architectures = ("decoder",)
    mask = "prefix"
    shift = 1

    @classmethod
    def of(cls, config: ObjectiveConfig, vocabulary: Vocabulary) -> "PrefixLM":
        """Makes the objective of a config for a tokenizer's ids."""
        return cls()

    def __call__(
        self,
        tokens: Tokens,
        key: Array,
        first_row: Array | int = 0,
        progress: Array | float = 0.0,
    ) -> Batch:
        """Returns the batch for packed rows; the prefix lengths are drawn per segment."""
        lengths = jax.vmap(_prefix_lengths)(row_keys(key, tokens, first_row), tokens.segments)
        targets, weights = next_tokens(tokens)
        # The last token of the prefix is the first that predicts.
        weights = jnp.where(tokens.positions >= lengths - 1, weights, 0.0)
        return Batch(tokens.prefix(lengths), targets, weights)

    def prompt(self, tokens: Tokens) -> tuple[Tokens, Tokens | None]:
        """Returns what decoding starts from: the tokens, read from both sides, and no source."""
        return tokens.bidirectional(), None


def _prefix_lengths(key: Array, segments_T: Array) -> Array:
    """Draws one length per segment and hands it to each of the segment's tokens."""
    T = segments_T.shape[0]
    sizes = jax.ops.segment_sum(jnp.ones(T, jnp.int32), segments_T, num_segments=T + 1)
    share = jax.random.uniform(key, (T + 1,))
    lengths = 1 + jnp.floor(share * (sizes - 1)).astype(jnp.int32)
    return lengths[segments_T]
