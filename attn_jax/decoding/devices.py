"""All local devices decode: each has its share of the rows, and a loop of its own over them."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXIS = "rows"


@cache
def local_mesh() -> Mesh:
    """Returns the devices of this process, as a mesh with the axis `rows`."""
    devices = jax.local_devices()
    return jax.make_mesh((len(devices),), (AXIS,), (AxisType.Auto,), devices=devices)


def replicate(params: Any) -> Any:
    """Puts a copy on each device, once for many calls."""
    return jax.device_put(params, NamedSharding(local_mesh(), PartitionSpec()))


def over_rows(function: Callable, shared: Any, rows: Any) -> Any:
    """Returns `function(shared, rows)`, of which each device computes some rows; called under jit.

    Nothing is exchanged in between, so that no device waits for the texts of another.

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
