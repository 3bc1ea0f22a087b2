"""Causal LM and masked next-token prediction in one model (GPT-BERT)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_jax.config import MAX_INT, ObjectiveConfig
from attn_jax.data.tokenizers import Vocabulary
from attn_jax.models.tokens import Tokens
from attn_jax.objectives.batch import Batch
from attn_jax.objectives.causal_lm import CausalLM, next_tokens
from attn_jax.objectives.masked_next_token import MaskedNextToken
from attn_jax.objectives.masking import Masking
from attn_jax.objectives.objective import Objective


@dataclass(frozen=True)
class Mixture(Objective):
    """A share of all batches, or of the rows of each, is causal, the rest masked and two-sided.

    Charpentier and Samuel (2024), GPT-BERT. By row the share is that of every batch, up to one row,
    however it is cut; by batch each is drawn on its own. Both kinds predict the next token, so a
    row of either has the same targets and only other weights.
    """

    masked: MaskedNextToken
    causal_share: float
    by: str

    kind = "text"
    architectures = ("encoder", "decoder")
    mask = "bidirectional"
    shift = 1
    fills_masks = True

    @classmethod
    def of(cls, config: ObjectiveConfig, vocabulary: Vocabulary) -> "Mixture":
        """Makes the objective of a config for a tokenizer's ids."""
        masked = MaskedNextToken(Masking.of(config, vocabulary))
        return cls(masked, config.causal_share, config.mixture_by)

    def __call__(
        self,
        tokens: Tokens,
        key: Array,
        first_row: Array | int = 0,
        progress: Array | float = 0.0,
    ) -> Batch:
        """Returns the batch for packed rows; every place may count."""
        causal = self._is_causal(key, first_row + jnp.arange(tokens.ids.shape[0]))[:, None]
        masked = self.masked(tokens, key, first_row, progress)
        targets, next_weights = next_tokens(tokens)
        rows = jnp.arange(tokens.ids.shape[0])[:, None]
        # A place that does not count may stand for another's column.
        mask_weights = jnp.zeros_like(next_weights).at[rows, masked.at].max(masked.weights)
        inputs = tokens.replace(
            ids=jnp.where(causal, tokens.ids, masked.inputs.ids),
            blocks=jnp.where(causal, tokens.causal().blocks, masked.inputs.blocks),
        )
        return Batch(inputs, targets, jnp.where(causal, next_weights, mask_weights))

    def parts(self) -> dict[str, tuple[float, Objective]]:
        """Returns both kinds and their shares: their losses are never one number."""
        return {
            "causal": (self.causal_share, CausalLM()),
            "masked": (1 - self.causal_share, self.masked),
        }

    def prompt(self, tokens: Tokens) -> tuple[Tokens, Tokens | None]:
        """Returns what decoding starts from: the tokens, left to right, and no source."""
        return tokens.causal(), None

    def _is_causal(self, key: Array, rows_B: Array) -> Array:
        """Returns for each row of the global batch whether it is causal."""
        start = jax.random.uniform(jax.random.fold_in(key, MAX_INT))  # no row's
        if self.by == "batch":
            return jnp.broadcast_to(start < self.causal_share, rows_B.shape)
        # Systematic sampling: of any n rows side by side, n * share are causal, up to one.
        before, after = (jnp.floor(start + (rows_B + n) * self.causal_share) for n in (0, 1))
        return after > before
