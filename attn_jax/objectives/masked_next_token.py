"""Masked next-token prediction: hidden tokens, predicted one place before they stand."""

from dataclasses import dataclass

from attn_jax.objectives.masked_lm import MaskedLM


@dataclass(frozen=True)
class MaskedNextToken(MaskedLM):
    """Tokens are hidden as in masked LM, and read out where a causal LM would read them out.

    So one model can be trained on both without a head of its own for each (Charpentier and Samuel
    2024, GPT-BERT; BehnamGhader et al. 2024, LLM2Vec). The first token of a document, or of a piece
    of one, has nothing before it and is never hidden.
    """

    architectures = ("encoder", "decoder")
    shift = 1
