"""Masked language modelling: hidden tokens are predicted from both sides (BERT)."""

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
class MaskedLM(Objective):
    """Hidden tokens are predicted where they stand (Devlin et al. 2019)."""

    masking: Masking

    kind = "text"
    architectures = ("encoder",)
    mask = "bidirectional"
    shift = 0
    fills_masks = True
    pseudo = True

    @classmethod
    def of(cls, config: ObjectiveConfig, vocabulary: Vocabulary) -> "MaskedLM":
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
        allowed = tokens.positions >= self.shift
        read, at, chosen = self.masking.hide(tokens, allowed, key, first_row, progress)
        targets = jnp.take_along_axis(tokens.ids, at, axis=1)
        inputs = tokens.replace(ids=read).bidirectional()
        at = jnp.maximum(at - self.shift, 0)  # where nothing is hidden it may be any place
        return Batch(inputs, targets, chosen.astype(jnp.float32), at)
