"""Files that are read whole and written whole."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

from attn_jax.errors import InputError


def read_text(path: Path) -> str:
    """Returns the text of a file; raises InputError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8") from error


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; raises InputError for a missing or a broken file."""
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, not {type(value).__name__}")
    return value


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a JSON-lines file, none if there is no file.

    A last line that a crash cut short is left out.
    """
    lines = read_text(path).splitlines() if path.exists() else []
    objects = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number < len(lines):
                raise InputError(f"{path}:{number}: not valid JSON ({error})") from error
            break
        if not isinstance(value, dict):
            raise InputError(f"{path}:{number}: expected a JSON object, not {type(value).__name__}")
        objects.append(value)
    return objects


def home_path(name: str, text: str) -> Path:
    """Returns the path of a field or flag, "~" replaced; raises InputError for no such user."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"{name} = {text!r}: {error}") from error


def refuse_unwritable(name: str, path: Path) -> None:
    """Raises InputError, before any work is done, if the file of a flag cannot be written."""
    try:
        if path.is_dir():
            raise InputError(f"{name} = {str(path)!r}: is a directory, expected a file")
        if not path.exists() or path.is_file():
            partial = _partial(path.resolve())
            partial.touch()
            partial.unlink()
    except OSError as error:
        why = "no such folder" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputError(f"{name} = {str(path)!r}: cannot be written ({why})") from error


def _partial(path: Path) -> Path:
    # Not by process id: another machine may write the same file of a shared file system.
    return path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.partial")


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that a reader finds the old text or the new one, never a part.

    That holds after a power cut too: the text is on the disk before the name means it.

    Links are followed; what is no regular file, such as /dev/null, is written to directly.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    partial = _partial(path)
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
