"""The scores of a whole vocabulary: how they are laid out, their sum, the largest ones.

Letters of this file: W lanes, I tokens of a lane, N rows, M beams. Token v is number v % I of lane
v // I. Rows come last, so that maxima and sums over tokens run across whole vectors of rows and not
along them, which XLA's CPU back-end does one number at a time; and so that the vocabulary is the
left side of the product, the one that this back-end reads as it lies.
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

Scores = Float[Array, "W I N"]


def read_out(model: Transformer, hidden_ND: Float[Array, "N D"]) -> Scores:
    """Returns the scores of every token, -inf after the last one."""
    scores_VN = model.logits(hidden_ND).T  # XLA swaps the sides of the product for that
    V, N = scores_VN.shape
    lanes = count_lanes(V)
    missing = ((0, -V % lanes), (0, 0))
    return jnp.pad(scores_VN, missing, constant_values=-jnp.inf).reshape(lanes, -1, N)


def count_lanes(vocab_size: int) -> int:
    """Returns the width nearest to LANES that divides the vocabulary, if there is one."""
    if vocab_size <= LANES:
        return vocab_size
    even = (width for width in range(LEAST, MOST + 1) if vocab_size % width == 0)
    return min(even, key=lambda width: abs(width - LANES), default=LANES)


def peaks(scores_WIN: Scores) -> Float[Array, "1 1 N"]:
    """Returns the largest score of each row."""
    return jnp.max(scores_WIN, axis=(0, 1), keepdims=True)


def normalizers(scores_WIN: Scores) -> Float[Array, " N"]:
    """Returns log(sum(exp(scores))): a score less this is a log-probability, never above 0."""
    peak = peaks(scores_WIN)
    return peak[0, 0] + jnp.log(jnp.sum(jnp.exp(scores_WIN - peak), axis=(0, 1)))


def top(
    scores_WIN: Scores, start_BM: Float[Array, "B M"], k: int
) -> tuple[Float[Array, "B k"], Int[Array, "B k"], Int[Array, "B k"]]:
    """Finds the k largest of `start + scores` in each row, over all beams and tokens.

    They lie in the k lanes of largest maximum, so only those are searched.

    Args:
      scores_WIN: of all rows, N = B*M.
      start_BM: what the scores of each beam are added to.
      k: how many.

    Returns:
      The values, largest first; the beam of each; and its token. Where there are fewer than k, the
      rest of the values is -inf.
    """
    (B, M), (W, size, _) = start_BM.shape, scores_WIN.shape
    lane_peaks_NW = start_BM.reshape(B * M, 1) + jnp.max(scores_WIN, axis=1).T
    _, at = top_k(lane_peaks_NW.reshape(B, M * W), min(k, M * W))
    beam, lane = at // W, at % W
    found_BkI = scores_WIN[lane, :, jnp.arange(B)[:, None] * M + beam]
    values_BkI = jnp.take_along_axis(start_BM, beam, axis=1)[:, :, None] + found_BkI
    values, at = top_k(values_BkI.reshape(B, -1), k)
    chosen, number = at // size, at % size
    beam, lane = (jnp.take_along_axis(x, chosen, axis=1) for x in (beam, lane))
    return values, beam, lane * size + number


def top_k(values_BN: Float[Array, "B N"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Returns the k largest of each row and their columns, earlier ones first among equals.

    Of fewer than k the rest is -inf, at column 0.
    """
    values, at = jax.lax.top_k(values_BN, min(k, values_BN.shape[1]))
    missing = ((0, 0), (0, k - values.shape[1]))
    return jnp.pad(values, missing, constant_values=-jnp.inf), jnp.pad(at, missing)
