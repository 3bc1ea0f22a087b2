"""Cross-entropy as sums: (sum, weight) pairs that are divided once, over everything."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from attn_jax.models.layers import materialize
from attn_jax.models.transformer import Transformer
from attn_jax.objectives.batch import Batch


@struct.dataclass
class TokenLosses:
    """What each target costs, [B, N], and the training loss of all.

    nll: negative log-likelihood in nats.
    correct: whether the best guess is right.
    weights: what each target counts.
    total: the weighted sum of the training losses (smoothed) in nats. It alone has a gradient.
    """

    nll: Float[Array, "B N"]
    correct: Float[Array, "B N"]
    weights: Float[Array, "B N"]
    total: Float[Array, ""]

    def sums(self) -> dict[str, Array]:
        """Returns the weighted sums over all targets, and the sum of the weights."""
        per_target = {"nll": self.nll, "correct": self.correct}
        sums = {name: jnp.sum(value * self.weights) for name, value in per_target.items()}
        return sums | {"loss": self.total, "weight": jnp.sum(self.weights)}


def token_losses(
    model: Transformer, batch: Batch, key: Array | None = None, label_smoothing: float = 0.0
) -> TokenLosses:
    """Runs the model and scores every target; `key` turns dropout on."""
    hidden = model(batch.inputs, batch.source, key=key)
    if batch.at is not None:
        hidden = jnp.take_along_axis(hidden, batch.at[:, :, None], axis=1)
    B, N, D = hidden.shape
    targets, weights = (x.reshape(B * N) for x in (batch.targets, batch.weights))
    total, (nll, correct) = cross_entropy(
        hidden.reshape(B * N, D), model.embedding[...], targets, weights, label_smoothing
    )
    return TokenLosses(nll.reshape(B, N), correct.reshape(B, N), batch.weights, total)


def most_logits() -> int:
    """Returns how many logits there may be at once: what a CPU's caches hold, 256 MiB elsewhere."""
    return 2**22 if jax.default_backend() == "cpu" else 2**26


