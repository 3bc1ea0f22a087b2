"""Whole files, line by line: to stdout in order, or to a file that a stop does not lose."""

import hashlib
import json
import sys
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol, TextIO, TypeVar, runtime_checkable

from tqdm import tqdm

from attn_jax.data.sources.files import decode, read_text
from attn_jax.errors import InputError, WorkError
from attn_jax.files import read_json_lines, refuse_unwritable, write_whole
from attn_jax.locks import hold
from attn_jax.progress import progress_bar

WINDOW = 1024  # lines that are sorted by length together

Read = TypeVar("Read")  # a line as it was read


@runtime_checkable
class LineWorker(Protocol[Read]):
    """Turns lines of text into lines of text."""

    @property
    def limit(self) -> int:
        """The greatest length, in tokens, of a line."""

    def length(self, line: Read, /) -> int:
        """Returns how long a line is, in tokens."""

    def check(self, text: str, /) -> None:
        """Raises InputError, without its number, for a line that is not of the right form."""

    def read(self, text: str, /) -> Read:
        """Reads a line."""

    def cut(self, line: Read, /) -> Read:
        """Cuts a line down to the limit."""

    def write(self, lines: dict[int, Read], /) -> Iterator[tuple[int, str]]:
        """Yields what each line gives, with its number, in any order."""


def write_file(
    worker: LineWorker, source: str, output: str, truncate: bool, settings: dict[str, Any]
) -> None:
    """Writes what the worker makes of each line; an empty line stays empty.

    An output file appears when it is whole. Until then, finished lines are kept beside it, in
    OUTPUT.progress: the same call goes on from there.

    Args:
      worker: translates, continues or scores a line.
      source: a text file, plain or .gz; "-" is stdin.
      output: a file; "-" is stdout. What is no regular file, as a pipe, is written line by line.
      truncate: cut lines that are too long for the model, instead of leaving them empty.
      settings: what else the result depends on, to tell whether a call is the same.

    Raises:
      InputError: a file cannot be read or written, both are the same, a line is not of the right
        form, or the progress is that of another call or of one that is running.
      WorkError: it was interrupted; says what is kept.
    """
    if output != "-":
        refuse_unwritable("output", Path(output))
    is_stdin = source == "-"
    text = decode(sys.stdin.buffer.read(), "stdin") if is_stdin else read_text(Path(source), True)
    if not is_stdin and output != "-":
        _refuse_same(Path(source), Path(output))
    lines = text.removesuffix("\n").split("\n") if text else []
    _check(worker, lines)
    stream = _opened_stream(output)
    if stream:
        with stream as file:
            for line in _in_order(_shown(worker, lines, (), truncate)):
                print(line, file=file, flush=True)
        return
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    settings = settings | {"input": digest, "truncate": truncate}
    with _claimed(Path(f"{output}.progress")) as path:
        progress = Progress(path, Path(output), settings, len(lines))
        try:
            for number, line in _shown(worker, lines, progress.done.keys(), truncate):
                progress.keep(number, line)
        except KeyboardInterrupt:
            raise WorkError(
                f"interrupted; {len(progress.done)} of {len(lines)} lines are in {path}, and the "
                "same command goes on from there"
            ) from None
        progress.finish()


def _opened_stream(output: str) -> AbstractContextManager[TextIO] | None:
    """Returns what is written line by line, as nothing of it can be kept; None for a file."""
    if output == "-":
        return nullcontext(sys.stdout)
    path = Path(output)
    return path.open("w", encoding="utf-8") if path.exists() and not path.is_file() else None


def _refuse_same(source: Path, output: Path) -> None:
    if output.exists() and source.samefile(output):
        raise InputError(f"output = {str(output)!r}: is the input, which it would replace")


@contextmanager
def _claimed(path: Path) -> Iterator[Path]:
    """Keeps a second process from writing the same file."""
    with ExitStack() as stack:
        try:
            stack.enter_context(hold(path))
        except BlockingIOError:
            raise InputError(f"{path}: another process is writing it") from None
        yield path


