"""Norms, MLP, dropout, and the one Block that every architecture is made of."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn_jax.config import ModelConfig
from attn_jax.models import initializers
from attn_jax.models.attention import Attention, KeysValues
from attn_jax.models.cache import Cache, Memory
from attn_jax.models.positions import Rotation
from attn_jax.models.tokens import Tokens


def dense_kernels(params: Any) -> Any:
    """Marks the kernels of dense layers: not norms, biases, embeddings or position tables."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "kernel" in jax.tree_util.keystr(path), params
    )


def make_norm(config: ModelConfig, rngs: nnx.Rngs) -> nnx.Module:
    """Returns the layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019)."""
    dtype = jnp.dtype(config.dtype)  # of the output; statistics are float32 either way
    if config.norm == "rms":
        return nnx.RMSNorm(config.d_model, dtype=dtype, rngs=rngs)
    return nnx.LayerNorm(config.d_model, use_bias=config.bias, dtype=dtype, rngs=rngs)


def dropout(x_ND: Float[Array, "N D"], rate: float, key: Array | None) -> Float[Array, "N D"]:
    """Zeroes elements with probability `rate` (to the nearest 1/256) and rescales the rest.

    Each random word serves four elements: drawing bits is what dropout costs.
    """
    dropped = round(rate * 256)
    if key is None or dropped == 0:
        return x_ND
    N, D = x_ND.shape
    words = jax.random.bits(key, (N, -(-D // 4)), jnp.uint32)
    draws = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(N, -1)[:, :D]
    return jnp.where(draws >= dropped, x_ND * (256 / (256 - dropped)), 0).astype(x_ND.dtype)


class MLP(nnx.Module):
    """Two dense layers around a nonlinearity; SwiGLU (Shazeer 2020) has a gate beside it."""

    def __init__(self, config: ModelConfig, out_init, rngs: nnx.Rngs):
        self.activation = config.activation
        dense = {"use_bias": config.bias, "dtype": jnp.dtype(config.dtype), "rngs": rngs}
        width = config.d_ff * (2 if self.activation == "swiglu" else 1)
        self.up = nnx.Linear(config.d_model, width, kernel_init=initializers.scaled(), **dense)
        self.down = nnx.Linear(config.d_ff, config.d_model, kernel_init=out_init, **dense)

    def __call__(self, x_ND: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """Applies the MLP to every position."""
        h_NF = self.up(x_ND)
        if self.activation == "swiglu":
            gate, h_NF = jnp.split(h_NF, 2, axis=-1)
            h_NF = jax.nn.silu(gate) * h_NF
        else:
            h_NF = {"gelu": jax.nn.gelu, "relu": jax.nn.relu}[self.activation](h_NF)
        return self.down(materialize(h_NF))


def materialize(x: Array) -> Array:
    """Keeps XLA from recomputing `x` inside each of its consumers, which is slower."""
    return jax.lax.optimization_barrier(x)


class Block(nnx.Module):
    """Self-attention, optional cross-attention, MLP: each a residual branch with its norm."""

    def __init__(self, config: ModelConfig, *, cross: bool, rngs: nnx.Rngs):
        self.rate = config.dropout
        self.pre = config.norm_position == "pre"
        # Branch outputs start small enough that the residual sum keeps unit scale (GPT-2).
        branches = (3 if cross else 2) * config.num_layers
        out_init = initializers.scaled(1 / branches)
        self.norm_attention = make_norm(config, rngs)
        self.attention = Attention(config, out_init, rngs=rngs)
        if cross:
            self.norm_cross = make_norm(config, rngs)
            self.cross = Attention(config, out_init, cross=True, rngs=rngs)
        self.norm_mlp = make_norm(config, rngs)
        self.mlp = MLP(config, out_init, rngs)

    def __call__(
        self,
        x_ND: Float[Array, "N D"],
        tokens: Tokens,
        layer: int,
        *,
        rotation: Rotation | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
        key: Array | None = None,
        capture: list | None = None,
    ) -> tuple[Float[Array, "N D"], KeysValues]:
        """Applies the block.

        Args:
          x_ND: the residual stream.
          tokens: fields of these N = B*T positions.
          layer: which layer of the memory and of the cache is this block's.
          rotation: rotary angles of the positions, if that is the scheme.
          memory: the encoded source, for cross-attention.
          cache: what was read before; its tokens already hold these ones.
          key: of the dropout; None turns it off.
          capture: see `attend`; self-attention comes before cross-attention.

        Returns:
          The residual stream, and this layer's keys and values (all those in the cache, if any).
        """
        B = tokens.ids.shape[0]
        seen = tokens if cache is None else cache.seen()
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)

        h_ND = self._enter(self.norm_attention, x_ND)
        q, *layer_kv = self.attention.self_projections(h_ND, B, rotation)
        if cache is not None:
            layer_kv = cache.write_layer(layer, layer_kv)
        y_ND = self.attention(q, *layer_kv, tokens, seen, capture)
        x_ND = self._leave(self.norm_attention, x_ND, y_ND, keys[0])

        if memory is not None:
            q = self.cross.cross_queries(self._enter(self.norm_cross, x_ND), B)
            y_ND = self.cross(q, *memory.layers[layer], tokens, memory.tokens, capture)
            x_ND = self._leave(self.norm_cross, x_ND, y_ND, keys[1])

        y_ND = self.mlp(self._enter(self.norm_mlp, x_ND))
        return self._leave(self.norm_mlp, x_ND, y_ND, keys[2]), tuple(layer_kv)

    def _enter(self, norm: nnx.Module, x_ND: Array) -> Array:
        return materialize(norm(x_ND)) if self.pre else x_ND

    def _leave(self, norm: nnx.Module, x_ND: Array, y_ND: Array, key: Array | None) -> Array:
        x_ND = x_ND + dropout(y_ND, self.rate, key)
        return x_ND if self.pre else materialize(norm(x_ND))
