"""Files of items to evaluate on: JSON lines, in a folder or a .zip too, and plain lines."""

import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attn_jax.data.sources.files import decode, read_text
from attn_jax.errors import InputError
from attn_jax.files import home_path

Json = dict[str, Any]

# What zipfile raises for archives that are damaged, encrypted or packed in an unusual way.
UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, RuntimeError)


def open_path(field: str, value: str) -> Path:
    """Returns the path in a config field; raises InputError if nothing is there."""
    path = home_path(field, value)
    if not path.exists():
        raise InputError(f"{field} = {value!r}: no such file")
    return path


def json_lines(field: str, value: str) -> Iterator[tuple[str, Json]]:
    """Yields `(FILE:LINE, object)` of a .jsonl file, or of all of them in a folder or a .zip.

    Args:
      field: the config field that the path comes from.
      value: the path.

    Raises:
      InputError: there is no such file, or it is not of this form; names the line.
    """
    count = 0
    for name, text in _texts(field, open_path(field, value)):
        count += 1
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                where = f"{name}:{number}"
                yield where, _parse(where, line)
    if not count:
        raise InputError(f"{field} = {value!r}: holds no .jsonl file")


def text_of(where: str, item: Json, key: str) -> str:
    """Returns the text at a key, stripped; raises InputError if it is empty, or not there."""
    text = item.get(key)
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{where}: {key} = {text!r}: expected a text")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"{where}: {key} = {text!r}: holds half of a surrogate pair")
    return text.strip()


def _texts(field: str, path: Path) -> Iterator[tuple[str, str]]:
    if path.is_dir():
        for file in sorted(path.glob("*.jsonl")):
            yield str(file), read_text(file)
    elif path.suffix == ".zip":
        try:
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    # Archives made on a Mac hold a second file, "._NAME", for each.
                    if name.endswith(".jsonl") and not Path(name).name.startswith("._"):
                        yield f"{path}/{name}", decode(archive.read(name), f"{path}/{name}")
        except UNREADABLE as error:
            raise InputError(f"{field} = {str(path)!r}: cannot be unpacked: {error}") from error
    else:
        yield str(path), read_text(path)


def _parse(where: str, line: str) -> Json:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object, not {type(value).__name__}")
    return value