class Progress:
    """The finished lines of an unfinished file, in OUTPUT.progress: settings, then a line each."""

    def __init__(self, path: Path, output: Path, settings: dict[str, Any], count: int):
        self._path, self._output, self._count = path, output, count
        kept = self._read(settings)
        self.done = {entry["number"]: entry["text"] for entry in kept}
        # In place, as the lock is on this file: the same bytes, but a last line that was cut short.
        self._file = path.open("r+", encoding="utf-8")
        self._file.write("".join(f"{json.dumps(x)}\n" for x in (settings, *kept)))
        self._file.truncate()
        self._file.flush()

    def keep(self, number: int, text: str) -> None:
        """Adds a finished line."""
        self.done[number] = text
        self._file.write(json.dumps({"number": number, "text": text}) + "\n")
        self._file.flush()

    def finish(self) -> None:
        """Writes the output."""
        self._file.close()
        lines = (f"{self.done[number]}\n" for number in range(self._count))
        write_whole(self._output, "".join(lines))
        self._path.unlink()

    def _read(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        entries = read_json_lines(self._path)
        if not entries and self._path.stat().st_size and self._path.read_bytes()[:1] != b"{":
            raise InputError(f"{self._path}: is in the way; it is not of a call like this")
        found, *kept = entries or [settings]
        for name in {**found, **settings}:
            there, here = found.get(name), json.loads(json.dumps(settings.get(name)))
            if there != here:
                raise InputError(
                    f"{self._path}: is of another call, {name} = {there!r} there and {here!r} "
                    "here; remove it to begin anew"
                )
        for at, entry in enumerate(kept, 2):
            if not self._is_finished_line(entry):
                raise InputError(
                    f"{self._path}:{at}: {shorten(json.dumps(entry), 80)} is no finished line, "
                    f'expected {{"number": 0 to {self._count - 1}, "text": "one line"}}; remove '
                    "the file to begin anew"
                )
        return kept

    def _is_finished_line(self, entry: dict[str, Any]) -> bool:
        """A file that was edited by hand may hold anything, even what is no Unicode."""
        number, text = entry.get("number"), entry.get("text")
        if type(number) is not int or not 0 <= number < self._count or not isinstance(text, str):
            return False
        return text == " ".join(text.encode(errors="ignore").decode().splitlines())


def _check(worker: LineWorker, lines: list[str]) -> None:
    """Refuses a wrong line before any work is done."""
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                worker.check(line)
        except InputError as error:
            raise InputError(f"line {number}: {error}") from error


def _shown(
    worker: LineWorker, lines: list[str], done: Collection[int], truncate: bool
) -> Iterator[tuple[int, str]]:
    """Shows the progress of `write_lines`."""
    found = write_lines(worker, lines, done, truncate)
    with progress_bar(len(lines), len(done), "line") as bar:
        for line in found:
            yield line
            bar.update()


def write_lines(
    worker: LineWorker, lines: list[str], done: Collection[int], truncate: bool
) -> Iterator[tuple[int, str]]:
    """Yields `(number, result)` of each line that is not done, window after window.

    Lines that are too long are named in a warning on stderr.
    """
    done = frozenset(done)
    for start in range(0, len(lines), WINDOW):
        texts = {}
        for number, line in enumerate(lines[start : start + WINDOW], start):
            if number in done:
                continue
            read = _read(worker, number, line, truncate) if line.strip() else None
            if read is None:
                yield number, ""
            else:
                texts[number] = read
        for number, text in worker.write(texts):
            yield number, " ".join(text.splitlines())


def _read(worker: LineWorker[Read], number: int, line: str, truncate: bool) -> Read | None:
    """Reads a line that is not empty; returns None if it is too long."""
    read = worker.read(line)
    length = worker.length(read)
    if length <= worker.limit:
        return read
    _warn(number, length, worker.limit, truncate)
    return worker.cut(read) if truncate else None


def _warn(number: int, length: int, limit: int, truncate: bool) -> None:
    what = "cut" if truncate else "left empty; --truncate cuts it"
    line = f"warning: line {number + 1}: {length} tokens, and the model reads {limit}: {what}"
    tqdm.write(line, file=sys.stderr)


def _in_order(found: Iterator[tuple[int, str]]) -> Iterator[str]:
    """Yields the lines 0, 1, 2 .., each as soon as all before it are there."""
    waiting, following = {}, 0
    for number, text in found:
        waiting[number] = text
        while following in waiting:
            yield waiting.pop(following)
            following += 1
