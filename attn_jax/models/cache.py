"""What decoding remembers, as explicit pytrees."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

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
    cursor: how many slots were written so far; the next token goes to the slot of that number.
    layers: keys and values per layer, [B * G, S, K], positions applied. With one axis for both rows
            and heads XLA writes them in place; with two it copies all of them at each step where B
            or G is 1.
    memory: the encoded source, for an encoder-decoder.
    beams: the slots that hold the text of each of a row's M beams, [B, M, S]; None if a row is one
           text. Keys and values stay where they were written: when beams part or end, only this
           changes, and a slot of another beam is empty to a query.
    window: 0 if there is a slot for every token; else the cache is a ring, in which the oldest
            slot is written over, and this is the model's window.
    """

    tokens: Tokens
    cursor: Int[Array, ""]
    layers: tuple[KeysValues, ...]
    memory: Memory | None = None
    beams: Bool[Array, "B M S"] | None = None
    window: int = field(default=0, metadata={"static": True})

    def seen(self) -> Tokens:
        """Returns the fields of the slots: [B, S], or [B, M, S] as each beam sees them."""
        if self.beams is None:
            return self.tokens
        of_row = jax.tree.map(lambda x: x[:, None], self.tokens)
        return of_row.replace(segments=jnp.where(self.beams, of_row.segments, 0))

    def write_tokens(self, tokens: Tokens) -> "Cache":
        """Returns the cache with `tokens` [B, T] in the slots at the cursor.

        With beams, T is M: one token of each.

        Raises:
          InputError: more tokens than the cache has slots; or, in a ring, so many that the last
            ones would take the place of what the first ones see.
        """
        self._check_room(tokens.ids.shape[1])
        written = jax.tree.map(lambda old, new: self._put(old, new, 1), self.tokens, tokens)
        beams = self.beams
        if beams is not None:
            B, M, _ = beams.shape
            own = jnp.broadcast_to(jnp.eye(M, dtype=bool), (B, M, M))
            beams = self._put(beams, own, 2)
        return dataclasses.replace(self, tokens=written, beams=beams)

    def write_layer(self, layer: int, new: Sequence[Array]) -> KeysValues:
        """Returns the layer's keys and values, [B, G, S, K], with `new` at the cursor."""
        B, G, T, K = new[0].shape
        written = (
            self._put(old, x.astype(old.dtype).reshape(B * G, T, K), 1)
            for old, x in zip(self.layers[layer], new, strict=True)
        )
        return tuple(x.reshape(B, G, -1, K) for x in written)

    def fork(self, beams: int) -> "Cache":
        """Returns the cache of `beams` texts a row that begin with all that was written."""
        B, S = self.tokens.ids.shape
        return dataclasses.replace(self, beams=jnp.ones((B, beams, S), bool))

    def choose(self, parents: Int[Array, "B M"]) -> "Cache":
        """Returns the cache in which beam m goes on from what was beam `parents[m]`."""
        chosen = jnp.take_along_axis(self.beams, parents[:, :, None], axis=1)
        return dataclasses.replace(self, beams=chosen)

    def advance(self, layers: tuple[KeysValues, ...], by: int) -> "Cache":
        """Returns the cache with all layers replaced, [B, G, S, K] each, and the cursor moved."""
        layers = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), layers)
        return dataclasses.replace(self, layers=layers, cursor=self.cursor + by)

    def _put(self, old: Array, new: Array, axis: int) -> Array:
        """Writes `new` into the slots at the cursor; after a ring's last slot comes its first."""
        count, capacity = new.shape[axis], old.shape[axis]
        if not self.window or count == 1:
            start = self.cursor % capacity if self.window else self.cursor
            return jax.lax.dynamic_update_slice_in_dim(old, new, start, axis)
        slots = (self.cursor + jnp.arange(count)) % capacity
        return old.at[(slice(None),) * axis + (slots,)].set(new, unique_indices=True)

    def _check_room(self, new: int) -> None:
        capacity = self.tokens.ids.shape[1]
        if new > capacity:
            raise InputError(f"a prompt of {new} tokens does not fit a cache of {capacity} slots")
        beams = 1 if self.beams is None else self.beams.shape[1]
        needed = self.window * beams + new - beams
        if self.window and needed > capacity:
            raise InputError(
                f"{new} tokens at once do not fit a ring of {capacity} slots: "
                f"with model.window = {self.window} they need {needed}"
            )


def empty_tokens(batch: int, capacity: int) -> Tokens:
    """Returns [B, S] empty slots."""
    zeros = jnp.zeros((batch, capacity), jnp.int32)
    return Tokens(zeros, zeros, zeros, zeros)
