"""What a source is: three splits of documents or of sentence pairs, with a fingerprint."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

from attn_jax.config import DataConfig
from attn_jax.errors import InputError
from attn_jax.files import home_path

SPLITS = ("train", "validation", "test")
# Each is a module of this package with `open_source(config)`; any other name is looked up in TFDS.
# They are imported on use, as importing TFDS takes most of a second.
OWN = ("cldr_phrases", "web_bible", "kjv_web", "text_files", "parallel_files")
_READ = 1024  # records read at once


def digest(*parts: object) -> str:
    """Returns a short hex digest of the parts, the same on every machine."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:16]


def data_dir(config: DataConfig) -> Path:
    """Returns the directory that prepared data lies in: TFDS's own unless `data_dir` says else.

    Raises:
      InputError: a file stands in its way.
    """
    default = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    path = home_path("data.data_dir", config.data_dir or default)
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise InputError(f"data.data_dir = {str(path)!r}: {there} is a file, expected a directory")
    return path


class Records(Sequence):
    """One split, read by index: documents as str, pairs as `(source, target)`."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> None:
        self._rows = rows
        self._fields = fields

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: SupportsIndex) -> str | tuple[str, str]:
        position = range(len(self))[index]  # raises IndexError
        return self._record(self._rows[position])

    def __iter__(self) -> Iterator[str | tuple[str, str]]:
        for start in range(0, len(self), _READ):
            # Many times faster than one by one.
            rows = self._rows.__getitems__(range(start, min(start + _READ, len(self))))
            yield from map(self._record, rows)

    def _record(self, row: Mapping[str, Any]) -> str | tuple[str, str]:
        texts = [_text(row, field) for field in self._fields]
        # What is translated later is stripped as well.
        return (texts[0].strip(), texts[1].strip()) if len(texts) == 2 else texts[0]


def _text(row: Mapping[str, Any], path: str) -> str:
    value: Any = row
    for key in path.split("/"):
        value = value[key]
    return value.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class Source:
    """Text ready to be read.

    builder: a prepared TFDS builder.
    fields:  the features to read, one for documents, `(source, target)` for pairs; "a/b" is
             feature b inside feature a.
    splits:  our split name to TFDS's name or slice.
    """

    builder: Any
    fields: tuple[str, ...]
    splits: Mapping[str, str]

    @property
    def kind(self) -> str:
        """ "text" or "pair"."""
        return "pair" if len(self.fields) == 2 else "text"

    @property
    def fingerprint(self) -> str:
        """Changes with the data set, its version, language, files, fields and splits."""
        return digest(self.builder.info.full_name, self.fields, sorted(self.splits.items()))

    def split(self, name: str) -> Records:
        """Returns the records of "train", "validation" or "test", in a fixed order.

        Raises:
          InputError: if the data has no test split; the other two always exist.
        """
        if name not in self.splits:
            raise InputError(f"eval.split = {name!r}: {self.builder.name!r} has no such split")
        return Records(self.builder.as_data_source(split=self.splits[name]), self.fields)
