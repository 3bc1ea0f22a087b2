"""Sentences in, sentences out: batching by length around greedy decoding."""

from collections.abc import Iterator, Sequence

import numpy as np

from attn_jax.data.tokenizers import Tokenizer
from attn_jax.decoding.sampling import greedy
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer
from attn_jax.objectives.translation import JoinedTranslation, Translation

ROWS = 64  # sentences decoded at once
WIDTH = 16  # source lengths are rounded up to a multiple, so that few shapes compile


def translate(
    model: Transformer,
    objective: Translation | JoinedTranslation,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    max_new: int,
) -> Iterator[tuple[int, str]]:
    """Yields `(index, translation)` of each sentence, shortest sentences first.

    Args:
      model: trained with `objective`.
      objective: says what decoding starts from.
      tokenizer: of the run.
      sentences: source texts; an empty one is translated like any other.
      max_new: most tokens of a translation.
    """
    sources = [[*tokenizer.encode(s), tokenizer.specials.eos] for s in sentences]
    order = np.argsort([len(s) for s in sources], kind="stable")
    for start in range(0, len(order), ROWS):
        chosen = order[start : start + ROWS]
        source = _pad([sources[i] for i in chosen], tokenizer.specials.pad)
        prompt, source = objective.prompt(source)
        ids = np.asarray(
            greedy(
                model,
                prompt,
                source,
                max_new=max_new,
                eos=tokenizer.specials.eos,
                pad=tokenizer.specials.pad,
            )
        )
        for row, index in enumerate(chosen):
            yield int(index), tokenizer.decode(ids[row])


def _pad(sequences: list[list[int]], pad: int) -> Tokens:
    """Returns ROWS rows, padded on the right; rows left over are empty."""
    width = -(-max(map(len, sequences)) // WIDTH) * WIDTH
    ids = np.full((ROWS, width), pad, np.int32)
    real = np.zeros((ROWS, width), bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        real[row, : len(sequence)] = True
    return Tokens.of(ids, real)
