"""Tokens: ids and the three fields per token from which every attention mask follows."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

# Shape letters used throughout the package:
#   B batch   T query length   S key length   D model width   H query heads   G key-value heads
#   K head width   F feed-forward width   V vocabulary   L layers   N = B*T positions


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tokens:
    """A batch of token sequences with what attention must know about each token.

    ids:       which token.
    positions: 0.. within each segment.
    segments:  0 = padding; 1.. = which document of a packed row.
    blocks:    visibility order, a query sees a key iff `key.block <= query.block`. None leaves the
               choice to the model: an `Encoder` fills in 0s, a `Decoder` fills in positions.
    sides:     of joined pairs, 0 = source and 1 = target: what `model.side_embeddings` looks up.
               No mask depends on it.
    """

    ids: Int[Array, "B T"]
    positions: Int[Array, "B T"]
    segments: Int[Array, "B T"]
    blocks: Int[Array, "B T"] | None = None
    sides: Int[Array, "B T"] | None = None

    @classmethod
    def of(cls, ids: Int[Array, "B T"], real: Bool[Array, "B T"] | None = None) -> "Tokens":
        """Makes one-document rows; `real` is False at padding, and all True when left out."""
        positions = jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32), ids.shape)
        if real is None:
            return cls(ids, positions, jnp.ones(ids.shape, jnp.int32))
        # Counting real tokens keeps positions right wherever the padding lies.
        positions = jnp.maximum(jnp.cumsum(real, axis=1, dtype=jnp.int32) - 1, 0)
        return cls(ids, positions, real.astype(jnp.int32))

    def replace(self, **changes: Array | None) -> "Tokens":
        """Returns a copy with the given fields changed."""
        return dataclasses.replace(self, **changes)

    def bidirectional(self) -> "Tokens":
        """Every token sees every token of its segment (BERT)."""
        return self.replace(blocks=jnp.zeros_like(self.positions))

    def causal(self) -> "Tokens":
        """Every token sees itself and the tokens before it (GPT)."""
        return self.replace(blocks=self.positions)

    def prefix(self, lengths: Int[Array, "B T"] | Int[Array, "B 1"] | int) -> "Tokens":
        """The first `lengths` tokens of each segment see each other; the rest is causal.

        A length of 1 (or 0) is causal, a length of T is bidirectional.
        """
        return self.replace(blocks=jnp.maximum(self.positions - lengths + 1, 0))

    def block_causal(self, size: int) -> "Tokens":
        """Tokens see their own block of `size` tokens and all blocks before it."""
        return self.replace(blocks=self.positions // size)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pair:
    """A batch of sentence pairs, several to a row: what translation objectives take.

    source: `w1 .. wn <eos>`;  target: `<bos> w1 .. wm <eos>`; a pair has one segment in both.
    """

    source: Tokens
    target: Tokens
