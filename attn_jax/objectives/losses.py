"""Cross-entropy as sums: (sum, weight) pairs that are divided once, over everything."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from attn_jax.models.layers import materialize
from attn_jax.models.transformer import Transformer
from attn_jax.objectives.batch import Batch

MOST_LOGITS = 2**26  # 256 MiB in float32


@struct.dataclass
class TokenLosses:
    """Per target, [B, N] each: negative log-likelihood in nats, whether the best guess is right,
    the training loss in nats (smoothed), and the weight."""

    nll: Float[Array, "B N"]
    correct: Float[Array, "B N"]
    loss: Float[Array, "B N"]
    weights: Float[Array, "B N"]

    def sums(self) -> dict[str, Array]:
        """Returns the weighted sums over all targets, and the sum of the weights."""
        per_target = {"nll": self.nll, "correct": self.correct, "loss": self.loss}
        sums = {name: jnp.sum(value * self.weights) for name, value in per_target.items()}
        return sums | {"weight": jnp.sum(self.weights)}


def token_losses(
    model: Transformer, batch: Batch, key: Array | None = None, label_smoothing: float = 0.0
) -> TokenLosses:
    """Runs the model and scores every target; `key` turns dropout on."""
    hidden = model(batch.inputs, batch.source, key=key)
    if batch.at is not None:
        hidden = jnp.take_along_axis(hidden, batch.at[:, :, None], axis=1)
    B, N, D = hidden.shape
    scores = cross_entropy(
        hidden.reshape(B * N, D), model.embedding[...], batch.targets.reshape(B * N)
    )
    nll, evenly, correct = (score.reshape(B, N) for score in scores)
    loss = (1 - label_smoothing) * nll + label_smoothing * evenly if label_smoothing else nll
    return TokenLosses(nll, correct, loss, batch.weights)


def cross_entropy(
    hidden_ND: Float[Array, "N D"],
    table_VD: Float[Array, "V D"],
    targets_N: Int[Array, " N"],
    most_logits: int = MOST_LOGITS,
) -> tuple[Float[Array, " N"], Float[Array, " N"], Float[Array, " N"]]:
    """Projects onto the vocabulary and scores the targets, in float32.

    Where there would be more than `most_logits` logits, the targets are scored in pieces, whose
    logits are computed again in the backward pass.

    Returns:
      Negative log-likelihood of the target; the mean of the same over the whole vocabulary (for
      label smoothing); 1.0 where the target is the best guess, up to exact ties.
    """
    N, V = hidden_ND.shape[0], table_VD.shape[0]
    if most_logits >= N * V:
        return _cross_entropy(hidden_ND, table_VD, targets_N)
    pieces = -(-N // max(most_logits // V, 1))

    def deal(x: Array) -> Array:
        """Piece i has every `pieces`-th target: a share of it lies on each device, as of all."""
        x = jnp.pad(x, [(0, -N % pieces)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, pieces, *x.shape[1:]).swapaxes(0, 1)

    score = jax.checkpoint(lambda piece: _cross_entropy(piece[0], table_VD, piece[1]))
    scores = jax.lax.map(score, (deal(hidden_ND), deal(targets_N)))
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1)[:N], scores)


@jax.custom_vjp
def _cross_entropy(
    hidden_ND: Array, table_VD: Array, targets_N: Array
) -> tuple[Array, Array, Array]:
    """Scores all targets at once.

    The gradient is by hand: left to itself, XLA computes the softmax anew inside each of the two
    products that need it.
    """
    return _forward(hidden_ND, table_VD, targets_N)[0]


def _forward(hidden_ND: Array, table_VD: Array, targets_N: Array) -> tuple:
    table_VD = table_VD.astype(hidden_ND.dtype)
    logits = jnp.matmul(hidden_ND, table_VD.T, preferred_element_type=jnp.float32)
    best = jnp.max(logits, axis=-1)
    target = jnp.take_along_axis(logits, targets_N[:, None], axis=-1)[:, 0]
    mean = jnp.mean(logits, axis=-1)
    shares = jnp.exp(logits - best[:, None])
    total = jnp.sum(shares, axis=-1)
    log_total = best + jnp.log(total)
    # argmax would cost as much as a layer on CPU.
    correct = (target >= best).astype(jnp.float32)
    saved = (hidden_ND, table_VD, targets_N, shares, total)
    return (log_total - target, log_total - mean, correct), saved


def _backward(saved: tuple, gradients: tuple) -> tuple[Array, Array, None]:
    hidden_ND, table_VD, targets_N, shares, total = saved
    of_nll, of_mean, _ = gradients
    V = table_VD.shape[0]
    of_logits = shares * ((of_nll + of_mean) / total)[:, None] - (of_mean / V)[:, None]
    hit = jnp.arange(V)[None, :] == targets_N[:, None]
    of_logits = materialize(
        (of_logits - jnp.where(hit, of_nll[:, None], 0)).astype(hidden_ND.dtype)
    )
    of_hidden = jnp.matmul(of_logits, table_VD, preferred_element_type=jnp.float32)
    of_table = jnp.matmul(of_logits.T, hidden_ND, preferred_element_type=jnp.float32)
    return of_hidden.astype(hidden_ND.dtype), of_table, None


_cross_entropy.defvjp(_forward, _backward)
