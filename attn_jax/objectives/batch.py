"""What every objective returns: inputs, targets and the weight of each target."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from attn_jax.models.tokens import Tokens


@struct.dataclass
class Batch:
    """A batch ready for a model and a loss.

    inputs:  what the model reads, `blocks` set to the objective's mask.
    targets: the id to predict at each of N places of a row.
    weights: 1.0 where a target counts, 0.0 elsewhere. Not segment ids.
    at:      the columns of `inputs` whose hidden states make the N predictions; None means all.
    source:  what an encoder-decoder's encoder reads.
    """

    inputs: Tokens
    targets: Int[Array, "B N"]
    weights: Float[Array, "B N"]
    at: Int[Array, "B N"] | None = None
    source: Tokens | None = None


def row_keys(key: Array, tokens: Tokens, first_row: Array | int) -> Array:
    """Returns one key per row, by its number in the global batch.

    So a row is masked the same way on whichever device it lands.
    """
    rows = first_row + jnp.arange(tokens.ids.shape[0])
    return jax.vmap(jax.random.fold_in, (None, 0))(key, rows)
