"""Texts in, texts out: batching by length around every kind of decoding."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from attn_jax.data.tokenizers import Tokenizer
from attn_jax.decoding.beam import Beam, beam_search
from attn_jax.decoding.sampling import GREEDY, Sampling, sample
from attn_jax.errors import InputError
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer
from attn_jax.objectives import Objective

ROWS = 64  # texts decoded at once ...
POSITIONS = 64 * 256  # ... fewer, if they and their results would take more than this
WIDTH = 16  # lengths are rounded up to a multiple, so that few shapes compile

Search = Sampling | Beam


def make_search(beam_size: int, length_penalty: float, **sampling: float | int) -> Search:
    """Returns beam search for `beam_size` > 1, else sampling, or greedy decoding.

    Args:
      beam_size: see `Beam`.
      length_penalty: see `Beam`.
      sampling: fields of `Sampling`.

    Raises:
      InputError: a value is not allowed, or would be ignored beside the others.
    """
    if beam_size == 1:
        if length_penalty != Beam.length_penalty:
            raise InputError(f"length_penalty = {length_penalty!r}: expected beam_size > 1 with it")
        return Sampling(**sampling)
    for name, value in sampling.items():
        if value != getattr(Sampling, name):
            raise InputError(f"{name} = {value!r}: expected beam_size = 1 with it, not {beam_size}")
    return Beam(beam_size, length_penalty)


def generate_texts(
    model: Transformer,
    objective: Objective,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    max_new: int,
    search: Search = GREEDY,
) -> Iterator[tuple[int, str]]:
    """Yields `(index, translation or continued text)` of each text, shortest texts first.

    Args:
      model: trained with `objective`.
      objective: one on pairs translates; one on text continues from `<bos> text`.
      tokenizer: of the run.
      texts: sources or beginnings.
      max_new: most tokens that are written.
      search: how; greedy if left out. What is drawn depends on the seed and a text's index only.
    """
    specials = tokenizer.specials
    if objective.kind == "pair":
        read = [[*tokenizer.encode(text), specials.eos] for text in texts]
    else:
        read = [[specials.bos, *tokenizer.encode(text)] for text in texts]
    order = np.argsort([len(ids) for ids in read], kind="stable")
    while len(order):
        beams = search.size if isinstance(search, Beam) else 1
        rows = _rows([len(read[i]) for i in order[:ROWS]], beams * max_new)
        chosen, order = order[:rows], order[rows:]
        sequences = [read[i] for i in chosen]
        tokens = _pad(sequences, specials.pad, (rows, _width(model, sequences, max_new)))
        prompt, source = objective.prompt(tokens)
        # Rows left over are empty, so that nothing waits for them.
        left_over = jnp.arange(rows)[:, None] >= len(chosen)
        prompt = prompt.replace(segments=jnp.where(left_over, 0, prompt.segments))
        indices = np.pad(chosen, (0, rows - len(chosen)))
        ends = {"max_new": max_new, "eos": specials.eos, "pad": specials.pad}
        written = np.asarray(_write(model, prompt, source, search, indices, **ends))
        for index, ids in zip(chosen, written, strict=False):
            # Decoded together with its beginning: a first piece alone would lose its space.
            begun = [] if objective.kind == "pair" else read[index]
            yield int(index), tokenizer.decode([*begun, *ids])


def _write(
    model: Transformer,
    prompt: Tokens,
    source: Tokens | None,
    search: Search,
    indices: Int[np.ndarray, " B"],
    **ends: int,
) -> Int[Array | np.ndarray, "B max_new"]:
    """Returns the tokens of the best text of each row."""
    if isinstance(search, Beam):
        return beam_search(model, prompt, source, beam=search, **ends).ids[:, 0]
    return sample(model, prompt, source, sampling=search, indices=indices, **ends)


def _rows(lengths: list[int], new: int) -> int:
    """Returns how many of the first texts are decoded at once, a power of 2: few shapes compile."""
    rows = ROWS
    while rows > 1 and rows * (max(lengths[:rows]) + new) > POSITIONS:
        rows //= 2
    return rows


def _width(model: Transformer, sequences: list[list[int]], max_new: int) -> int:
    longest = max(map(len, sequences))
    width = -(-longest // WIDTH) * WIDTH
    if model.config.positions == "learned":  # padding must not run off the table
        width = min(width, max(longest, model.config.max_length - max_new))
    return width


def _pad(sequences: list[list[int]], pad: int, shape: tuple[int, int]) -> Tokens:
    """Returns the sequences, padded on the right; rows left over are empty."""
    ids = np.full(shape, pad, np.int32)
    real = np.zeros(shape, bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        real[row, : len(sequence)] = True
    return Tokens.of(jnp.asarray(ids), jnp.asarray(real))
