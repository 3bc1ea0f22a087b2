"""What is predicted from what: pure functions from text to inputs, targets and weights.

An objective is called inside the jitted step as `objective(tokens or pair, key, first_row)`. It has
`kind` ("text" or "pair": what it reads), `mask` (its own visibility: "causal", "prefix" or
"bidirectional") and `shift` (1 if a hidden state predicts the next token, 0 if its own). A new
objective is one file and one line in `make_objective`.
"""

from collections.abc import Callable

from attn_jax.config import ObjectiveConfig
from attn_jax.data.tokenizers import Specials
from attn_jax.objectives.causal_lm import CausalLM
from attn_jax.objectives.masked_lm import MaskedLM
from attn_jax.objectives.prefix_lm import PrefixLM
from attn_jax.objectives.translation import JoinedTranslation, Translation

Objective = CausalLM | MaskedLM | PrefixLM | Translation | JoinedTranslation


def make_objective(config: ObjectiveConfig, specials: Specials, vocab_size: int) -> Objective:
    """Returns the objective that `config.name` names, for a tokenizer's ids."""
    masking = (config.mask_rate, config.mask_share, config.random_share)
    makers: dict[str, Callable[[], Objective]] = {
        "causal_lm": CausalLM,
        "prefix_lm": PrefixLM,
        "masked_lm": lambda: MaskedLM(specials, vocab_size, *masking),
        "translation": lambda: Translation(specials),
        "causal_translation": lambda: JoinedTranslation(specials, "causal"),
        "prefix_translation": lambda: JoinedTranslation(specials, "prefix"),
    }
    return makers[config.name]()
