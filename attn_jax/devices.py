"""Work on rows, spread over all local devices: each has its share, and waits for no other."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

AXIS = "rows"
MOST_CORES = 4  # that become devices, as each reads all parameters


def cores() -> list[int]:
    """Returns the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def use_cores() -> None:
    """Makes a device of each core of a CPU, up to four, before anything runs on one.

    One device leaves cores idle wherever a product is too small for several threads. Where
    JAX_NUM_CPU_DEVICES or its XLA flag says how many there are, it stays so.
    """
    by_flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if jax.config.jax_num_cpu_devices < 0 and not by_flag:
        jax.config.update("jax_num_cpu_devices", min(len(cores()), MOST_CORES))


@cache
def local_mesh() -> Mesh:
    """Returns the devices of this process, as a mesh with the axis `rows`."""
    devices = jax.local_devices()
    return jax.make_mesh((len(devices),), (AXIS,), (AxisType.Auto,), devices=devices)


def replicate(params: Any) -> Any:
    """Puts params on each device, once for many calls; does nothing to what is there.

    The devices of a CPU share one copy, which may fit the cache that their cores share.
    """
    if jax.default_backend() == "cpu":
        params = jax.tree.map(_as_it_lies, params)
    return jax.device_put(params, NamedSharding(local_mesh(), PartitionSpec()))


def _as_it_lies(x: Array) -> np.ndarray | Array:
    """Returns a view of x, which each device of a CPU takes without a copy."""
    # Under a caller's jit there is nothing to view.
    return x if isinstance(x, jax.core.Tracer) else np.asarray(x)


def over_rows(function: Callable, shared: Any, rows: Any) -> Any:
    """Returns `function(shared, rows)`, of which each device computes some rows; called under jit.

    Nothing is exchanged, also at the end, so that no device waits in a program for a slow one. So
    the rows of the result are as they were dealt, until it went through `in_order`.

    Args:
      function: of arrays that all rows share, and of arrays whose first axis is rows, [B, ..]; it
        returns such arrays too, and no row depends on another.
      shared: any tree.
      rows: any tree; copies of the last row fill it up, so that each device has as many.
    """
    mesh = local_mesh()
    if mesh.size == 1:
        return function(shared, rows)
    B = jax.tree.leaves(rows)[0].shape[0]
    dealt = np.minimum(_dealt(B, mesh.size), B - 1)
    rows = jax.tree.map(lambda x: x[dealt], rows)
    specs = {"in_specs": (PartitionSpec(), PartitionSpec(AXIS)), "out_specs": PartitionSpec(AXIS)}
    return jax.shard_map(function, mesh=mesh, check_vma=False, **specs)(shared, rows)


def in_order(found: Any, count: int) -> Any:
    """Returns what a program has of `over_rows`, its `count` rows as they were given to that.

    With several devices it is fetched for that, so it waits for all of them.
    """
    mesh = local_mesh()
    if mesh.size == 1:
        return found
    places = np.argsort(_dealt(count, mesh.size))[:count]

    def put(x: Array) -> Array:
        # Under a caller's jit there is nothing to fetch.
        return x[places] if isinstance(x, jax.core.Tracer) else jnp.asarray(np.asarray(x)[places])

    return jax.tree.map(put, found)


def _dealt(count: int, devices: int) -> np.ndarray:
    """Returns the rows of the first device, then of the second ..; some may be beyond `count`.

    They are dealt one by one, as neighbours are often as long as each other.
    """
    most = -(-count // devices)
    return np.arange(most * devices).reshape(most, devices).T.reshape(-1)
