"""Reads text files of the user's, with errors that say which file and line is wrong."""

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import TypeVar

from attn_jax.config import DataConfig, names_in
from attn_jax.data.sources.source import SPLITS
from attn_jax.errors import InputError
from attn_jax.files import home_path

_HELD_OUT = 50  # without files for it, one record in so many is held out for a split

Record = TypeVar("Record")


def paths_of(config: DataConfig, split: str) -> list[Path]:
    """Returns the paths in `data.<split>_files`.

    Raises:
      InputError: if one of them is no file, or is empty.
    """
    field = f"{split}_files"
    names = filter(None, names_in(getattr(config, field)))
    paths = [home_path(f"data.{field}", name) for name in names]
    for path in paths:
        _refuse_unreadable(f"data.{field}: {path}", path)
    if split == "train" and not paths:
        raise InputError(f"data.{field} is empty: data.name = {config.name!r} needs files")
    return paths


def _refuse_unreadable(name: str, path: Path) -> None:
    try:
        if path.is_dir():
            raise InputError(f"{name}: is a directory, expected a file")
        if not path.exists():
            raise InputError(f"{name}: no such file")
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError) -> InputError:
    return InputError(f"{name}: cannot be read: {error.strerror}")


def contents_digest(config: DataConfig) -> str:
    """Returns a hex digest of the bytes of all files and of which split each is for."""
    total = hashlib.sha256()
    for split in SPLITS:
        for path in paths_of(config, split):
            total.update(split.encode())
            try:
                with open(path, "rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise _unreadable(f"data.{split}_files: {path}", error) from error
    return total.hexdigest()[:16]


def read_text(path: Path, may_be_empty: bool = False) -> str:
    r"""Returns the text of a plain or .gz file, lines ended by "\n", without a byte-order mark.

    Raises:
      InputError: if it cannot be read, is damaged, not UTF-8 (with the line) or, unless it may be,
        empty.
    """
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged .gz file: {error}") from error
    except OSError as error:
        raise _unreadable(str(path), error) from error
    text = decode(data, str(path))
    if not (may_be_empty or text.strip()):
        raise InputError(f"{path}: the file is empty")
    return text


def decode(data: bytes, name: str) -> str:
    r"""Returns UTF-8 as text, lines ended by "\n", without a byte-order mark.

    Raises:
      InputError: it is not UTF-8; tells the `name` of the file and the line.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}: line {line}: not UTF-8") from error
    text = text.replace("\r\n", "\n")
    # Alone it ends lines only in files of old Macs, which have no other line ends.
    return text if "\n" in text else text.replace("\r", "\n")


def held_out(records: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """Fills the splits that have no records with training records, which training then lacks.

    Of every 50 training records the last goes to validation and the one before it to test.
    """
    places = {"validation": _HELD_OUT - 1, "test": _HELD_OUT - 2}
    taken = {split: place for split, place in places.items() if not records[split]}
    train = records["train"]
    rest = [each for i, each in enumerate(train) if i % _HELD_OUT not in taken.values()]
    return {**records, "train": rest} | {s: train[place::_HELD_OUT] for s, place in taken.items()}


def check_splits(splits: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """Returns the splits that have records: training and validation always, test maybe.

    Raises:
      InputError: if training or validation has none.
    """
    for split in ("train", "validation"):
        if not splits[split]:
            raise InputError(
                f"data.{split}_files: no records for {split}; without files of their own, those of "
                "validation and test are held out from data.train_files, which are too short"
            )
    return {split: records for split, records in splits.items() if records}
