"""Encoder, Decoder and EncoderDecoder: the same blocks under different fields."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from attn_jax.config import ModelConfig
from attn_jax.errors import InputError
from attn_jax.models import initializers
from attn_jax.models.cache import Cache, Memory, empty_tokens
from attn_jax.models.layers import Block, dropout, make_norm
from attn_jax.models.positions import rotation, sinusoidal
from attn_jax.models.tokens import Tokens


class Stack(nnx.Module):
    """Positions, blocks and, for pre-norm, a last norm."""

    def __init__(self, config: ModelConfig, *, cross: bool = False, rngs: nnx.Rngs):
        self.config = config
        if config.positions == "learned":
            init = initializers.normal(config.d_model**-0.5)
            table = init(rngs.params(), (config.max_length, config.d_model), jnp.float32)
            self.positions = nnx.Param(table)
        self.blocks = nnx.List(
            [Block(config, cross=cross, rngs=rngs) for _ in range(config.num_layers)]
        )
        self.last_norm = make_norm(config, rngs) if config.norm_position == "pre" else None

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        tokens: Tokens,
        *,
        memory: Memory | None = None,
        cache: Cache | None = None,
        key: Array | None = None,
        capture: list | None = None,
    ) -> tuple[Float[Array, "B T D"], Cache | None]:
        """Turns embedded tokens into hidden states; arguments as in `Block`."""
        B, T, D = x_BTD.shape
        keys = (None,) * (len(self.blocks) + 1)
        if key is not None:
            keys = jax.random.split(key, len(self.blocks) + 1)
        if cache is None:  # which was checked when it was made
            check_length(self.config, T)
        x_BTD = self._add_positions(x_BTD, tokens).astype(self.config.dtype)
        # [N, D] from here on: with three axes XLA's CPU back-end transposes every weight gradient.
        x_ND = dropout(x_BTD.reshape(B * T, D), self.config.dropout, keys[-1])
        shared = {"memory": memory, "cache": cache, "capture": capture}
        if self.config.positions == "rotary":
            shared["rotation"] = rotation(tokens.positions, D // self.config.num_heads)
        # Decoding and captured weights need what each layer leaves behind.
        scanned = self.config.scan_layers and cache is None and capture is None
        x_ND, layers = (self._scan if scanned else self._loop)(x_ND, tokens, keys, shared)
        if self.last_norm is not None:
            x_ND = self.last_norm(x_ND)
        cache = cache.advance(layers, T) if cache is not None else None
        return x_ND.reshape(B, T, D), cache

    def _loop(self, x_ND: Array, tokens: Tokens, keys: Array | tuple, shared: dict) -> tuple:
        """Applies the blocks; returns the residual stream and each layer's keys and values."""
        layers = []
        # What is captured must not stay behind in a function that is traced again.
        wrap = self._rematerialized if shared["capture"] is None else lambda apply: apply
        for i, block in enumerate(self.blocks):
            apply = wrap(
                lambda x_ND, key, block=block, i=i: block(x_ND, tokens, i, key=key, **shared)
            )
            x_ND, layer_kv = apply(x_ND, keys[i])
            layers.append(layer_kv)
        return x_ND, tuple(layers)

    def _scan(self, x_ND: Array, tokens: Tokens, keys: Array | tuple, shared: dict) -> tuple:
        """Does the same with one compiled block; keeps no keys and values."""
        graphs, params = zip(*map(nnx.split, self.blocks), strict=True)
        memory = shared["memory"]

        def apply(x_ND, layer):
            params, key, layer_kv = layer
            options = shared
            if memory is not None:
                options = shared | {"memory": Memory(memory.tokens, (layer_kv,))}
            return nnx.merge(graphs[0], params)(x_ND, tokens, 0, key=key, **options)[0], None

        stacked = jax.tree.map(lambda *layers: jnp.stack(layers), *params)
        layer_kvs = None
        if memory is not None:
            layer_kvs = jax.tree.map(lambda *layers: jnp.stack(layers), *memory.layers)
        keys = None if keys[0] is None else keys[: len(self.blocks)]
        return jax.lax.scan(self._rematerialized(apply), x_ND, (stacked, keys, layer_kvs))[0], ()

    def _rematerialized(self, apply: Callable) -> Callable:
        if self.config.remat == "none":
            return apply
        keep_products = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(
            apply, policy=keep_products if self.config.remat == "products" else None
        )

    def _add_positions(self, x_BTD: Array, tokens: Tokens) -> Array:
        if self.config.positions == "sinusoidal":
            return x_BTD + sinusoidal(tokens.positions, self.config.d_model)
        if self.config.positions == "learned":
            return x_BTD + self.positions[...][tokens.positions]
        return x_BTD


