"""Causal language modelling: every token is predicted from the tokens before it."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from attn_jax.config import ObjectiveConfig
from attn_jax.data.tokenizers import Vocabulary
from attn_jax.models.tokens import Tokens
from attn_jax.objectives.batch import Batch
from attn_jax.objectives.objective import Objective


def next_tokens(tokens: Tokens) -> tuple[Array, Array]:
    """Returns the id after each position, and 1.0 where that is in the same segment."""
    targets = jnp.roll(tokens.ids, -1, axis=1)
    same = (jnp.roll(tokens.segments, -1, axis=1) == tokens.segments) & (tokens.segments != 0)
    return targets, same.at[:, -1].set(False).astype(jnp.float32)


@dataclass(frozen=True)
class CausalLM(Objective):
    """GPT: causal mask, the target of each position is the next token."""

    kind = "text"
    architectures = ("decoder",)
    mask = "causal"
    shift = 1

    @classmethod
    def of(cls, config: ObjectiveConfig, vocabulary: Vocabulary) -> "CausalLM":
        """Makes the objective of a config for a tokenizer's ids."""
        return cls()

    def __call__(
        self,
        tokens: Tokens,
        key: Array,
        first_row: Array | int = 0,
        progress: Array | float = 0.0,
    ) -> Batch:
        """Returns the batch for packed rows; nothing is random, so `key` is not read."""
        targets, weights = next_tokens(tokens)
        return Batch(tokens.causal(), targets, weights)

    def prompt(self, tokens: Tokens) -> tuple[Tokens, Tokens | None]:
        """Returns what decoding starts from: the tokens, left to right, and no source."""
        return tokens.causal(), None
