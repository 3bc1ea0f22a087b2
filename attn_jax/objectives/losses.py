"""Cross-entropy as sums: (sum, weight) pairs that are divided once, over everything."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from attn_jax.models.transformer import Transformer
from attn_jax.objectives.batch import Batch


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
    logits = model.logits(hidden.reshape(B * N, D)).reshape(B, N, -1)
    log_total = jax.nn.logsumexp(logits, axis=-1)
    target = jnp.take_along_axis(logits, batch.targets[:, :, None], axis=-1)[:, :, 0]
    nll = log_total - target
    # The best guess, up to exact ties: argmax costs as much as a layer on CPU.
    correct = (target >= jnp.max(logits, axis=-1)).astype(jnp.float32)
    loss = nll
    if label_smoothing:
        evenly = log_total - jnp.mean(logits, axis=-1)
        loss = (1 - label_smoothing) * nll + label_smoothing * evenly
    return TokenLosses(nll, correct, loss, batch.weights)
