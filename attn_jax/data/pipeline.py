"""From a config to batches: the one entry point of this package.

The order of the training data is a pure function of (seed, step). It does not depend on the
number of processes, on threads, or on where a run was stopped.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import grain
import numpy as np

from attn_jax.config import Config, flatten
from attn_jax.data.batches import Batches, PairBatches, TextBatches, spread
from attn_jax.data.cache import cached
from attn_jax.data.encoded import Column, encode_split
from attn_jax.data.packing import PAIRS
from attn_jax.data.sources import Source, open_source
from attn_jax.data.sources.source import Records, data_dir, digest
from attn_jax.data.tokenizers import Tokenizer, load_tokenizer, train_tokenizer
from attn_jax.errors import InputError
from attn_jax.models.tokens import Pair, Tokens

_FORMAT = 2  # of cached files; another number makes them anew
# One thread ahead of the accelerator is enough: a batch takes well under a millisecond.
_READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)


def open_dataset(config: Config, tokenizer: Tokenizer | None = None) -> "Dataset":
    """Opens the data of an experiment: prepares the source, trains the tokenizer, encodes.

    Everything slow is done once and kept under `data.data_dir`.

    Args:
      config: `data` and, without a `tokenizer`, `tokenizer` are read.
      tokenizer: the one of an earlier run; None takes that of `train.init_from`, or else trains
        one on the training split only.

    Raises:
      InputError: one line naming the config field or input file that is wrong.
    """
    source = open_source(config.data)
    for split in ("train", "validation"):
        if not len(source.split(split)):
            raise InputError(f"data.name = {config.data.name!r}: the {split} split is empty")
    root = data_dir(config.data) / "attn_jax"
    tokenizer = tokenizer or _given(config) or _trained(config, source, root)
    return Dataset(config, source, tokenizer, root)


class EvalBatches(Sequence):
    """`(items, batch)` in a fixed order, read when asked for; can be gone through repeatedly.

    items: which rows of text, [rows], or which pairs, [rows, pairs], are in it; -1 for none.
    batch: `Tokens` or `Pair`, packed.
    """

    def __init__(self, batches: Batches, rows: list[np.ndarray]) -> None:
        self._batches = batches
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Tokens | Pair]:
        rows = self._rows[index]
        return self._batches.items(rows), self._batches.build(rows)


class Dataset:
    """Train and evaluation batches of one source, as numpy `Tokens` (text) or `Pair` (pairs).

    Text: rows of `data.length` positions, packed with documents `<bos> .. <eos>`.
    Pairs: rows of at most as many, packed with sources `w1 .. wn <eos>` and, in the rows beside
    them, targets `<bos> w1 .. wm <eos>`. Padding has segment 0. `blocks` is None.
    """

    def __init__(self, config: Config, source: Source, tokenizer: Tokenizer, root: Path) -> None:
        self.kind = source.kind
        self.tokenizer = tokenizer
        packing = [PAIRS] if source.kind == "pair" else []
        self.fingerprint = digest(source.fingerprint, tokenizer.fingerprint, *packing)
        self._config = config.data
        self._source = source
        self._root = root
        self._batches: dict[str, Batches] = {}
        for split in ("train", config.eval.split):
            if not self._split(split).num_rows:
                raise InputError(
                    f"data.length = {config.data.length}: all {self.num_left_out(split)} pairs of "
                    f"the {split} split are longer"
                )

    @property
    def padding_share(self) -> float:
        """Share of the positions of one training epoch that holds no token."""
        return self._split("train").padding_share

    @property
    def left_out(self) -> int:
        """Training pairs with a side longer than `data.length`, which are not used."""
        return self.num_left_out("train")

    def num_left_out(self, split: str) -> int:
        """Returns how many pairs of a split are longer than `data.length` and not used."""
        return self._split(split).left_out

    def train_batches(
        self, seed: int, process_index: int = 0, process_count: int = 1
    ) -> grain.DatasetIterator:
        """Returns an endless iterator over batches, reshuffled each epoch.

        Its `get_state` and `set_state` continue it elsewhere; Grain's checkpoint handlers take it.

        Args:
          seed: of the order.
          process_index: which contiguous share of the rows of every global batch to yield.
          process_count: into how many shares the rows are divided.

        Raises:
          InputError: if the rows of a batch do not divide evenly.
        """
        batches = self._split("train")
        if batches.rows % process_count:
            raise InputError(
                f"data.batch_tokens = {self._config.batch_tokens}: batches of {batches.rows} "
                f"rows cannot be divided over {process_count} processes"
            )
        size = batches.rows // process_count
        mine = slice(process_index * size, (process_index + 1) * size)
        read = batches.train_rows(seed).map(lambda rows: batches.build(rows[mine]))
        return iter(read.to_iter_dataset(_READ))

    def eval_batches(self, split: str, max_items: int = 0) -> EvalBatches:
        """Returns `(items, batch)` over a split, every packed row or pair exactly once.

        Args:
          split: "train", "validation" or "test".
          max_items: most rows (text) or pairs, spread over the split; 0 means all.
        """
        if self.kind == "pair" and max_items:
            batches = self._open(split, max_items)
            return EvalBatches(batches, batches.eval_rows())
        batches = self._split(split)
        return EvalBatches(batches, batches.eval_rows(spread(batches.num_rows, max_items)))

    def texts(self, split: str) -> Records:
        """Returns the texts of a split: str, or `(source, target)` by the index of a pair."""
        return self._source.split(split)

    def columns(self, split: str) -> tuple[Column, ...]:
        """Returns the encoded `(documents,)` or `(sources, targets)` of a split."""
        key = digest(_FORMAT, self.fingerprint, split)
        return encode_split(self.texts(split), self.tokenizer, self._root / "encoded" / key)

    def ids(self, split: str) -> Column:
        """Returns the encoded documents, or targets, of a split: flat ids with their bounds."""
        return self.columns(split)[-1]

    def _split(self, split: str) -> Batches:
        if split not in self._batches:
            self._batches[split] = self._open(split)
        return self._batches[split]

    def _open(self, split: str, most: int = 0) -> Batches:
        columns = self.columns(split)
        limits = self.tokenizer.specials, self._config.length, self._config.batch_tokens
        if self.kind == "text":
            return TextBatches(*columns, *limits)
        return PairBatches(columns, *limits, most)


def _given(config: Config) -> Tokenizer | None:
    if config.train.init_directory is None:
        return None
    try:
        return load_tokenizer(config.train.init_directory / "tokenizer")
    except InputError as error:
        raise InputError(f"train.init_from: {error}") from error


def _trained(config: Config, source: Source, root: Path) -> Tokenizer:
    """Returns the tokenizer of a source, trained once: arms and seeds share it."""
    key = digest(_FORMAT, source.fingerprint, sorted(flatten(config.tokenizer).items()))

    def train(directory: Path) -> None:
        train_tokenizer(config.tokenizer, _each_text(source.split("train"))).save(directory)

    return load_tokenizer(cached(root / "tokenizers" / key, train))


def _each_text(records: Records) -> Iterator[str]:
    for record in records:
        yield from (record,) if isinstance(record, str) else record
