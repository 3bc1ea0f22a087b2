"""What is predicted from what: pure functions from text to inputs, targets and weights.

An objective is called inside the jitted step as `objective(tokens or pair, key, first_row)`. It has
`kind` ("text" or "pair": what it reads), `architectures` (those that it trains), `mask` (its own
visibility: "causal", "prefix" or "bidirectional") and `shift` (1 if a hidden state predicts the
next token, 0 if its own); `of` makes it from a config. A new objective is one file and one line in
`OBJECTIVES`.
"""

from attn_jax.config import ObjectiveConfig
from attn_jax.data.tokenizers import Specials
from attn_jax.objectives.causal_lm import CausalLM
from attn_jax.objectives.masked_lm import MaskedLM
from attn_jax.objectives.prefix_lm import PrefixLM
from attn_jax.objectives.translation import CausalTranslation, PrefixTranslation, Translation

Objective = CausalLM | MaskedLM | PrefixLM | Translation | CausalTranslation | PrefixTranslation

OBJECTIVES: dict[str, type[Objective]] = {
    "causal_lm": CausalLM,
    "masked_lm": MaskedLM,
    "prefix_lm": PrefixLM,
    "translation": Translation,
    "causal_translation": CausalTranslation,
    "prefix_translation": PrefixTranslation,
}


def make_objective(config: ObjectiveConfig, specials: Specials, vocab_size: int) -> Objective:
    """Returns the objective that `config.name` names, for a tokenizer's ids."""
    return OBJECTIVES[config.name].of(config, specials, vocab_size)
