"""How every kind of decoding begins, and what it reads after that."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from attn_jax.devices import replicate
from attn_jax.models.cache import Cache
from attn_jax.models.layers import dense_kernels, materialize
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer


class Prepared(NamedTuple):
    """A model that was made ready once, for many calls.

    params: on a CPU with the kernels of dense layers as [out, in].
    """

    graph: nnx.GraphDef
    params: Any

    @property
    def model(self) -> Transformer:
        """The model again."""
        return nnx.merge(self.graph, self.params)


def prepare(model: Transformer | Prepared) -> Prepared:
    """Makes a model ready for decoding on each device; does nothing to one that is."""
    if isinstance(model, Prepared):
        return model
    graph, params = nnx.split(model)
    if jax.default_backend() == "cpu":
        graph, params = _kernels_first(nnx.merge(graph, _turn_kernels(params)))
    return Prepared(graph, replicate(params))


@jax.jit
def _turn_kernels(params: Any) -> Any:
    return jax.tree.map(lambda is_kernel, x: x.T if is_kernel else x, dense_kernels(params), params)


def _kernels_first(model: Transformer) -> tuple[nnx.GraphDef, Any]:
    for _, layer in nnx.iter_modules(model):
        if isinstance(layer, nnx.Linear):
            layer.dot_general = _kernel_first
    return nnx.split(model)


def _kernel_first(x_ND: Array, kernel_FD: Array, *_: Any, **options: Any) -> Array:
    """Returns x @ kernel.T.

    XLA's CPU back-end reads the left side of a product as it lies, but first packs the right side,
    which of a kernel takes as long as the product, if rows are few.
    """
    contracted = (((1,), (1,)), ((), ()))
    y_FN = jax.lax.dot_general(kernel_FD, x_ND, contracted, **options)
    return materialize(y_FN).T  # else XLA swaps the sides back


class Started(NamedTuple):
    """What is known once the prompts were read.

    last: [B, 1], each row's last real token.
    hidden: its hidden state, from which the first new token follows.
    cache: all that was read.
    """

    last: Tokens
    hidden: Float[Array, "B D"]
    cache: Cache

    @property
    def real(self) -> Bool[Array, " B"]:
        """False for a row without any token, which nothing can be written after."""
        return self.last.segments[:, 0] != 0

    def following(
        self, i: Int[Array, ""], ids: Int[Array, "B M"], real: Bool[Array, "B M"]
    ) -> Tokens:
        """Returns the new tokens number `i`, from 0, of M texts a row, with their fields."""
        after = 1 + i

        def go_on(x: Array) -> Array:
            return jnp.broadcast_to(x + after, ids.shape)

        positions, blocks = go_on(self.last.positions), go_on(self.last.blocks)
        sides = self.last.sides
        sides = None if sides is None else jnp.broadcast_to(sides, ids.shape)
        return Tokens(ids, positions, real.astype(jnp.int32), blocks, sides)


def read_prompt(
    model: Transformer, prompt: Tokens, source: Tokens | None, max_new: int, beams: int = 1
) -> Started:
    """Reads all prompts at once.

    Args:
      model: any architecture with `start` and `step`.
      prompt: [B, P] of any lengths, with padding (segment 0) anywhere.
      source: what an encoder-decoder reads.
      max_new: most tokens that will be written; the last of them is not read again.
      beams: texts a row that will go on from the prompt.

    Raises:
      InputError: prompt and `max_new` - 1 together exceed the learned position table.
    """
    batch, length = prompt.ids.shape
    prompt = model.fill_blocks(prompt)
    cache = model.start(batch, length + max_new - 1, source, prompt=length, beams=beams)
    hidden, cache = model.step(prompt, cache)
    columns = jnp.arange(length)[None, :]
    column = jnp.max(jnp.where(prompt.segments != 0, columns, 0), axis=1, keepdims=True)
    last = jax.tree.map(lambda x: jnp.take_along_axis(x, column, axis=1), prompt)
    hidden = jnp.take_along_axis(hidden, column[:, :, None], axis=1)[:, 0]
    return Started(last, hidden, cache)
