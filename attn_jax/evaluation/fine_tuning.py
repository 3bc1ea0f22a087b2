"""Fine-tuning: how well does the whole model learn to classify, from where it stands?"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int
from tqdm import tqdm

from attn_jax.evaluation.labelled import Classification, mean_hidden, read_all, stack

ROWS = 32  # texts of an update
WARMUP_SHARE = 0.1  # of the updates; then the learning rate falls to 0 along a cosine
CLIP_NORM = 1.0


class _Tuning(NamedTuple):
    """The static side of an update."""

    graph: nnx.GraphDef
    mask: str
    rate: float
    steps: int
    dropout: bool

    def optimizer(self) -> optax.GradientTransformation:
        warmup = max(round(WARMUP_SHARE * self.steps), 1)
        rate = optax.warmup_cosine_decay_schedule(
            self.rate / warmup, self.rate, warmup, max(self.steps, warmup + 1)
        )
        return optax.chain(optax.clip_by_global_norm(CLIP_NORM), optax.adam(rate))


class _State(NamedTuple):
    """What an update changes: `params` are those of the model and of the linear layer on top."""

    params: dict[str, Any]
    opt_state: optax.OptState
    step: Int[Array, ""]


class FineTuning(Classification):
    """Accuracy after training all parameters, and a linear layer on top, on the first file.

    As Devlin et al. 2019 do, but that the states of all tokens are averaged, which favours
    neither mask. Each mask starts from the same parameters; those of the run stay as they are.
    """

    longest = 512

    def _logits(self, params: dict, mask: str, y: np.ndarray) -> np.ndarray:
        config = self._subject.config
        seed, epochs = config.train.seed, config.eval.tune_epochs
        tuning = _Tuning(
            self._subject.graph,
            mask,
            config.eval.tune_learning_rate,
            steps=epochs * -(-len(y) // ROWS),
            dropout=config.model.dropout > 0,
        )
        classes = len(self._labels)
        kernel = jnp.zeros((config.model.d_model, classes))
        head = {"kernel": kernel, "bias": jnp.zeros((1, classes))}
        # A copy: the buffers are donated to the first update.
        trained = jax.tree.map(jnp.copy, {"model": params, "head": head})
        state = _State(trained, tuning.optimizer().init(trained), jnp.int32(0))
        shown = {"desc": f"fine-tuning, {mask}", "total": tuning.steps, "leave": False}
        for chosen in tqdm(_orders(len(y), epochs, seed), **shown):
            ids, lengths = stack([self._train[i] for i in chosen], ROWS, self._limit)
            labels = np.zeros(ROWS, np.int32)
            labels[: len(chosen)] = y[chosen]
            state = _update(tuning, state, seed, ids, lengths, labels)
        read = partial(_read, tuning, state.params)
        return read_all(read, self._test, self._limit)


def _orders(count: int, epochs: int, seed: int) -> Iterator[np.ndarray]:
    """Yields the numbers of the texts of each update."""
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(count)
        for start in range(0, count, ROWS):
            yield order[start : start + ROWS]


def _classify(
    tuning: _Tuning, params: dict, ids: Array, lengths: Array, key: Array | None = None
) -> Float[Array, "B C"]:
    model, head = nnx.merge(tuning.graph, params["model"]), params["head"]
    return mean_hidden(model, ids, lengths, tuning.mask, key) @ head["kernel"] + head["bias"]


_read = jax.jit(_classify, static_argnums=0)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _update(
    tuning: _Tuning,
    state: _State,
    seed: Int[Array, ""],
    ids: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    labels: Int[Array, " B"],
) -> _State:
    key = jax.random.fold_in(jax.random.key(seed), state.step) if tuning.dropout else None
    real = lengths > 0

    def loss(params: dict) -> Array:
        logits = _classify(tuning, params, ids, lengths, key)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.sum(jnp.where(real, losses, 0)) / jnp.sum(real)

    updates, opt_state = tuning.optimizer().update(
        jax.grad(loss)(state.params), state.opt_state, state.params
    )
    return _State(optax.apply_updates(state.params, updates), opt_state, state.step + 1)
