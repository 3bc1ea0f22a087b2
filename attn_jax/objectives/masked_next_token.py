"""Masked next-token prediction: hidden tokens, predicted one place before they stand."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from attn_jax.config import ObjectiveConfig
from attn_jax.data.tokenizers import Vocabulary
from attn_jax.models.tokens import Tokens
from attn_jax.objectives.batch import Batch
from attn_jax.objectives.masking import Masking
from attn_jax.objectives.objective import Objective


@dataclass(frozen=True)
class MaskedNextToken(Objective):
    """Tokens are hidden as in masked LM, and read out where a causal LM would read them out.

    So one model can be trained on both without a head of its own for each (Charpentier and Samuel
    2024, GPT-BERT; BehnamGhader et al. 2024, LLM2Vec). The first token of a document, or of a piece
    of one, has nothing before it and is never hidden.
    """

    masking: Masking

    kind = "text"
    architectures = ("encoder", "decoder")
    mask = "bidirectional"
    shift = 1
    fills_masks = True
    pseudo = True

    @classmethod
    def of(cls, config: ObjectiveConfig, vocabulary: Vocabulary) -> "MaskedNextToken":
        """Makes the objective of a config for a tokenizer's ids."""
        return cls(Masking.of(config, vocabulary))

    def __call__(
        self,
        tokens: Tokens,
        key: Array,
        first_row: Array | int = 0,
        progress: Array | float = 0.0,
    ) -> Batch:
        """Returns the batch for packed rows, with a fixed number of places a row that may count."""
        after_another = tokens.positions > 0
        read, at, chosen = self.masking.hide(tokens, after_another, key, first_row, progress)
        targets = jnp.take_along_axis(tokens.ids, at, axis=1)
        inputs = tokens.replace(ids=read).bidirectional()
        return Batch(inputs, targets, chosen.astype(jnp.float32), jnp.maximum(at - 1, 0))
