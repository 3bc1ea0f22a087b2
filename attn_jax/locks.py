"""Locks between processes, on one machine or on several that share a file system.

A lock is flock's on an open file: it ends with the process that holds it, whatever ends that. On
NFS Linux turns it into a lock of all the file's bytes, which the server keeps (since 2.6.12).
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

LOOK_SECONDS = 0.05  # after which nobody who only looked still stands in the way


@contextmanager
def hold(path: Path, wait: bool = False) -> Iterator[None]:
    """Holds the lock of a file, which is made, empty, if need be.

    Args:
      path: of the file; its folder exists.
      wait: until the lock is free, however long that takes.

    Raises:
      BlockingIOError: another process holds it, and `wait` is not set, or has just removed it.
    """
    with path.open("a") as file:  # NFS gives exclusive locks only on what is open for writing
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            time.sleep(LOOK_SECONDS)  # it may have been `is_held`
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(file, path):  # its last holder has removed it meanwhile
            raise BlockingIOError(f"{path}: was removed")
        yield


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def is_held(path: Path) -> bool:
    """Tells whether another process holds the lock of a file."""
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
