"""Texts in, texts out: batching by length around greedy decoding."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from attn_jax.data.tokenizers import Tokenizer
from attn_jax.decoding.sampling import greedy
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer
from attn_jax.objectives import Objective

ROWS = 64  # texts decoded at once ...
POSITIONS = 64 * 256  # ... fewer, if they and their results would take more than this
WIDTH = 16  # lengths are rounded up to a multiple, so that few shapes compile


def generate_texts(
    model: Transformer,
    objective: Objective,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    max_new: int,
) -> Iterator[tuple[int, str]]:
    """Yields `(index, translation or continued text)` of each text, shortest texts first.

    Args:
      model: trained with `objective`.
      objective: one on pairs translates; one on text continues from `<bos> text`.
      tokenizer: of the run.
      texts: sources or beginnings.
      max_new: most tokens that are written.
    """
    specials = tokenizer.specials
    if objective.kind == "pair":
        read = [[*tokenizer.encode(text), specials.eos] for text in texts]
    else:
        read = [[specials.bos, *tokenizer.encode(text)] for text in texts]
    order = np.argsort([len(ids) for ids in read], kind="stable")
    while len(order):
        rows = _rows([len(read[i]) for i in order[:ROWS]], max_new)
        chosen, order = order[:rows], order[rows:]
        sequences = [read[i] for i in chosen]
        tokens = _pad(sequences, specials.pad, (rows, _width(model, sequences, max_new)))
        prompt, source = objective.prompt(tokens)
        ends = {"eos": specials.eos, "pad": specials.pad}
        written = np.asarray(greedy(model, prompt, source, max_new=max_new, **ends))
        for index, ids in zip(chosen, written, strict=False):
            # Decoded together with its beginning: a first piece alone would lose its space.
            begun = [] if objective.kind == "pair" else read[index]
            yield int(index), tokenizer.decode([*begun, *ids])


def _rows(lengths: list[int], max_new: int) -> int:
    """Returns how many of the first texts are decoded at once, a power of 2: few shapes compile."""
    rows = ROWS
    while rows > 1 and rows * (max(lengths[:rows]) + max_new) > POSITIONS:
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
