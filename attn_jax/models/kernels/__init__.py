"""Ways of computing `attend`, all with the same arguments and results."""

from collections.abc import Callable

from attn_jax.config import ModelConfig
from attn_jax.models.kernels.blockwise import attend_blockwise
from attn_jax.models.kernels.cudnn import attend_cudnn, refuse_unfit
from attn_jax.models.kernels.dense import attend_dense
from attn_jax.models.tokens import Tokens

KERNELS = {"dense": attend_dense, "blockwise": attend_blockwise, "cudnn": attend_cudnn}

# From here on blockwise is the faster one, and dense needs much memory.
LONG = 1024


def choose_kernel(name: str, T: int, keys: Tokens) -> Callable:
    """Returns the kernel that `model.attention` names, for T queries.

    Args:
      name: "auto" or one in KERNELS.
      T: number of queries.
      keys: fields, [B, S]; or [B, T, S] where each query has its own (a few, one a beam), which
        blockwise and cudnn cannot read: then it is dense.
    """
    S = keys.segments.shape[-1]
    if keys.segments.ndim == 3 and name in ("auto", "blockwise", "cudnn"):
        name = "dense"
    if name == "auto":
        name = "blockwise" if min(T, S) >= LONG else "dense"
    return KERNELS[name]


def check_kernel(config: ModelConfig) -> None:
    """Raises InputError if the kernel that the config names cannot run here."""
    if config.attention == "cudnn":
        refuse_unfit(config.dtype, config.d_model // config.num_heads)
