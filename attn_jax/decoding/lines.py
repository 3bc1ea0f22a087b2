"""Whole files, line by line: to stdout in order, or to a file that a stop does not lose."""

import hashlib
import json
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any

from tqdm import tqdm

from attn_jax.data.sources.files import decode, read_text
from attn_jax.decoding.text import Writer
from attn_jax.errors import InputError, WorkError
from attn_jax.files import read_json_lines, refuse_unwritable, write_whole

WINDOW = 1024  # lines that are sorted by length together


def write_file(
    writer: Writer, source: str, output: str, truncate: bool, settings: dict[str, Any]
) -> None:
    """Writes what the writer makes of each line; an empty line stays empty.

    An output file appears when it is whole. Until then, finished lines are kept beside it, in
    OUTPUT.progress: the same call goes on from there.

    Args:
      writer: translates, or continues, a line.
      source: a text file, plain or .gz; "-" is stdin.
      output: a file; "-" is stdout.
      truncate: cut lines that are too long for the model, instead of leaving them empty.
      settings: what else the result depends on, to tell whether a call is the same.

    Raises:
      InputError: a file cannot be read or written, or the progress is that of another call.
      WorkError: it was interrupted; says what is kept.
    """
    if output != "-":
        refuse_unwritable("output", Path(output))
    is_stdin = source == "-"
    text = decode(sys.stdin.buffer.read(), "stdin") if is_stdin else read_text(Path(source))
    lines = text.removesuffix("\n").split("\n") if text else []
    if output == "-":
        for line in _in_order(_shown(writer, lines, (), truncate)):
            print(line, flush=True)
        return
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    settings = settings | {"input": digest, "truncate": truncate}
    progress = Progress(Path(output), settings, len(lines))
    try:
        for number, line in _shown(writer, lines, progress.done.keys(), truncate):
            progress.keep(number, line)
    except KeyboardInterrupt:
        raise WorkError(
            f"interrupted; {len(progress.done)} of {len(lines)} lines are in {progress.path}, and "
            "the same command goes on from there"
        ) from None
    progress.finish()


class Progress:
    """The finished lines of an unfinished file, in OUTPUT.progress: settings, then a line each."""

    def __init__(self, output: Path, settings: dict[str, Any], count: int):
        self._output, self._count = output, count
        self.path = output.with_name(f"{output.name}.progress")
        kept = self._read(settings)
        self.done = {entry["number"]: entry["text"] for entry in kept}
        # Anew, without a last line that was cut short.
        write_whole(self.path, "".join(f"{json.dumps(x)}\n" for x in (settings, *kept)))
        self._file = self.path.open("a", encoding="utf-8")

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
        self.path.unlink()

    def _read(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        found, *kept = read_json_lines(self.path) or [settings]
        for name in {**found, **settings}:
            there, here = found.get(name), json.loads(json.dumps(settings.get(name)))
            if there != here:
                raise InputError(
                    f"{self.path}: is of another call, {name} = {there!r} there and {here!r} "
                    "here; remove it to begin anew"
                )
        for at, entry in enumerate(kept, 2):
            if not self._is_finished_line(entry):
                raise InputError(
                    f"{self.path}:{at}: {shorten(json.dumps(entry), 80)} is no finished line, "
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


def _shown(
    writer: Writer, lines: list[str], done: Collection[int], truncate: bool
) -> Iterator[tuple[int, str]]:
    """Shows the progress of `write_lines`."""
    found = write_lines(writer, lines, done, truncate)
    yield from tqdm(found, total=len(lines), unit="line", initial=len(done))


def write_lines(
    writer: Writer, lines: list[str], done: Collection[int], truncate: bool
) -> Iterator[tuple[int, str]]:
    """Yields `(number, result)` of each line that is not done, window after window.

    Lines that are too long are named in a warning on stderr.
    """
    done = frozenset(done)
    for start in range(0, len(lines), WINDOW):
        texts = {}
        for number, line in enumerate(lines[start : start + WINDOW], start):
            ids = writer.read(line) if line.strip() and number not in done else []
            if len(ids) > writer.limit:
                _warn(number, len(ids), writer.limit, truncate)
                ids = writer.cut(ids) if truncate else []
            if ids:
                texts[number] = ids
            elif number not in done:
                yield number, ""
        for number, text in writer.write(texts):
            yield number, " ".join(text.splitlines())


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
