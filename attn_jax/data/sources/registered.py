"""Any data set of the TFDS registry that holds text or translations."""

import importlib.util
from collections.abc import Iterator

import tensorflow_datasets as tfds
import tensorflow_datasets.translate  # TFDS itself registers WMT and others only with TensorFlow

from attn_jax.config import DataConfig
from attn_jax.data.sources.builder import first_line, prepare, quiet
from attn_jax.data.sources.source import OWN, Source, data_dir
from attn_jax.errors import InputError, nearest

# TFDS has no fixed name for the split to tune on.
_VALIDATION = ("validation", "valid", "dev", "test")
_EXTRA = "pip install -r requirements-tfds.txt"


def open_source(config: DataConfig) -> Source:
    """Opens the TFDS builder `config.name`, such as "ted_hrlr_translate/pt_to_en".

    It is a source of pairs if its features name both languages of the config, else of text.

    Raises:
      InputError: for an unknown name, unsuitable features, or a builder that needs TensorFlow.
      WorkError: if it cannot be prepared.
    """
    builder = _builder(config)
    fields = choose_fields(config, builder.info.features)
    prepare(builder)
    if builder.info.file_format.file_suffix != "array_record":
        raise InputError(
            f"data.name = {config.name!r}: {builder.data_path} was prepared as "
            f"{builder.info.file_format.file_suffix}, expected array_record; remove it or "
            f"choose another data.data_dir"
        )
    return Source(builder, fields, choose_splits(config, list(builder.info.splits)))


def choose_fields(config: DataConfig, features: tfds.features.FeaturesDict) -> tuple[str, ...]:
    """Returns the features to read: `(source, target)` by language, or the one text.

    Raises:
      InputError: naming the features there are.
    """
    paths = [path for path, _ in _texts(features)]
    by_language = {path.rpartition("/")[2]: path for path in paths}
    wanted = config.source_language, config.target_language
    if all(language in by_language for language in wanted):
        return tuple(by_language[language] for language in wanted)
    if any(isinstance(f, tfds.features.Translation) for f in (features, *features.values())):
        missing = next(language for language in wanted if language not in by_language)
        field = "source_language" if missing == wanted[0] else "target_language"
        raise InputError(
            f"data.{field} = {missing!r}: {config.name!r} has {', '.join(sorted(by_language))}"
        )
    if len(paths) == 1 or "text" in paths:
        return ("text",) if "text" in paths else (paths[0],)
    raise InputError(
        f"data.name = {config.name!r}: expected one text feature, or two named by language "
        f"({', '.join(wanted)}); it has {', '.join(features)}"
    )


def choose_splits(config: DataConfig, names: list[str]) -> dict[str, str]:
    """Maps train, validation and test to the builder's splits or slices of them.

    Without any split to tune on, the last 1 % of the training split is cut off for it.

    Raises:
      InputError: if there is no training split.
    """
    if "train" not in names:
        raise InputError(
            f"data.name = {config.name!r}: no split named train; it has {', '.join(names)}"
        )
    validation = next((name for name in _VALIDATION if name in names), None)
    if validation is None:
        return {"train": "train[:99%]", "validation": "train[99%:]"}
    splits = {"train": "train", "validation": validation, "test": "test"}
    return {ours: theirs for ours, theirs in splits.items() if theirs in names}


def _texts(features: tfds.features.FeaturesDict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields the path and the feature of every text, nested ones as "outer/inner"."""
    for name, feature in features.items():
        if isinstance(feature, tfds.features.FeaturesDict):
            yield from _texts(feature, f"{prefix}{name}/")
        elif isinstance(feature, tfds.features.Text):
            yield prefix + name, feature


def _builder(config: DataConfig) -> tfds.core.DatasetBuilder:
    name, _, variant = config.name.partition("/")
    if not name.partition(":")[0].isidentifier():  # on which TFDS only says that it cannot parse it
        raise InputError(_unknown(config.name))
    try:
        with quiet():
            known = tfds.builder_cls(name.partition(":")[0]).builder_configs
            if known and variant and variant.partition(":")[0] not in known:
                hint = nearest(variant, known)
                raise InputError(f"data.name = {config.name!r}: {name!r} has no such variant{hint}")
            return tfds.builder(
                config.name, data_dir=data_dir(config), file_format="array_record", try_gcs=False
            )
    except tfds.core.DatasetNotFoundError as error:
        raise InputError(_unknown(config.name)) from error
    except InputError:
        raise
    except ImportError as error:
        raise InputError(f"data.name = {config.name!r}: {error}; {_EXTRA}") from error
    except (ValueError, AssertionError) as error:  # a wrong version or syntax
        raise InputError(f"data.name = {config.name!r}: {first_line(error)}") from error


def _unknown(name: str) -> str:
    hint = nearest(name, [*OWN, *tfds.list_builders(with_community_datasets=False)])
    message = f"data.name = {name!r}: expected {', '.join(OWN)} or a data set of TFDS{hint}"
    if importlib.util.find_spec("tensorflow") is None:
        message += f" (TFDS has some only with TensorFlow: {_EXTRA})"
    return message
