"""Who looks at whom in one held-out sentence."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax.config import Config
from attn_jax.evaluation.evaluator import Evaluator, Subject, single_stack
from attn_jax.models.tokens import Tokens
from attn_jax.objectives import Objective

LENGTH = 20  # tokens of the sentence, at most


class AttentionMaps(Evaluator):
    """Attention weights of each layer, averaged over heads, under the arm's own mask."""

    kinds = ("text",)

    def __init__(self, subject: Subject):
        self._subject = subject
        (documents,) = subject.dataset.columns(subject.config.eval.split)
        specials = subject.dataset.tokenizer.specials
        length = min(LENGTH, subject.config.data.length)  # no model need be able to read more
        self._ids = np.array([specials.bos, *documents.ids(0)[: length - 1]], np.int32)

    @classmethod
    def problem(cls, config: Config, objective: Objective) -> str:
        """Needs a model that reads one sequence."""
        return super().problem(config, objective) or single_stack(config)

    def run(self, params: dict) -> dict[str, Any]:
        """Returns the pieces of the sentence and `layers`, [L][T][T] weights."""
        tokenizer, mask = self._subject.dataset.tokenizer, self._subject.objective.mask
        tokens = Tokens.of(jnp.asarray(self._ids[None]))
        # Half of the sentence as the prefix: the picture then shows both kinds of row.
        tokens = {
            "causal": tokens.causal,
            "bidirectional": tokens.bidirectional,
            "prefix": lambda: tokens.prefix(len(self._ids) // 2),
        }[mask]()
        weights = attention_weights(nnx.merge(self._subject.graph, params), tokens)
        return {
            "text": tokenizer.decode(self._ids),
            "pieces": [tokenizer.piece(int(token)) for token in self._ids],
            "mask": mask,
            "layers": [np.round(w.mean(axis=1)[0], 4).tolist() for w in weights],
        }


def attention_weights(model: nnx.Module, tokens: Tokens) -> list[np.ndarray]:
    """Returns the self-attention weights of each layer of a single stack, [B, H, T, T]."""
    capture: list = []
    model(tokens, capture=capture)
    return [np.asarray(w) for w in jax.device_get(capture)]
