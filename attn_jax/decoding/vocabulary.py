"""The scores of a whole vocabulary: how they are laid out, their sum, the largest ones.

Letters of this file: W lanes, I tokens of a lane, N rows, M beams. Token v is number v // W of lane
v % W: a vocabulary is cut into rows of W tokens, so that maxima and sums run down the rows, along
whole vectors, and not along them, which XLA's CPU back-end does one number at a time.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_jax.models.transformer import Transformer

# Finding the k largest of V costs W + k * V / W comparisons, which is least for W = sqrt(k * V).
# Within these ends a width that divides V is better than that one: without tokens that are not
# real, all scores need not be written out again.
LANES = 256
LEAST, MOST = 128, 1024

Scores = Float[Array, "N I W"]


def read_out(model: Transformer, hidden_ND: Float[Array, "N D"]) -> Scores:
    """Returns the scores of every token, -inf after the last one."""
    scores_NV = model.logits(hidden_ND)
    N, V = scores_NV.shape
    lanes = count_lanes(V)
    missing = ((0, 0), (0, -V % lanes))
    return jnp.pad(scores_NV, missing, constant_values=-jnp.inf).reshape(N, -1, lanes)


def count_lanes(vocab_size: int) -> int:
    """Returns the width nearest to LANES that divides the vocabulary, if there is one."""
    if vocab_size <= LANES:
        return vocab_size
    even = (width for width in range(LEAST, MOST + 1) if vocab_size % width == 0)
    return min(even, key=lambda width: abs(width - LANES), default=LANES)


def peaks(scores_NIW: Scores) -> Float[Array, "N 1 1"]:
    """Returns the largest score of each row."""
    return jnp.max(jnp.max(scores_NIW, axis=1, keepdims=True), axis=2, keepdims=True)


def normalizers(scores_NIW: Scores) -> Float[Array, " N"]:
    """Returns log(sum(exp(scores))): a score less this is a log-probability, never above 0."""
    peak = peaks(scores_NIW)
    total = jnp.sum(jnp.sum(jnp.exp(scores_NIW - peak), axis=1), axis=1)
    return peak[:, 0, 0] + jnp.log(total)


def top(
    scores_BMIW: Float[Array, "B M I W"], start_BM: Float[Array, "B M"], k: int
) -> tuple[Float[Array, "B k"], Int[Array, "B k"], Int[Array, "B k"]]:
    """Finds the k largest of `start + scores` in each row, over all beams and tokens.

    They lie in the k lanes of largest maximum, so only those are searched.

    Returns:
      The values, largest first; the beam of each; and its token. Where there are fewer than k, the
      rest of the values is -inf.
    """
    B, M, size, W = scores_BMIW.shape
    lane_peaks = start_BM[:, :, None] + jnp.max(scores_BMIW, axis=2)
    _, at = top_k(lane_peaks.reshape(B, M * W), min(k, M * W))
    beam, lane = at // W, at % W
    found_BkI = scores_BMIW[jnp.arange(B)[:, None], beam, :, lane]
    values_BkI = jnp.take_along_axis(start_BM, beam, axis=1)[:, :, None] + found_BkI
    values, at = top_k(values_BkI.reshape(B, -1), k)
    chosen, number = at // size, at % size
    beam, lane = (jnp.take_along_axis(x, chosen, axis=1) for x in (beam, lane))
    return values, beam, number * W + lane


def top_k(values_BN: Float[Array, "B N"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Returns the k largest of each row and their columns, earlier ones first among equals.

    Of fewer than k the rest is -inf, at column 0.
    """
    values, at = jax.lax.top_k(values_BN, min(k, values_BN.shape[1]))
    missing = ((0, 0), (0, k - values.shape[1]))
    return jnp.pad(values, missing, constant_values=-jnp.inf), jnp.pad(at, missing)
