"""Ways of computing `attend`, all with the same arguments and results."""

from collections.abc import Callable

from attn_jax.config import ModelConfig
from attn_jax.models.kernels.blockwise import attend_blockwise
from attn_jax.models.kernels.cudnn import attend_cudnn, refuse_unfit
from attn_jax.models.kernels.dense import attend_dense

KERNELS = {"dense": attend_dense, "blockwise": attend_blockwise, "cudnn": attend_cudnn}

# From here on blockwise is the faster one, and dense needs much memory.
LONG = 1024


def choose_kernel(name: str, T: int, S: int) -> Callable:
    """Returns the kernel that `model.attention` names, for T queries and S keys."""
    if name == "auto":
        name = "blockwise" if min(T, S) >= LONG else "dense"
    return KERNELS[name]


def check_kernel(config: ModelConfig) -> None:
    """Raises InputError if the kernel that the config names cannot run here."""
    if config.attention == "cudnn":
        refuse_unfit(config.dtype, config.d_model // config.num_heads)
