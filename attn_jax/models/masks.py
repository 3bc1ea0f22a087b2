"""The one mask function: who may see whom follows from fields of the query and of the key."""

import jax
import numpy as np
from jaxtyping import Array, Bool

from attn_jax.models.tokens import Tokens


def visible(queries: Tokens, keys: Tokens, window: int = 0) -> Bool[Array | np.ndarray, "B T S"]:
    """Returns True where the query may attend to the key.

        query.segment == key.segment != 0
        and key.block <= query.block
        and (no window or |query.position - key.position| < window)

    Rows are queries, columns keys, `x` = may attend:

        bidirectional      causal             prefix of 3        blocks of 2
        blocks 0 0 0 0     blocks 0 1 2 3     blocks 0 0 0 1     blocks 0 0 1 1
        x x x x            x . . .            x x x .            x x . .
        x x x x            x x . .            x x x .            x x . .
        x x x x            x x x .            x x x .            x x x x
        x x x x            x x x x            x x x x            x x x x

        packed, causal     window 2, causal   window 2, both     padding last
        segments 1 1 2 2   segments 1 1 1 1   blocks 0 0 0 0     segments 1 1 1 0
        x . . .            x . . .            x x . .            x x x .
        x x . .            x x . .            x x x .            x x x .
        . . x .            . x x .            . x x x            x x x .
        . . x x            . . x x            . . x x            . . . .

        cross-attention: source keys have    one-row decode, cache of 4 slots:
        block 0, so 2 target rows see all    keys 0 1 2 written (segment 1), slot 3
        3 source tokens but not padding      empty (segment 0), query block 2
        x x x .                              x x x .
        x x x .

    Nothing here looks at array indices, so packing, caches, ragged prompts and windows agree.
    Fields in numpy give a mask in numpy.

    Args:
      queries: fields of the queries, [B, T]; `blocks` must be set.
      keys: fields of the keys, [B, S]; `blocks` must be set. Fields that differ between queries,
        as those of a cache with beams, are [B, T, S], or [B, 1, S] where they do not.
      window: 0 for none; else a query sees positions fewer than `window` away, on either side.
    """
    q = jax.tree.map(lambda x: x[:, :, None], queries)
    k = keys if keys.segments.ndim == 3 else jax.tree.map(lambda x: x[:, None, :], keys)
    seen = (q.segments == k.segments) & (q.segments != 0) & (k.blocks <= q.blocks)
    if window:
        seen &= abs(q.positions - k.positions) < window
    return seen
