"""Linear probe: can a linear classifier read labels off the frozen hidden states?"""

from functools import partial

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize
from scipy.special import logsumexp

from attn_jax.evaluation.labelled import Classification, Sequences, mean_hidden, read_all


class Probe(Classification):
    """Accuracy of logistic regression; the parameters of the model stay as they are."""

    def _logits(self, params: dict, mask: str, y: np.ndarray) -> np.ndarray:
        train, test = (self._features(params, mask, x) for x in (self._train, self._test))
        center, scale = train.mean(0), train.std(0) + 1e-6
        weights = fit_logistic((train - center) / scale, y, len(self._labels))
        return _logits((test - center) / scale, weights)

    def _features(self, params: dict, mask: str, sequences: Sequences) -> np.ndarray:
        """Returns the mean hidden state of each text, [N, D]."""
        read = partial(_read, self._subject.graph, mask, params)
        return read_all(read, sequences, self._limit).astype(np.float64)


def fit_logistic(x: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """Returns the weights [D + 1, classes] of logistic regression, the bias last.

    Minimizes the summed cross-entropy plus half the squared weights (bias excluded), which has
    one minimum; found by L-BFGS.

    Args:
      x: features, [N, D].
      y: class of each, [N].
      classes: how many there are.
    """
    one_hot = np.eye(classes)[y]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(-1, classes)
        logits = _logits(x, weights)
        log_probs = logits - logsumexp(logits, axis=1, keepdims=True)
        error = np.exp(log_probs) - one_hot
        gradient = np.vstack([x.T @ error + weights[:-1], error.sum(0)])
        loss = -(log_probs * one_hot).sum() + (weights[:-1] ** 2).sum() / 2
        return loss, gradient.ravel()

    start = np.zeros((x.shape[1] + 1) * classes)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return found.x.reshape(-1, classes)


def _logits(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return x @ weights[:-1] + weights[-1]


@partial(jax.jit, static_argnums=(0, 1))
def _read(
    graph: nnx.GraphDef, mask: str, params: dict, ids: Int[Array, "B T"], lengths: Array
) -> Float[Array, "B D"]:
    return mean_hidden(nnx.merge(graph, params), ids, lengths, mask)
