"""What one more token costs in short and in long generations, with and without its attention."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from attn_jax.benchmark.decode import DecodeShape, generate, random_model
from attn_jax.benchmark.measure import Budget, finish, peak_mib, time_steps
from attn_jax.decoding.prompts import read_prompt
from attn_jax.models.kernels import choose_kernel
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer

LENGTHS = (32, 128, 512)  # tokens generated a row


@partial(jax.jit, static_argnums=(0, 3))
def _attend_only(graph: Any, params: Any, prompt: Tokens, shape: DecodeShape) -> Array:
    """Writes to the cache and attends over it, as generation does in every layer and step."""
    model = nnx.merge(graph, params)
    c, B, M = model.config, shape.batch_size, shape.beam_size
    started = read_prompt(model, prompt, None, shape.target_length, M)
    cache = started.cache.fork(M) if M > 1 else started.cache
    H, G, K = c.num_heads, c.num_kv_heads or c.num_heads, c.d_model // c.num_heads
    kernel = choose_kernel("dense", M, cache.tokens.ids.shape[1])

    def step(i: Array, state: tuple) -> tuple:
        cache, x_BHMK = state
        ids = jnp.zeros((B, M), jnp.int32)
        tokens = started.following(i, ids, ids == 0)
        cache, layers = cache.write_tokens(tokens), []
        for layer in range(c.num_layers):
            new = x_BHMK[:, :G]
            layers.append(cache.write_layer(layer, (new, new)))
            # What comes out is read next, so that nothing can be left out or done at once.
            x_BHMK = kernel(x_BHMK, *layers[-1], tokens, cache.seen())
        return cache.advance(tuple(layers), M), x_BHMK

    state = (cache, jnp.ones((B, H, M, K), c.dtype))
    return jax.lax.fori_loop(0, shape.target_length - 1, step, state)[1]


def attend_only(model: Transformer, prompt: Tokens, shape: DecodeShape) -> Array:
    """Does the self-attention of a whole generation, and nothing else of it.

    Args:
      model: of any sizes, its cache a full one.
      prompt: [B, 1].
      shape: of the generation.
    """
    return _attend_only(*nnx.split(model), prompt, shape)


def per_token(whole: list[float], one: float, lengths: tuple[int, ...]) -> list[float]:
    """Returns the seconds of each further token: of whole generations, less one of one token."""
    return [(seconds - one) / (n - 1) for seconds, n in zip(whole, lengths, strict=True)]


def run(preset: str, shape: DecodeShape, budget: Budget, dtype: str = "float32") -> dict[str, Any]:
    """Times whole generations of 32, 128 and 512 tokens, and their attention alone; prints a table.

    A step of the loop attends to all slots of its cache, as many as there will be tokens, so the
    attention of a token grows with the length. The rest should not.

    Args:
      preset: a name in DECODE, of the model's sizes.
      shape: of the batch; its target length is not read.
      budget: of each measurement.
      dtype: of activations.

    Returns:
      The report. `results` has, for each length, milliseconds of one more token of every row, of
      them its attention, and the rest; `growth` is how much more each is at the last length than at
      the first.

    Raises:
      InputError: there is no such preset, dtype or beam size.
    """
    model, prompt, source = random_model(preset, shape, dtype)

    def seconds(name: str, length: int) -> float:
        of_length = replace(shape, target_length=length)
        if name == "attention":
            work = partial(attend_only, model, prompt, of_length)
        else:
            work = partial(generate, model, prompt, source, of_length)
        # The fastest: differences of medians are lost in what else the machine does.
        return min(time_steps(work, budget, f"{name} {length}"))

    rows = {}
    for name in ("whole", "attention"):
        measured = [seconds(name, length) for length in LENGTHS]
        rows[name] = per_token(measured, seconds(name, 1), LENGTHS)
    rows["rest"] = [a - b for a, b in zip(rows["whole"], rows["attention"], strict=True)]
    milliseconds = {name: [1e3 * x for x in row] for name, row in rows.items()}
    growth = {name: row[-1] / row[0] for name, row in rows.items()}
    print(table(milliseconds, growth))
    report = {"kind": "lengths", "name": preset, "dtype": dtype, "beam_size": shape.beam_size}
    report |= {"batch_size": shape.batch_size, "source_length": shape.source_length}
    results = {"lengths": list(LENGTHS)} | {f"{k}_ms": v for k, v in milliseconds.items()}
    return finish(report | {"results": results, "growth": growth, "peak_mib": peak_mib()})


def table(milliseconds: dict[str, list[float]], growth: dict[str, float]) -> str:
    """Returns a Markdown table, a line for the whole, its attention and the rest."""
    names = " | ".join(f"{length} tokens" for length in LENGTHS)
    lines = [f"| ms a token of every row | {names} | last / first |"]
    lines.append("|---" * (len(LENGTHS) + 2) + "|")
    for name, row in milliseconds.items():
        values = " | ".join(f"{x:.3f}" for x in row)
        lines.append(f"| {name} | {values} | {growth[name]:.2f} |")
    return "\n".join(lines)
