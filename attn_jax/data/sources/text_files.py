"""Documents in text files of the user's: lines, paragraphs or whole files."""

import re

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

_CUT = 0.05  # document = file: share of the characters that is cut off for a split without files


class TextFiles(TextBuilder):
    """Documents of plain or .gz text files."""

    VERSION = tfds.core.Version("1.0.1")

    def __init__(self, config: DataConfig) -> None:
        self._data = config
        # Named by their contents, so that an edited file is prepared again.
        super().__init__(f"{config.document}-{contents_digest(config)}", data_dir(config))

    def records(self) -> dict[str, list[str]]:
        """Returns the documents of each split, in the order of the files."""
        texts = {split: [read_text(p) for p in paths_of(self._data, split)] for split in SPLITS}
        if self._data.document == "file":
            return check_splits(_cut_ends(texts))
        cut = {"line": _lines, "paragraph": _paragraphs}[self._data.document]
        documents = {
            split: [document for text in each for document in cut(text)]
            for split, each in texts.items()
        }
        return check_splits(held_out(documents))


def open_source(config: DataConfig) -> Source:
    """Opens `data.train_files` and, where given, `validation_files` and `test_files`.

    Empty lines are skipped. Without files for validation or test, every 50th document, or the
    one before it, is held out; with `document = "file"`, the last 5 % of the characters of each
    file are the test split, and the 5 % before them are for validation.

    Raises:
      InputError: naming the file, and the line where there is one.
    """
    return TextFiles(config).open()


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def _paragraphs(text: str) -> list[str]:
    return [each.strip("\n") for each in re.split(r"\n[ \t]*\n", text) if each.strip()]


def _cut_ends(texts: dict[str, list[str]]) -> dict[str, list[str]]:
    """Cuts the end of each training file off for the splits that have no files."""
    splits = dict(texts)
    for split in ("test", "validation"):
        if not texts[split]:
            ends = [round(len(text) * _CUT) for text in texts["train"]]
            train = splits["train"]
            splits[split] = [t[len(t) - end :] for t, end in zip(train, ends, strict=True) if end]
            splits["train"] = [t[: len(t) - end] for t, end in zip(train, ends, strict=True)]
    return splits
