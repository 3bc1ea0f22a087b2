"""What decoding remembers, as explicit pytrees."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_jax.errors import InputError
from attn_jax.models.attention import KeysValues
from attn_jax.models.tokens import Tokens


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Memory:
    """An encoded source as the decoder's layers see it: fields, and keys and values per layer."""

    tokens: Tokens
    layers: tuple[KeysValues, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Everything that was read or written so far.

    tokens: [B, S] ids and fields of each slot; segment 0 marks an empty slot (or padding), which
            no query sees, so ragged prompts need no other bookkeeping.
    cursor: the slot that the next token goes to, the same for all rows.
    layers: keys and values per layer, [B, G, S, K], positions applied.
    memory: the encoded source, for an encoder-decoder.
    """

    tokens: Tokens
    cursor: Int[Array, ""]
    layers: tuple[KeysValues, ...]
    memory: Memory | None = None

    def write_tokens(self, tokens: Tokens) -> "Cache":
        """Returns the cache with `tokens` [B, T] in the slots at the cursor.

        Raises:
          InputError: more tokens than the cache has slots.
        """
        capacity, new = self.tokens.ids.shape[1], tokens.ids.shape[1]
        if new > capacity:
            raise InputError(f"a prompt of {new} tokens does not fit a cache of {capacity} slots")
        written = jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, self.cursor, axis=1),
            self.tokens,
            tokens,
        )
        return dataclasses.replace(self, tokens=written)

    def write_layer(self, layer: int, new: Sequence[Array]) -> KeysValues:
        """Returns the layer's keys and values with `new` in the slots at the cursor."""
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(old, x.astype(old.dtype), self.cursor, axis=2)
            for old, x in zip(self.layers[layer], new, strict=True)
        )

    def advance(self, layers: tuple[KeysValues, ...], by: int) -> "Cache":
        """Returns the cache with all layers replaced and the cursor moved."""
        return dataclasses.replace(self, layers=layers, cursor=self.cursor + by)


def empty_tokens(batch: int, capacity: int) -> Tokens:
    """Returns [B, S] empty slots."""
    zeros = jnp.zeros((batch, capacity), jnp.int32)
    return Tokens(zeros, zeros, zeros, zeros)
