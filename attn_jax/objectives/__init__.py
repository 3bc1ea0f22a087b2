"""What is predicted from what: pure functions from text to inputs, targets and weights.

An objective is a subclass of `Objective`, which says what it declares. A new one is one file and
one line in `OBJECTIVES`.
"""

from attn_jax.config import ObjectiveConfig
from attn_jax.data.tokenizers import Vocabulary
from attn_jax.objectives.causal_lm import CausalLM
from attn_jax.objectives.masked_lm import MaskedLM
from attn_jax.objectives.masked_next_token import MaskedNextToken
from attn_jax.objectives.mixture import Mixture
from attn_jax.objectives.objective import Objective
from attn_jax.objectives.prefix_lm import PrefixLM
from attn_jax.objectives.span_corruption import PrefixSpanCorruption, SpanCorruption
from attn_jax.objectives.translation import CausalTranslation, PrefixTranslation, Translation

OBJECTIVES: dict[str, type[Objective]] = {
    "causal_lm": CausalLM,
    "masked_lm": MaskedLM,
    "masked_next_token": MaskedNextToken,
    "mixture": Mixture,
    "prefix_lm": PrefixLM,
    "span_corruption": SpanCorruption,
    "prefix_span_corruption": PrefixSpanCorruption,
    "translation": Translation,
    "causal_translation": CausalTranslation,
    "prefix_translation": PrefixTranslation,
}


def make_objective(config: ObjectiveConfig, vocabulary: Vocabulary) -> Objective:
    """Returns the objective that `config.name` names, for a tokenizer's ids."""
    return OBJECTIVES[config.name].of(config, vocabulary)