def check_length(config: ModelConfig, length: int) -> None:
    """Raises InputError if a sequence would run off the learned position table."""
    if config.positions == "learned" and length > config.max_length:
        raise InputError(
            f"a sequence of {length} tokens is longer than the learned position table, "
            f"model.max_length = {config.max_length}"
        )


class Transformer(nnx.Module):
    """What all three architectures share: one embedding, and the verbs that callers use.

    model(tokens, source) -> hidden states;  logits(hidden);  start(...) -> Cache;
    step(tokens, cache) -> hidden states and cache. Callers never ask which architecture it is.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, rngs: nnx.Rngs):
        self.config = config
        # Scaled by sqrt(D) on the way in and used as it is on the way out (tied), the table gives
        # unit-size embeddings and unit-size logits.
        init = initializers.normal(config.d_model**-0.5)
        table = init(rngs.params(), (vocab_size, config.d_model), jnp.float32)
        self.embedding = nnx.Param(table)
        if config.side_embeddings:
            table = init(rngs.params(), (2, config.d_model), jnp.float32)
            self.side_embedding = nnx.Param(table)

    def embed(
        self, ids: Int[Array, "B T"], sides: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T D"]:
        """Returns embeddings in float32, each of unit size: of ids and, if there are any, of sides.

        Raises:
          ValueError: the model has embeddings of sides, and there are no `sides`.
        """
        x_BTD = self.embedding[...][ids]
        if self.config.side_embeddings:
            if sides is None:
                raise ValueError("side_embeddings need tokens that tell their sides")
            x_BTD += self.side_embedding[...][sides]
        return x_BTD * self.config.d_model**0.5

    def logits(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Returns float32 scores of every vocabulary entry."""
        table_DV = self.embedding[...].astype(hidden.dtype).T
        return jnp.matmul(hidden, table_DV, preferred_element_type=jnp.float32)

    def start(
        self,
        batch: int,
        capacity: int,
        source: Tokens | None = None,
        *,
        prompt: int | None = None,
        beams: int = 1,
    ) -> Cache:
        """Returns an empty cache; a source is encoded once, here.

        Args:
          batch: rows.
          capacity: most tokens of a text. Without `prompt` there is a slot for each.
          source: what an encoder-decoder reads.
          prompt: tokens, padding included, read at once, at first, before those that come one by
            one, without padding; a model with a window then keeps only what it sees, in a ring.
          beams: texts that a row will be forked into after its prompt.

        Raises:
          InputError: the learned position table is shorter than `capacity`.
        """
        c = self.config
        check_length(c, capacity)
        prompt = capacity if prompt is None else prompt
        steps = capacity - prompt
        kept = min(steps, c.window or steps)
        slots = prompt + beams * kept
        shape = (batch * (c.num_kv_heads or c.num_heads), slots, c.d_model // c.num_heads)
        layer = (jnp.zeros(shape, c.dtype), jnp.zeros(shape, c.dtype))
        memory = self.encode(source) if source is not None else None
        return Cache(
            tokens=empty_tokens(batch, slots),
            cursor=jnp.int32(0),
            layers=(layer,) * c.num_layers,
            memory=memory,
            window=c.window if kept < steps else 0,
        )

    def encode(self, source: Tokens, **options) -> Memory | None:
        """Returns the source as the decoder sees it; None where there is no cross-attention."""
        return None

    @staticmethod
    def fill_blocks(tokens: Tokens) -> Tokens:
        """Sets the architecture's own mask, here causal, where the tokens leave it open."""
        return tokens if tokens.blocks is not None else tokens.causal()


class SingleStack(Transformer):
    """What Encoder and Decoder share, which is everything but the mask of open `blocks`."""

    def __init__(self, config: ModelConfig, vocab_size: int, rngs: nnx.Rngs):
        super().__init__(config, vocab_size, rngs)
        self.stack = Stack(config, rngs=rngs)

    def __call__(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        key: Array | None = None,
        capture: list | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns hidden states.

        Args:
          tokens: [B, T]; their `blocks`, if set, overrule the architecture's own mask.
          source: not used by a single stack.
          key: of the dropout; None turns it off.
          capture: a list that each layer's attention weights, [B, H, T, T], are appended to.
        """
        x_BTD, tokens = self._enter(tokens)
        return self.stack(x_BTD, tokens, key=key, capture=capture)[0]

    def step(self, tokens: Tokens, cache: Cache) -> tuple[Float[Array, "B T D"], Cache]:
        """Reads `tokens` [B, T] after all that the cache holds; returns their hidden states.

        The caller sees to it that T more slots are free: the cursor is not known when this is
        compiled. Raises InputError as `Cache.write_tokens` does.
        """
        x_BTD, tokens = self._enter(tokens)
        cache = cache.write_tokens(tokens)
        return self.stack(x_BTD, tokens, cache=cache)

    def _enter(self, tokens: Tokens) -> tuple[Array, Tokens]:
        """Embeds tokens, and leaves them the fields that masks and positions depend on."""
        x_BTD = self.embed(tokens.ids, tokens.sides)
        return x_BTD, self.fill_blocks(tokens).replace(sides=None)


class Encoder(SingleStack):
    """A stack in which every token sees both sides (BERT), unless its `blocks` say otherwise."""

    @staticmethod
    def fill_blocks(tokens: Tokens) -> Tokens:
        """Makes tokens bidirectional where their `blocks` are open."""
        return tokens if tokens.blocks is not None else tokens.bidirectional()


class Decoder(SingleStack):
    """A stack in which tokens see themselves and their left (GPT), unless `blocks` say otherwise.

    Its parameters are those of an Encoder, one for one: weights move from one to the other.
    """


class EncoderDecoder(Transformer):
    """A bidirectional encoder, and a causal decoder with cross-attention to its output.

    With `share_sides` both are the same blocks, of which the decoder alone uses the
    cross-attention (Raffel et al. 2020, section 3.2.2).
    """

    def __init__(self, config: ModelConfig, vocab_size: int, rngs: nnx.Rngs):
        super().__init__(config, vocab_size, rngs)
        if config.share_sides:
            # A block leaves its cross-attention out where there is no memory.
            self.encoder = self.decoder = Stack(config, cross=True, rngs=rngs)
        else:
            self.encoder = Stack(config, rngs=rngs)
            self.decoder = Stack(config, cross=True, rngs=rngs)

    def __call__(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        key: Array | None = None,
        capture: list | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns hidden states of the target `tokens` [B, T] given the `source` [B, S].

        `capture` receives the weights of each decoder layer, self- before cross-attention; the
        encoder's are captured by `encode`.

        Raises:
          ValueError: there is no source.
        """
        if source is None:
            raise ValueError("an EncoderDecoder needs a source")
        encoder_key, decoder_key = (None, None) if key is None else jax.random.split(key)
        memory = self.encode(source, key=encoder_key)
        tokens = self.fill_blocks(tokens)
        x_BTD = self.embed(tokens.ids)
        return self.decoder(x_BTD, tokens, memory=memory, key=decoder_key, capture=capture)[0]

    def encode(self, source: Tokens, **options) -> Memory:
        """Returns the source's keys and values for every decoder layer; options as in `Stack`."""
        source = source.bidirectional()
        hidden_BSD, _ = self.encoder(self.embed(source.ids), source, **options)
        B, S, D = hidden_BSD.shape
        x_ND = hidden_BSD.reshape(B * S, D)
        layers = tuple(b.cross.memory_projections(x_ND, B) for b in self.decoder.blocks)
        return Memory(source, layers)

    def step(self, tokens: Tokens, cache: Cache) -> tuple[Float[Array, "B T D"], Cache]:
        """As that of one stack: reads `tokens` [B, T] of the target; T slots must be free."""
        tokens = self.fill_blocks(tokens)
        cache = cache.write_tokens(tokens)
        return self.decoder(self.embed(tokens.ids), tokens, memory=cache.memory, cache=cache)


ARCHITECTURES = {"encoder": Encoder, "decoder": Decoder, "encoder_decoder": EncoderDecoder}


def build_model(config: ModelConfig, vocab_size: int, seed: int = 0) -> Transformer:
    """Returns the architecture that `config.architecture` names, with fresh parameters."""
    return ARCHITECTURES[config.architecture](config, vocab_size, nnx.Rngs(seed))
