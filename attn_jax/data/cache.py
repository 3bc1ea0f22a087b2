"""Directories that are written whole or not at all, whoever else writes them."""

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path


def cached(directory: Path, build: Callable[[Path], None]) -> Path:
    """Returns `directory`, filled by `build(temporary directory)` if it does not exist.

    A killed build leaves only a temporary directory behind; of two builds at once, one wins.
    """
    if directory.exists():
        return directory
    temporary = directory.with_name(f"{directory.name}.{uuid.uuid4().hex[:8]}.tmp")
    temporary.mkdir(parents=True)
    try:
        build(temporary)
        os.rename(temporary, directory)
    except OSError:
        if not directory.exists():  # else another process was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory
