"""Data parallelism: the same step under jit over a mesh, or under pmap."""

from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from attn_jax.models.tokens import Pair, Tokens
from attn_jax.training.state import TrainState
from attn_jax.training.step import StepFn, StepSpec, make_step


@runtime_checkable  # so that annotations can be checked
class Parallel(Protocol):
    """How a step runs on all devices."""

    def compile(self, spec: StepSpec) -> StepFn:
        """Returns the step, jitted, its state donated."""

    def put_state(self, state: TrainState) -> TrainState:
        """Puts a state on all devices."""

    def put_batch(self, text: Tokens | Pair) -> Tokens | Pair:
        """Spreads this process's numpy rows over its devices, padded with empty rows."""

    def get(self, tree: Any) -> Any:
        """Returns one whole copy of anything that is the same on all devices."""


def pad_rows(tree: Any, multiple: int) -> Any:
    """Pads numpy arrays with rows of zeros (segment 0, no weight) to a multiple of rows."""

    def pad(x: np.ndarray) -> np.ndarray:
        missing = -x.shape[0] % multiple
        return np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) if missing else x

    return jax.tree.map(pad, tree)


class Jit:
    """jit over a mesh with the axis `data`; the compiler places all communication."""

    def __init__(self):
        mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self.rows = NamedSharding(mesh, PartitionSpec("data"))

    def compile(self, spec: StepSpec) -> StepFn:
        """Returns the step under jit."""
        out = (self.replicated, self.replicated)
        return jax.jit(make_step(spec), donate_argnums=0, out_shardings=out)

    def put_state(self, state: TrainState) -> TrainState:
        """Replicates the state over the mesh."""
        return jax.device_put(state, self.replicated)

    def put_batch(self, text: Tokens | Pair) -> Tokens | Pair:
        """Makes the global batch out of the rows of each process."""
        text = pad_rows(text, jax.local_device_count())
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(self.rows, x), text)

    def get(self, tree: Any) -> Any:
        """Returns this process's first copy."""
        return jax.tree.map(lambda x: x.addressable_data(0), tree)


class Pmap:
    """The thin adapter to pmap: a leading device axis, and sums over the axis `data`."""

    def compile(self, spec: StepSpec) -> StepFn:
        """Returns the step under pmap."""
        return jax.pmap(make_step(spec, axis_name="data"), axis_name="data", donate_argnums=0)

    def put_state(self, state: TrainState) -> TrainState:
        """Puts one copy on each device, laid out as pmap leaves it: else it compiles twice."""
        devices = jax.local_devices()
        rows = NamedSharding(Mesh(devices, ("data",)), PartitionSpec("data"))

        def replicate(x: Array) -> Array:
            copies = [jax.device_put(x[None], device) for device in devices]
            shape = (len(devices), *x.shape)
            return jax.make_array_from_single_device_arrays(shape, rows, copies)

        return jax.tree.map(replicate, state)

    def put_batch(self, text: Tokens | Pair) -> Tokens | Pair:
        """Cuts the rows into one group a device."""
        count = jax.local_device_count()
        text = pad_rows(text, count)
        return jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), text)

    def get(self, tree: Any) -> Any:
        """Returns the first device's copy."""
        return jax.tree.map(lambda x: x[0], tree)


def make_parallel(name: str) -> Parallel:
    """Returns the way of running that `train.parallel` names."""
    return {"jit": Jit, "pmap": Pmap}[name]()
