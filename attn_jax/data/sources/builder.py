"""The base of our own TFDS builders, and how any builder is prepared."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds
from absl import logging as absl_logging
from tqdm import tqdm

from attn_jax.data.sources.source import Source
from attn_jax.errors import InputError, WorkError
from attn_jax.locks import hold


class TextBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A TFDS builder whose examples are texts: a subclass gives them, in `records`.

    Args:
      variant: names the data within the builder; other data must have another name.
      directory: TFDS directory.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("text",)
    code_path = None  # where TFDS would look for checksums of downloads, of which there are none

    def __init__(self, variant: str, directory: Path) -> None:
        config = tfds.core.BuilderConfig(name=variant)
        with quiet():
            super().__init__(config=config, data_dir=directory, file_format="array_record")

    def records(self) -> dict[str, Iterable[Any]]:
        """Returns the records of each split: a str each, or `(source, target)`."""
        raise NotImplementedError

    def open(self) -> Source:
        """Prepares the data where needed and returns its source."""
        if not is_prepared(self):
            # Before TFDS starts, so that bad input leaves nothing behind.
            self._records = self.records()
            prepare(self)
        return Source(self, self.FIELDS, {name: name for name in self.info.splits})

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict({f: tfds.features.Text() for f in self.FIELDS}),
            disable_shuffling=True,  # records stay in the order they were written in
        )

    def _split_generators(self, dl_manager: object) -> dict[str, Any]:
        return {name: self._generate_examples(each) for name, each in self._records.items()}

    def _generate_examples(self, records: Iterable[Any]) -> Iterator[tuple[int, dict[str, str]]]:
        bar = tqdm(records, desc=f"preparing {self.name}", disable=None, leave=False)
        for key, record in enumerate(bar):
            values = record if len(self.FIELDS) > 1 else (record,)
            yield key, dict(zip(self.FIELDS, values, strict=True))


def is_prepared(builder: tfds.core.DatasetBuilder) -> bool:
    """Whether the builder's data lies complete in its directory."""
    return (builder.data_path / "dataset_info.json").exists()


def prepare(builder: tfds.core.DatasetBuilder) -> None:
    """Runs `download_and_prepare` quietly; a complete directory is left as it is.

    TFDS writes into a temporary directory and renames it, so a killed run leaves nothing that
    looks complete. Of several processes one prepares and the others wait for it.

    Raises:
      InputError: if preparation needs TensorFlow and it is not installed.
      WorkError: if preparation fails otherwise, for instance for want of a network.
    """
    if not is_prepared(builder):
        path = Path(builder.data_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with hold(path.with_name(f".{path.name}.lock"), wait=True):
            if not is_prepared(builder):
                _prepare(builder)
    if not builder.info.initialized:  # prepared by another process meanwhile
        builder.info.read_from_directory(builder.data_path)


def _prepare(builder: tfds.core.DatasetBuilder) -> None:
    if builder.data_path.exists():  # half copied or half deleted: TFDS would take it for whole
        builder.data_path.rmtree()
    try:
        with quiet():
            builder.download_and_prepare(
                download_config=tfds.download.DownloadConfig(try_download_gcs=False)
            )
    except ImportError as error:
        raise InputError(
            f"data.name = {builder.name!r}: preparing it needs TensorFlow, or another package that "
            f"is not installed ({first_line(error)}): pip install -r requirements-tfds.txt"
        ) from error
    except Exception as error:
        raise WorkError(
            f"preparing {builder.name!r} in {builder.data_path} failed, nothing was kept: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message; TFDS's go on for hundreds."""
    return str(error).strip().partition("\n")[0]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Turns off TFDS's own bars, banners and warnings; ours say what a user needs."""
    tfds.disable_progress_bar()
    verbosity = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)
    try:
        with contextlib.redirect_stdout(None):
            yield
    finally:
        absl_logging.set_verbosity(verbosity)
