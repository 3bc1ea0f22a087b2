"""Methods of scoring: what a token is predicted from.

causal: w_t from w_<t, left to right.
pll: w_t from all other tokens, w_t read as <mask> (Salazar et al. 2020,
  https://arxiv.org/abs/1910.14659). Its refinements hide more: the later tokens of the same word
  (pll_within_word), all of the word (pll_whole_word), or all later tokens of the text (pll_global)
  (Kauf and Ivanova 2023, https://arxiv.org/abs/2305.10588).
fused: the sum of causal and pll, after the models that learn both (Charpentier and Samuel 2024,
  https://arxiv.org/abs/2410.24159); it ranks texts, and is no log-probability of anything.
prefix: w_t from w_<t and a source, the source read from both sides: by an encoder, or by one stack.

A model that writes hidden spans has two: pll, each token a span of its own, and prefix, the target
as one span at the end of its source.

Where a hidden state predicts the next token (`objective.shift` 1), w_t is read out at the place
before. Where it predicts its own (0), w_t is a <mask> in all methods, and read out there.
"""

from attn_jax.objectives import Objective

# Method -> the mask that the model is read with.
METHODS = {
    "causal": "causal",
    "pll": "bidirectional",
    "pll_within_word": "bidirectional",
    "pll_whole_word": "bidirectional",
    "pll_global": "bidirectional",
    "fused": "causal and bidirectional",
    "prefix": "prefix",
}
OWN = "own"  # stands for the method of the objective's own mask


def own_method(objective: Objective) -> str:
    """Returns the method that reads a text as the objective does in training."""
    if objective.kind == "pair":
        return "prefix"
    fills = objective.mask == "bidirectional" or objective.shift is None
    return "pll" if fills else objective.mask
