"""The one train step, a pure function of (state, text)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array

from attn_jax.config import Config
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.objectives import Objective
from attn_jax.objectives.batch import Batch
from attn_jax.objectives.losses import token_losses
from attn_jax.training.state import TrainState

StepFn = Callable[[TrainState, Tokens | Pair], tuple[TrainState, dict[str, Array]]]


@dataclass(frozen=True)
class StepSpec:
    """The static side of a step."""

    graph: nnx.GraphDef
    objective: Objective
    optimizer: optax.GradientTransformation
    config: Config


def step_keys(seed: Array | int, step: Array | int) -> Array:
    """Returns the keys of a step, from 0: of the objective's masking, and of dropout."""
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), step))


def training_progress(step: Array | int, steps: int) -> Array | float:
    """Returns 0 at the first of all steps, 1 at the last."""
    return step / max(steps - 1, 1)


def make_step(spec: StepSpec, axis_name: str | None = None) -> StepFn:
    """Returns `step(state, text) -> (state, sums of the window)`.

    Masking and dropout are keyed by (seed, step). Losses and gradients are summed over
    micro-batches and devices, and divided once by the sum of all weights.

    Args:
      spec: model, objective, optimizer and config.
      axis_name: the axis to sum over under pmap; under jit the compiler does that.
    """
    config = spec.config

    def step(state: TrainState, text: Tokens | Pair):
        mask_key, dropout_key = step_keys(state.seed, state.step)
        first_row = 0
        if axis_name:
            device = jax.lax.axis_index(axis_name)
            first_row = device * jax.tree.leaves(text)[0].shape[0]
            dropout_key = jax.random.fold_in(dropout_key, device)
        progress = training_progress(state.step, config.train.steps)
        batch = spec.objective(text, mask_key, first_row, progress)
        sums, grads = _sums_and_gradients(spec, state.params, batch, dropout_key)
        if axis_name:
            sums, grads = jax.lax.psum((sums, grads), axis_name)
        total = jnp.maximum(sums["weight"], 1.0)
        grads = jax.tree.map(lambda g: g / total, grads)
        sums |= {"grad_norm": optax.tree.norm(grads), "steps": jnp.float32(1)}
        updates, opt_state = spec.optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        fresh = state.step % config.train.log_every == 0
        window = {k: jnp.where(fresh, 0, state.window[k]) + sums[k] for k in sums}
        # A copy of the sums: the state's own buffers are donated to the next step.
        return TrainState(state.step + 1, state.seed, params, opt_state, window), dict(window)

    return step


def _sums_and_gradients(
    spec: StepSpec, params: Any, batch: Batch, key: Array
) -> tuple[dict[str, Array], Any]:
    """Returns loss sums and the gradient of the summed loss, over all micro-batches."""
    count = spec.config.train.accumulate
    key = key if spec.config.model.dropout else None

    def one(params, batch, key):
        model = nnx.merge(spec.graph, params)
        losses = token_losses(model, batch, key, spec.config.objective.label_smoothing)
        sums = losses.sums()
        return sums["loss"], sums

    gradient = jax.grad(one, has_aux=True)
    if count == 1:
        grads, sums = gradient(params, batch, key)
        return sums, grads

    def add(total, piece):
        index, batch = piece
        grads, sums = gradient(
            params, batch, None if key is None else jax.random.fold_in(key, index)
        )
        return jax.tree.map(jnp.add, total, (sums, grads)), None

    pieces = jax.tree.map(lambda x: _cut(x, count), batch)
    shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda x: x[0], pieces), key)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes[::-1])
    return jax.lax.scan(add, zeros, (jnp.arange(count), pieces))[0]


def _cut(x: Array, count: int) -> Array:
    """Deals the rows into `count` equal pieces, padding with rows of zeros (no weight).

    Piece i has every `count`-th row from i on: of rows that are spread over devices, each device
    then holds its share of every piece.
    """
    missing = -x.shape[0] % count
    x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1)
