"""Generation by an encoder-decoder with random parameters, every row to its full length."""

import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_jax.benchmark.measure import (
    FORWARD_CONVENTION,
    Budget,
    compile_ahead,
    finish,
    peak_mib,
    speed,
    time_steps,
)
from attn_jax.benchmark.presets import DECODE, choose, decode_config
from attn_jax.benchmark.roofline import ceiling
from attn_jax.decoding.beam import Beam, beam_search
from attn_jax.decoding.prompts import Prepared, prepare
from attn_jax.decoding.sampling import greedy
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer, build_model
from attn_jax.objectives.batch import Batch
from attn_jax.training.ledger import count_parameters, training_flops
from attn_jax.training.state import split_model

NEVER = -1  # taken for <eos>: no token has this id, so no row ends early


@dataclass(frozen=True)
class DecodeShape:
    """What is decoded at once."""

    beam_size: int = 1
    batch_size: int = 32  # sources
    source_length: int = 20  # tokens read a row
    target_length: int = 20  # tokens generated a row


def random_model(
    preset: str, shape: DecodeShape, dtype: str, kernel: str = "auto"
) -> tuple[Transformer, Tokens, Tokens]:
    """Returns a model with random parameters, the prompt of each row, one token, and its source.

    Args:
      preset: a name in DECODE.
      shape: of the batch.
      dtype: of activations.
      kernel: of attention, a name in KERNELS.

    Raises:
      InputError: there is no such preset or dtype.
    """
    sizes = choose("preset", preset, DECODE)
    config = replace(decode_config(sizes, dtype), attention=kernel)
    model = build_model(config, sizes.vocab)
    key = jax.random.key(0)
    ids = jax.random.randint(key, (shape.batch_size, shape.source_length), 0, sizes.vocab)
    return model, Tokens.of(ids[:, :1]).causal(), Tokens.of(ids)


def generate(
    model: Transformer | Prepared, prompt: Tokens, source: Tokens, shape: DecodeShape
) -> Int[Array, "B max_new"]:
    """Returns what the project's own decoder writes: of a beam, the best text of each source."""
    ends = {"max_new": shape.target_length, "eos": NEVER, "pad": 0}
    if shape.beam_size == 1:
        return greedy(model, prompt, source, **ends)
    return beam_search(model, prompt, source, beam=Beam(shape.beam_size), **ends).ids[:, 0]


def flops_per_token(model: Transformer, source: Tokens, shape: DecodeShape) -> float:
    """Returns the FLOPs of a generated token: a third of those of training on the same texts.

    Of a beam, each hypothesis counts as a text, the source once, and the best text's tokens as
    generated.
    """
    ids = jnp.zeros((shape.batch_size, shape.target_length), jnp.int32)
    inputs = Tokens.of(ids).causal()
    weights = jnp.ones(ids.shape, jnp.float32)
    read = source.bidirectional()
    _, params = split_model(model)

    def flops(inputs: Tokens, weights: Array) -> float:
        batch = Batch(inputs, ids, weights, source=read)
        return training_flops(model.config, params, batch) / 3

    nothing = flops(inputs.replace(segments=inputs.segments * 0), weights * 0)
    return (nothing + shape.beam_size * (flops(inputs, weights) - nothing)) / ids.size


def run(preset: str, shape: DecodeShape, budget: Budget, dtype: str = "float32") -> dict[str, Any]:
    """Times whole generations; returns the report, in which a step is one of them.

    Args:
      preset: a name in DECODE, of the model's sizes.
      shape: of the batch.
      budget: how long.
      dtype: of activations.

    Raises:
      InputError: there is no such preset, dtype or beam size.
    """
    model, prompt, source = random_model(preset, shape, dtype)

    ready = prepare(model)
    start = time.perf_counter()
    written = generate(ready, prompt, source, shape).block_until_ready()
    first = time.perf_counter() - start
    times = time_steps(lambda: generate(ready, prompt, source, shape), budget, preset)
    used = peak_mib()
    result = {
        "kind": "decode",
        "name": preset,
        "dtype": dtype,
        "parameters": count_parameters(split_model(model)[1])[0],
        "beam_size": shape.beam_size,
        "batch_size": shape.batch_size,
        "source_length": shape.source_length,
        "target_length": shape.target_length,
        "compile_s": max(first - statistics.median(times), 0.0),
        "peak_mib": used,
        "temp_mib": _temp_mib(ready, prompt, source, shape),
        "flops_per_token": flops_per_token(model, source, shape),
        "flops_convention": FORWARD_CONVENTION,
    }
    result |= speed(times, written.size)
    top = ceiling(dtype)
    achieved = result["flops_per_token"] * result["tokens_per_s"]
    result |= {"ceiling_gflops": top / 1e9, "roofline_share": achieved / top}
    return finish(result)


def _temp_mib(ready: Prepared, prompt: Tokens, source: Tokens, shape: DecodeShape) -> float:
    """Compiles the same program again, for its memory: `generate` hides its own."""

    @jax.jit
    def program(params: Any, prompt: Tokens, source: Tokens) -> Array:
        return generate(ready._replace(params=params), prompt, source, shape)

    return compile_ahead(program, ready.params, prompt, source)[1]
