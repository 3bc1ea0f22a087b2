"""All that changes while training: what a checkpoint must hold to go on bit for bit."""

from typing import Any

import jax.numpy as jnp
import optax
from flax import nnx, struct
from jaxtyping import Array, Int, UInt

from attn_jax.models.transformer import Transformer

SUMS = ("nll", "correct", "loss", "weight", "grad_norm", "steps")


@struct.dataclass
class TrainState:
    """A pytree of arrays.

    step:      updates done.
    seed:      of masking and dropout; not in the program, so that all seeds share a compiled one.
    params:    nested dict of float32 arrays.
    opt_state: of optax.
    window:    sums since the last logged step, so that a run stopped between two logs resumes
               with the same log.
    """

    step: Int[Array, ""]
    seed: UInt[Array, ""]
    params: Any
    opt_state: optax.OptState
    window: dict[str, Array]


def split_model(model: Transformer) -> tuple[nnx.GraphDef, dict]:
    """Returns the static graph and the parameters as plain nested dicts, for `nnx.merge`."""
    graph, params = nnx.split(model)
    return graph, nnx.to_pure_dict(params)


def new_state(params: dict, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """Returns the state before the first step."""
    window = {name: jnp.float32(0) for name in SUMS}
    return TrainState(jnp.int32(0), jnp.uint32(seed), params, optimizer.init(params), window)
