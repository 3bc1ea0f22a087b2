"""Verses of the King James Bible with the same verses in modern English: a parallel corpus.

Copying the source already scores about 53 BLEU, so report that baseline with any result.
"""

from collections.abc import Iterator
from itertools import chain

import tensorflow_datasets as tfds

from attn_jax.config import DataConfig
from attn_jax.data.sources.builder import TextBuilder
from attn_jax.data.sources.source import SPLITS, Source, data_dir
from attn_jax.data.sources.web_bible import chapters, package_versions


class KjvWeb(TextBuilder):
    """31,099 verses: King James (1769) to World English Bible, split by chapter."""

    VERSION = tfds.core.Version("1.0.0")
    FIELDS = ("source", "target")

    def records(self) -> dict[str, Iterator[tuple[str, str]]]:
        """Returns verses `(King James, World English)`."""
        return {split: chain.from_iterable(chapters(split)) for split in SPLITS}


def open_source(config: DataConfig) -> Source:
    """Opens the verse pairs; both sides are English, so the config's languages play no part."""
    return KjvWeb(package_versions(), data_dir(config)).open()
