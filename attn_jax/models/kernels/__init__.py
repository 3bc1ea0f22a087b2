"""Ways of computing `attend`, all with the same arguments and results."""

from collections.abc import Callable

from attn_jax.models.kernels.blockwise import attend_blockwise
from attn_jax.models.kernels.cudnn import attend_cudnn
from attn_jax.models.kernels.dense import attend_dense

KERNELS = {"dense": attend_dense, "blockwise": attend_blockwise, "cudnn": attend_cudnn}

# From here on blockwise is the faster one, and dense needs much memory.
LONG = 1024


def choose_kernel(name: str, T: int, S: int) -> Callable:
    """Returns the kernel that `model.attention` names, for T queries and S keys."""
    if name == "auto":
        name = "blockwise" if min(T, S) >= LONG else "dense"
    return KERNELS[name]