def cross_entropy(
    hidden_ND: Float[Array, "N D"],
    table_VD: Float[Array, "V D"],
    targets_N: Int[Array, " N"],
    weights_N: Float[Array, " N"],
    label_smoothing: float = 0.0,
    most: int | None = None,
) -> tuple[Float[Array, ""], tuple[Float[Array, " N"], Float[Array, " N"]]]:
    """Projects onto the vocabulary and scores the targets, in float32.

    Targets are scored in pieces, of which no logits outlive their turn: where a gradient is wanted,
    each piece leaves its share of it behind (Hsu et al. 2024).

    Args:
      hidden_ND: the last layer.
      table_VD: the vocabulary.
      targets_N: ids.
      weights_N: of the targets in the total.
      label_smoothing: the probability that is spread evenly over the vocabulary.
      most: logits at once; `most_logits()` by default.

    Returns:
      The weighted sum of the losses; and, without a gradient, the negative log-likelihood of each
      target, and 1.0 where it is the best guess, up to exact ties.
    """
    most = most or most_logits()
    total, scores = _cross_entropy(hidden_ND, table_VD, targets_N, weights_N, label_smoothing, most)
    return total, jax.lax.stop_gradient(scores)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _cross_entropy(hidden_ND, table_VD, targets_N, weights_N, smoothing, most) -> tuple:
    table_VD = table_VD.astype(hidden_ND.dtype)
    arrays, N = _deal((hidden_ND, targets_N), most // len(table_VD)), len(targets_N)
    scores = jax.lax.map(lambda piece: _score(table_VD, *piece, smoothing)[0], arrays)
    loss, nll, correct = _gather(scores, N)
    return jnp.sum(loss * weights_N), (nll, correct)


def _forward(hidden_ND, table_VD, targets_N, weights_N, smoothing, most) -> tuple:
    table_VD = table_VD.astype(hidden_ND.dtype)

    def add(of_table_DV: Array, piece: tuple) -> tuple[Array, tuple]:
        hidden_PD, targets_P, weights_P = piece
        scores, softmax = _score(table_VD, hidden_PD, targets_P, smoothing)
        of_logits_PV = _gradient(softmax, targets_P, weights_P, smoothing).astype(hidden_PD.dtype)
        of_logits_PV = materialize(of_logits_PV)  # else computed in each of the two products
        # XLA's CPU back-end is slow to turn a left side itself; this one is small.
        of_table_DV += _product(materialize(hidden_PD.T), of_logits_PV)
        return of_table_DV, (scores, _product(of_logits_PV, table_VD).astype(hidden_PD.dtype))

    arrays = _deal((hidden_ND, targets_N, weights_N), most // len(table_VD))
    nothing_DV = jnp.zeros(table_VD.shape[::-1], jnp.float32)
    of_table_DV, left = jax.lax.scan(add, nothing_DV, arrays)
    (loss, nll, correct), of_hidden_ND = _gather(left, len(targets_N))
    total = jnp.sum(loss * weights_N)
    return (total, (nll, correct)), (of_hidden_ND, of_table_DV.T, loss)


def _backward(smoothing: float, most: int, saved: tuple, gradients: tuple) -> tuple:
    of_hidden_ND, of_table_VD, loss = saved
    of_total, _ = gradients
    of_hidden_ND = (of_hidden_ND * of_total).astype(of_hidden_ND.dtype)
    return of_hidden_ND, of_table_VD * of_total, None, loss * of_total


_cross_entropy.defvjp(_forward, _backward)


def _score(table_VD: Array, hidden_PD: Array, targets_P: Array, smoothing: float) -> tuple:
    """Returns (loss, nll, correct) of each target, and the softmax as (numerators, their sum)."""
    logits_PV = _product(hidden_PD, table_VD.T)
    best_P = jnp.max(logits_PV, axis=-1)
    target_P = jnp.take_along_axis(logits_PV, targets_P[:, None], axis=-1)[:, 0]
    shares_PV = jnp.exp(logits_PV - best_P[:, None])
    sum_P = jnp.sum(shares_PV, axis=-1)
    log_sum_P = best_P + jnp.log(sum_P)
    nll_P = loss_P = log_sum_P - target_P
    if smoothing:
        # The mean logit, without another pass over the logits.
        mean_P = hidden_PD @ jnp.mean(table_VD, axis=0, dtype=jnp.float32)
        loss_P = (1 - smoothing) * nll_P + smoothing * (log_sum_P - mean_P)
    # argmax would cost as much as a layer on CPU.
    correct_P = (target_P >= best_P).astype(jnp.float32)
    return (loss_P, nll_P, correct_P), (shares_PV, sum_P)


def _gradient(softmax: tuple, targets_P: Array, weights_P: Array, smoothing: float) -> Array:
    """Returns the gradient of the weighted loss with respect to the logits."""
    shares_PV, sum_P = softmax
    of_logits_PV = shares_PV * (weights_P / sum_P)[:, None]
    V = shares_PV.shape[1]
    if smoothing:
        of_logits_PV -= (weights_P * (smoothing / V))[:, None]
    hit_PV = jnp.arange(V)[None, :] == targets_P[:, None]
    return of_logits_PV - jnp.where(hit_PV, (weights_P * (1 - smoothing))[:, None], 0)


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _deal(arrays: tuple, most_rows: int) -> tuple:
    """Cuts [N, ...] into pieces, [pieces, P, ...]; what is missing in the last has weight 0.

    Piece i has every `pieces`-th target: of rows spread over devices, each holds a share of it.
    """

    def deal(x: Array) -> Array:
        pieces = -(-len(x) // max(most_rows, 1))
        x = jnp.pad(x, [(0, -len(x) % pieces)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, pieces, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(deal, arrays)


def _gather(pieces: tuple, N: int) -> tuple:
    """Undoes `_deal`."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:])[:N], pieces)
