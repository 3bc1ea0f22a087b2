"""Sentence pairs in line-aligned text files of the user's."""

from pathlib import Path

import tensorflow_datasets as tfds

from attn_jax.config import DataConfig
from attn_jax.data.sources.builder import TextBuilder
from attn_jax.data.sources.files import (
    check_splits,
    contents_digest,
    held_out,
    paths_of,
    read_text,
)
from attn_jax.data.sources.source import SPLITS, Source, data_dir
from attn_jax.errors import InputError


class ParallelFiles(TextBuilder):
    """Pairs of lines of two plain or .gz text files."""

    VERSION = tfds.core.Version("1.0.1")
    FIELDS = ("source", "target")

    def __init__(self, config: DataConfig) -> None:
        self._data = config
        # Named by their contents, so that an edited file is prepared again.
        super().__init__(contents_digest(config), data_dir(config))

    def records(self) -> dict[str, list[tuple[str, str]]]:
        """Returns the pairs of each split, in the order of the files."""
        return check_splits(held_out({split: _pairs(self._data, split) for split in SPLITS}))


def open_source(config: DataConfig) -> Source:
    """Opens the files in `data.train_files`, "source,target", and so on.

    Pairs with an empty side are skipped. Without files for validation or test, every 50th pair,
    or the one before it, is held out.

    Raises:
      InputError: naming the file or files that are wrong.
    """
    return ParallelFiles(config).open()


def _pairs(config: DataConfig, split: str) -> list[tuple[str, str]]:
    paths = paths_of(config, split)
    if len(paths) not in (0, 2):
        raise InputError(
            f"data.{split}_files: {len(paths)} paths, expected 2: source file,target file"
        )
    return _aligned(*paths) if paths else []


def _aligned(source: Path, target: Path) -> list[tuple[str, str]]:
    sides = [read_text(path).removesuffix("\n").split("\n") for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"{source} has {len(sides[0])} lines and {target} has {len(sides[1])}: expected as many"
        )
    stripped = ((a.strip(), b.strip()) for a, b in zip(*sides, strict=True))
    return [pair for pair in stripped if all(pair)]
