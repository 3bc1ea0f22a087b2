"""Greedy decoding and sampling: the whole generation is one jitted loop over `step`."""

import dataclasses
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn_jax.decoding.prompts import Prepared, prepare, read_prompt
from attn_jax.decoding.vocabulary import Scores, peaks, read_out, top
from attn_jax.devices import in_order, over_rows
from attn_jax.errors import InputError
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer

MAX_SEED = 2**31 - 1


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen: the filters apply in this order, each to what is left so far."""

    temperature: float = 0.0  # logits are divided by it; 0: the likeliest token, always (greedy)
    top_k: int = 0  # only the k likeliest tokens (Fan et al. 2018); 0: all
    top_p: float = 1.0  # only the fewest likeliest that hold this share (Holtzman et al. 2020)
    min_p: float = 0.0  # only tokens this likely, relative to the likeliest (Nguyen et al. 2024)
    seed: int = 0  # with the index of the text and the step it decides what is drawn

    def __post_init__(self):
        """Raises InputError for a value that is not allowed, or that would be ignored."""
        warm = self.temperature == 0 or 1e-3 <= self.temperature <= 1e3
        self._check("temperature", warm, "0, or from 0.001 to 1000")
        self._check("top_k", self.top_k >= 0, "at least 0, which keeps all")
        self._check("top_p", 0 < self.top_p <= 1, "above 0 and at most 1, which keeps all")
        self._check("min_p", 0 <= self.min_p <= 1, "from 0, which keeps all, to 1")
        self._check("seed", 0 <= self.seed <= MAX_SEED, f"from 0 to {MAX_SEED}")
        for name in ("top_k", "top_p", "min_p", "seed") if self.temperature == 0 else ():
            unused = getattr(self, name) == getattr(Sampling, name)
            self._check(name, unused, "temperature > 0 with it; at 0 nothing is drawn")

    def _check(self, name: str, good: bool, allowed: str) -> None:
        if not good:
            raise InputError(f"{name} = {getattr(self, name)!r}: expected {allowed}")


GREEDY = Sampling()


def probabilities(scores_WIN: Scores, sampling: Sampling) -> Scores:
    """Returns what tokens are drawn by: probabilities up to a factor, 0 where filtered out.

    Tokens that are exactly as likely as the last one that a filter keeps are kept too.
    """
    weights = jnp.exp((scores_WIN - peaks(scores_WIN)) / sampling.temperature)
    if sampling.top_k:
        count = jnp.full(weights.shape[2], sampling.top_k, jnp.float32)
        weights = _keep_largest(weights, jnp.ones_like(weights), count)
    if sampling.top_p < 1:
        share = sampling.top_p * jnp.sum(weights, axis=(0, 1))
        weights = _keep_largest(weights, weights, share)
    return jnp.where(weights >= sampling.min_p, weights, 0.0)  # the largest weight is 1


def _keep_largest(weights: Scores, measure: Scores, least: Float[Array, " N"]) -> Scores:
    """Keeps the fewest largest weights, from 0 to 1, whose measures sum up to `least`.

    Sorting a vocabulary takes long. As floats from 0 to 1 are ordered like the integers of the same
    bits, halving their range 30 times finds the last weight to keep.
    """
    bits = jax.lax.bitcast_convert_type

    def kept(lowest: Int[Array, " N"]) -> Array:
        return weights >= bits(lowest, jnp.float32)[None, None]

    def halve(_, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) // 2
        total = jnp.sum(jnp.where(kept(middle), measure, 0.0), axis=(0, 1))
        enough = total >= least
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    high = jnp.full(weights.shape[2], bits(jnp.float32(1), jnp.int32) + 1)
    lowest, _ = jax.lax.fori_loop(0, 30, halve, (jnp.zeros_like(high), high))
    return jnp.where(kept(lowest), weights, 0.0)


def draw(weights_WIN: Scores, keys: Array) -> Int[Array, " N"]:
    """Draws a token of each row by its weight: first the lane, then the token of the lane.

    Noise for every token of the vocabulary would cost more than the model.
    """
    categorical = jax.vmap(lambda key, weights: jax.random.categorical(key, jnp.log(weights)))
    first, second = jax.vmap(jax.random.split, out_axes=1)(keys)
    _, size, N = weights_WIN.shape
    lane = categorical(first, jnp.sum(weights_WIN, axis=1).T)
    number = categorical(second, weights_WIN[lane, :, jnp.arange(N)])
    return (lane * size + number).astype(jnp.int32)


def choose(scores_WIN: Scores, sampling: Sampling, keys: Array) -> Int[Array, " N"]:
    """Returns the next token of each row, given the keys of the rows at this step."""
    if sampling.temperature > 0:
        return draw(probabilities(scores_WIN, sampling), keys)
    start = jnp.zeros((scores_WIN.shape[2], 1), jnp.float32)
    return top(scores_WIN, start, 1)[2][:, 0]


def _sample(
    ready: Prepared,
    prompt: Tokens,
    source: Tokens | None,
    keys: Array,
    sampling: Sampling,
    max_new: int,
    eos: int,
    pad: int,
) -> Int[Array, "B max_new"]:
    started = read_prompt(ready.model, prompt, source, max_new)

    def write(i, hidden, written, finished):
        at_step = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
        new = jnp.where(finished, pad, choose(read_out(ready.model, hidden), sampling, at_step))
        written = jax.lax.dynamic_update_slice(written, new[:, None], (0, i))
        return new, written, finished | (new == eos)

    def unfinished(state):
        i, *_, finished = state
        return (i < max_new) & ~jnp.all(finished)

    def write_one(state):
        i, cache, new, written, finished = state
        # A finished row reads padding, which none sees.
        token = started.following(i - 1, new[:, None], ~finished[:, None])
        hidden, cache = ready.model.step(token, cache)
        return i + 1, cache, *write(i, hidden[:, 0], written, finished)

    written = jnp.full((len(keys), max_new), pad, jnp.int32)
    first = write(0, started.hidden, written, ~started.real)
    state = (jnp.int32(1), started.cache, *first)
    return jax.lax.while_loop(unfinished, write_one, state)[3]


@partial(jax.jit, static_argnums=(0, 5, 6, 7, 8))
def _sample_jit(graph, params, prompt, source, keys, sampling, max_new, eos, pad):
    def of_rows(params, rows):
        return _sample(Prepared(graph, params), *rows, sampling, max_new, eos, pad)

    return over_rows(of_rows, params, (prompt, source, keys))


@jax.jit
def _row_keys(seed: Int[Array, ""], indices: Int[Array, " B"]) -> Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), indices)


def sample(
    model: Transformer | Prepared,
    prompt: Tokens,
    source: Tokens | None = None,
    *,
    sampling: Sampling,
    indices: Int[Array | np.ndarray, " B"] | None = None,
    max_new: int,
    eos: int,
    pad: int,
) -> Int[Array, "B max_new"]:
    """Continues each prompt token by token, until <eos> or `max_new` tokens.

    Args:
      model: any architecture with `start` and `step`, or what `prepare` made of one.
      prompt: [B, P] of any lengths, with padding (segment 0) anywhere.
      source: what an encoder-decoder reads.
      sampling: how a token is chosen.
      indices: of the texts, 0.. if left out. What is drawn depends on the seed, this number and the
        step, not on the batch that a text lies in.
      max_new: most tokens written a row.
      eos: the id that ends a row; it is part of the result.
      pad: the id written after that.

    Raises:
      InputError: prompt and `max_new` - 1 together exceed the learned position table.
    """
    indices = jnp.arange(prompt.ids.shape[0]) if indices is None else jnp.asarray(indices)
    keys = _row_keys(jnp.int32(sampling.seed), indices)
    same = dataclasses.replace(sampling, seed=0)  # another seed needs no other program
    ready = prepare(model)
    found = _sample_jit(*ready, prompt, source, keys, same, max_new, eos, pad)
    return in_order(found, len(indices))


def greedy(
    model: Transformer | Prepared,
    prompt: Tokens,
    source: Tokens | None = None,
    *,
    max_new: int,
    eos: int,
    pad: int,
) -> Int[Array, "B max_new"]:
    """Continues each prompt with the likeliest token; arguments as in `sample`."""
    ends = {"max_new": max_new, "eos": eos, "pad": pad}
    return sample(model, prompt, source, sampling=GREEDY, **ends)
