"""Batches whose rows hold very different numbers of tokens: what means of means get wrong."""

import numpy as np

from attn_jax.models.tokens import Pair, Tokens

# Model fields with few operations, so that steps compile quickly.
SIMPLE = {
    "num_layers": 1,
    "norm": "rms",
    "activation": "relu",
    "positions": "learned",
    "max_length": 32,
}

# Lengths of the documents packed into each row of 16: rows differ much in what they hold.
DOCUMENTS = ((16,), (3,), (9, 7), (5, 4), (2, 2), (), (16,), (12,))


def packed_rows(specials, seed=0, documents=DOCUMENTS):
    """Rows of documents `<bos> .. <eos>` with ids 7 .. 79 between, and padding."""
    rng = np.random.default_rng(seed)
    ids = np.full((len(documents), 16), specials.pad, np.int32)
    positions, segments = np.zeros_like(ids), np.zeros_like(ids)
    for row, lengths in enumerate(documents):
        start = 0
        for number, length in enumerate(lengths, 1):
            words = rng.integers(7, 80, length)
            words[0], words[-1] = specials.bos, specials.eos
            here = slice(start, start + length)
            ids[row, here], positions[row, here] = words, np.arange(length)
            segments[row, here] = number
            start += length
    return Tokens(ids, positions, segments)


def packed_pairs(specials, seed=0):
    """Pairs, some of them several to a row, whose sides have very different lengths."""
    source = packed_rows(specials, seed, ((14,), (3,), (9, 5), (2, 3, 4), (2,), (), (16,), (12,)))
    target = packed_rows(specials, seed + 1, ((3,), (9,), (4, 8), (5, 4, 3), (2,), (), (5,), (16,)))
    source.ids[source.ids == specials.bos] = 7  # a source has none
    return Pair(source, target)
