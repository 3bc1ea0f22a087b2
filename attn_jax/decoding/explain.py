"""What a text that was written is like to the model: read again at once, each token by its past."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer


class Explanation(NamedTuple):
    """What is known of each token that was written.

    log_probs: [B, max_new], float32, given all before it; 0 after <eos>. Their sum is what beam
      search ranks by.
    attention: [L, B, H, max_new, S], to the source, of the position that each token was predicted
      from; 0 after <eos>. None where there is no cross-attention.
    """

    log_probs: Float[Array, "B max_new"]
    attention: Float[Array, "L B H max_new S"] | None


def is_written(ids: Int[Array, "B max_new"], eos: int) -> Bool[Array, "B max_new"]:
    """Returns True up to the first <eos>, which is included."""
    ends = ids == eos
    return jnp.cumsum(ends, axis=1) - ends == 0


@partial(jax.jit, static_argnums=(0, 5))
def _explain(graph, params, prompt, written, source, eos):
    model = nnx.merge(graph, params)
    prompt = model.fill_blocks(prompt)
    P, max_new = prompt.ids.shape[1], written.shape[1]
    columns = jnp.arange(P)[None, :]
    last = jnp.max(jnp.where(prompt.segments != 0, columns, 0), axis=1, keepdims=True)
    real = is_written(written, eos) & jnp.any(prompt.segments != 0, axis=1, keepdims=True)

    def go_on(field: Array, by: int = 1) -> Array:
        return jnp.take_along_axis(field, last, axis=1) + by * (1 + jnp.arange(max_new)[None, :])

    fields = go_on(prompt.positions), real.astype(jnp.int32), go_on(prompt.blocks)
    new = Tokens(written, *fields, None if prompt.sides is None else go_on(prompt.sides, 0))
    tokens = jax.tree.map(lambda a, b: jnp.concatenate([a, b[:, :-1]], axis=1), prompt, new)
    captured = [] if model.config.architecture == "encoder_decoder" else None
    hidden = model(tokens, source, capture=captured)
    # The first token follows from the last real one of the prompt, each other from the one before.
    later = jnp.broadcast_to(jnp.arange(P, P + max_new - 1), (len(last), max_new - 1))
    at = jnp.concatenate([last, later], axis=1)

    hidden = jnp.take_along_axis(hidden, at[:, :, None], axis=1)
    log_probs = jax.nn.log_softmax(model.logits(hidden))
    log_probs = jnp.take_along_axis(log_probs, written[:, :, None], axis=2)[:, :, 0]
    log_probs = jnp.where(real, log_probs, 0.0)
    if not captured:
        return Explanation(log_probs, None)
    attention = jnp.stack(captured[1::2])  # each layer's comes after its self-attention
    attention = jnp.take_along_axis(attention, at[None, :, None, :, None], axis=3)
    return Explanation(log_probs, jnp.where(real[None, :, None, :, None], attention, 0.0))


def explain(
    model: Transformer,
    prompt: Tokens,
    written: Int[Array | np.ndarray, "B max_new"],
    source: Tokens | None = None,
    *,
    eos: int,
) -> Explanation:
    """Reads prompts with what was written after them, in one pass and without a cache.

    Args:
      model: any architecture.
      prompt: [B, P], as it was given to the decoding.
      written: what came out: <eos> ends a row.
      source: what an encoder-decoder read.
      eos: the id that ends a row.

    Raises:
      InputError: the text exceeds the learned position table.
    """
    graph, params = nnx.split(model)
    return _explain(graph, params, prompt, jnp.asarray(written), source, eos)
