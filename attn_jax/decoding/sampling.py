"""Greedy decoding: the whole generation is one jitted loop over `step(tokens, cache)`."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer


def _last(tokens: Tokens) -> tuple[Tokens, Int[Array, "B 1"]]:
    """Returns each row's last real token, [B, 1], and its column."""
    columns = jnp.arange(tokens.ids.shape[1])[None, :]
    last = jnp.max(jnp.where(tokens.segments != 0, columns, 0), axis=1, keepdims=True)
    return jax.tree.map(lambda x: jnp.take_along_axis(x, last, axis=1), tokens), last


def _greedy(
    model: Transformer, prompt: Tokens, source: Tokens | None, max_new: int, eos: int, pad: int
) -> Int[Array, "B max_new"]:
    batch, length = prompt.ids.shape
    prompt = model.fill_blocks(prompt)
    cache = model.start(batch, length + max_new - 1, source)  # the last token is not read again
    hidden, cache = model.step(prompt, cache)
    token, column = _last(prompt)
    hidden = jnp.take_along_axis(hidden, column[:, :, None], axis=1)[:, 0]

    def write(i, hidden, written, finished):
        best = jnp.argmax(model.logits(hidden), axis=-1).astype(jnp.int32)
        best = jnp.where(finished, pad, best)
        written = jax.lax.dynamic_update_slice(written, best[:, None], (0, i))
        return best, written, finished | (best == eos)

    def unfinished(state):
        i, *_, finished = state
        return (i < max_new) & ~jnp.all(finished)

    def write_one(state):
        i, best, token, cache, written, finished = state
        # Rows go on from their own last token; a finished row reads padding that none sees.
        token = Tokens(
            ids=best[:, None],
            positions=token.positions + 1,
            segments=jnp.where(finished, 0, 1)[:, None],
            blocks=token.blocks + 1,
        )
        hidden, cache = model.step(token, cache)
        best, written, finished = write(i, hidden[:, 0], written, finished)
        return i + 1, best, token, cache, written, finished

    written = jnp.full((batch, max_new), pad, jnp.int32)
    best, written, finished = write(0, hidden, written, token.segments[:, 0] == 0)
    state = (jnp.int32(1), best, token, cache, written, finished)
    return jax.lax.while_loop(unfinished, write_one, state)[4]


@partial(jax.jit, static_argnums=(0, 4, 5, 6))
def _greedy_jit(graph, params, prompt, source, max_new, eos, pad):
    return _greedy(nnx.merge(graph, params), prompt, source, max_new, eos, pad)


def greedy(
    model: Transformer,
    prompt: Tokens,
    source: Tokens | None = None,
    *,
    max_new: int,
    eos: int,
    pad: int,
) -> Int[Array, "B max_new"]:
    """Continues each prompt with the likeliest token, until <eos> or `max_new` tokens.

    Args:
      model: any architecture with `start` and `step`.
      prompt: [B, P] of any lengths, padding (segment 0) on the right.
      source: what an encoder-decoder reads.
      max_new: most tokens written a row.
      eos: the id that ends a row; it is part of the result.
      pad: the id written after that.

    Raises:
      InputError: prompt and `max_new` - 1 together exceed the learned position table.
    """
    graph, params = nnx.split(model)
    return _greedy_jit(graph, params, prompt, source, max_new, eos, pad)
