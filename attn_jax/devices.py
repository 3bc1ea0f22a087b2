"""Work on rows, spread over all local devices: each has its share, and waits for no other."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXIS = "rows"
MOST_CORES = 4  # that become devices, as each holds and reads all parameters


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
    """Puts a copy on each device, once for many calls; does nothing to what is there."""
    return jax.device_put(params, NamedSharding(local_mesh(), PartitionSpec()))


def over_rows(function: Callable, shared: Any, rows: Any) -> Any:
    """Returns `function(shared, rows)`, of which each device computes some rows; called under jit.

    Nothing is exchanged in between.

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
    # Dealt one by one: neighbours are often as long as each other.
    dealt = jnp.arange(-(-B // mesh.size) * mesh.size).reshape(-1, mesh.size).T.reshape(-1)
    rows = jax.tree.map(lambda x: x[jnp.minimum(dealt, B - 1)], rows)
    specs = {"in_specs": (PartitionSpec(), PartitionSpec(AXIS)), "out_specs": PartitionSpec(AXIS)}
    found = jax.shard_map(function, mesh=mesh, check_vma=False, **specs)(shared, rows)
    return jax.tree.map(lambda x: x[jnp.argsort(dealt)[:B]], found)
