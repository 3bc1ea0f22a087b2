"""A tokenized split as flat memory-mapped arrays, made once and kept."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import SupportsIndex

import numpy as np
from tqdm import tqdm

from attn_jax.data.cache import cached
from attn_jax.data.tokenizers import Tokenizer

_BATCH = 1024  # records encoded at once


@dataclass(frozen=True)
class Column:
    """The ids of one text per record, end to end and without special ids.

    flat:    integers [N], memory-mapped.
    offsets: int64 [records + 1]; record i is `flat[offsets[i] : offsets[i + 1]]`.
    """

    flat: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each record, int64 [records]."""
        return np.diff(self.offsets)

    def ids(self, index: SupportsIndex) -> np.ndarray:
        """Returns the ids of one record, int32."""
        return self.flat[self.offsets[index] : self.offsets[int(index) + 1]].astype(np.int32)


def encode_split(
    records: Sequence[str | tuple[str, str]], tokenizer: Tokenizer, directory: Path
) -> tuple[Column, ...]:
    """Tokenizes a split into `directory`, or maps what lies there.

    Returns:
      `(documents,)`, or `(sources, targets)` when the records are pairs.
    """
    cached(directory, lambda temporary: _write(records, tokenizer, temporary))
    sides = sorted(directory.glob("*.ids.npy"))
    return tuple(
        Column(np.load(side, mmap_mode="r"), np.load(f"{str(side)[:-8]}.offsets.npy"))
        for side in sides
    )


def _write(records: Sequence, tokenizer: Tokenizer, directory: Path) -> None:
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32
    num_sides = len(_sides(records[0])) if len(records) else 1
    flat: list[list[np.ndarray]] = [[] for _ in range(num_sides)]
    lengths: list[list[int]] = [[] for _ in range(num_sides)]
    bar = tqdm(records, desc="tokenizing", delay=2, disable=None, leave=False)
    for batch in _batched(map(_sides, bar)):
        for side, texts in enumerate(zip(*batch, strict=True)):
            encoded = tokenizer.encode_batch(texts)
            lengths[side].extend(map(len, encoded))
            flat[side].append(np.fromiter(itertools.chain.from_iterable(encoded), dtype))
    for side in range(num_sides):
        ids = np.concatenate([np.zeros(0, dtype), *flat[side]])
        np.save(directory / f"{side}.ids.npy", ids)
        np.save(directory / f"{side}.offsets.npy", np.cumsum([0, *lengths[side]], dtype=np.int64))


def _batched(records: Iterable) -> Iterator[list]:
    iterator = iter(records)
    while batch := list(itertools.islice(iterator, _BATCH)):
        yield batch


def _sides(record: str | tuple[str, str]) -> tuple[str, ...]:
    return (record,) if isinstance(record, str) else record
