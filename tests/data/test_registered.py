from typing import ClassVar

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core import features as tfds_features

from attn_jax.config import DataConfig
from attn_jax.data.sources import open_source
from attn_jax.data.sources.registered import choose_fields, choose_splits
from attn_jax.errors import InputError, WorkError

Text = tfds_features.Text


class Registered(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A builder of the registry, in which the examples of tests stand."""

    VERSION = tfds.core.Version("1.0.0")
    code_path = None  # TFDS would look for checksums beside the test
    FEATURES = tfds_features.FeaturesDict({"text": Text()})
    SPLITS = ("train", "validation", "test")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=self.FEATURES)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in self.SPLITS}

    def _generate_examples(self, split):
        for i in range(200):
            yield i, {name: f"{split} {name} {i}" for name in self.FEATURES}


class RegisteredPairs(Registered):
    FEATURES = tfds_features.Translation(languages=("de", "en", "fr"))
    SPLITS = ("train", "dev")


class RegisteredLines(Registered):
    FEATURES = tfds_features.FeaturesDict({"line": Text(), "label": tfds_features.Scalar(np.int32)})
    SPLITS = ("train",)

    def _generate_examples(self, split):
        for i in range(200):
            yield i, {"line": f"line {i}", "label": i}


class RegisteredNeedsTensorflow(Registered):
    def _generate_examples(self, split):
        raise ModuleNotFoundError("No module named 'tensorflow'")
        yield


class RegisteredDownload(Registered):
    def _split_generators(self, dl_manager):
        raise ConnectionError("no network\nmany\nlines")


class RegisteredVariants(Registered):
    BUILDER_CONFIGS: ClassVar = [tfds.core.BuilderConfig(name=name) for name in ("de_en", "fr_en")]


def opened(tmp_path, name, **fields):
    return open_source(DataConfig(name=name, data_dir=str(tmp_path), **fields))


def test_translations_are_pairs_by_language(tmp_path):
    source = opened(tmp_path, "registered_pairs", source_language="fr", target_language="de")
    assert source.kind == "pair"
    assert len(source.split("train")) == 200
    french, german = source.split("train")[5]
    assert french.replace("fr", "de") == german
    assert all(pair[0].startswith("dev fr") for pair in source.split("validation"))
    other = opened(tmp_path, "registered_pairs", source_language="en", target_language="de")
    assert other.split("train")[0][0].startswith("train en")
    assert other.fingerprint != source.fingerprint


def test_a_language_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"data\.target_language = 'it': .* has de, en, fr"):
        opened(tmp_path, "registered_pairs", target_language="it")
    assert not list(tmp_path.iterdir())


def test_one_text_feature_is_read_and_validation_cut_off(tmp_path):
    source = opened(tmp_path, "registered_lines")
    assert source.kind == "text"
    train, validation = list(source.split("train")), list(source.split("validation"))
    assert (len(train), len(validation)) == (198, 2)
    assert sorted(train + validation) == sorted(f"line {i}" for i in range(200))
    assert not set(train) & set(validation)


def test_preparation_that_needs_tensorflow(tmp_path):
    message = r"registered_needs_tensorflow.*needs TensorFlow.*requirements-tfds\.txt"
    with pytest.raises(InputError, match=message):
        opened(tmp_path, "registered_needs_tensorflow")


def test_a_failed_download(tmp_path):
    message = r"registered_download.*nothing was kept: ConnectionError: no network$"
    with pytest.raises(WorkError, match=message):
        opened(tmp_path, "registered_download")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("web_bibel", "web_bible"),
        ("registered_pair", "registered_pairs"),
        ("tiny_shakespear", "tiny_shakespeare"),
        ("registered_variants/de_em", "de_en"),
    ],
)
def test_an_unknown_name_has_a_hint(tmp_path, name, hint):
    with pytest.raises(InputError, match=rf"data\.name = '{name}': .*'{hint}'") as caught:
        opened(tmp_path, name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a b", "", "registered:9.9.9", "registered_lines/", "x/y:z"])
def test_names_that_mean_nothing(tmp_path, name):
    with pytest.raises(InputError, match=r"data\.name") as caught:
        opened(tmp_path, name)
    assert "\n" not in str(caught.value)


def test_variants_are_chosen_by_name(tmp_path):
    german = opened(tmp_path, "registered_variants/de_en")
    assert german.fingerprint != opened(tmp_path, "registered_variants/fr_en").fingerprint
    assert german.fingerprint == opened(tmp_path, "registered_variants").fingerprint  # the first


FEATURES = {
    "text": ({"text": Text(), "title": Text()}, ("text",)),
    "languages": ({"en": Text(), "de": Text(), "text": Text()}, ("en", "de")),
    "nested": (
        {"id": Text(), "translation": tfds_features.Translation(languages=("de", "en"))},
        ("translation/en", "translation/de"),
    ),
}


@pytest.mark.parametrize("kind", FEATURES)
def test_fields_are_found_from_the_features(kind):
    features, fields = FEATURES[kind]
    config = DataConfig(name="any")
    assert choose_fields(config, tfds_features.FeaturesDict(features)) == fields


LABEL = tfds_features.Scalar(np.int32)


@pytest.mark.parametrize("features", [{"title": Text(), "body": Text()}, {"label": LABEL}])
def test_features_without_a_text_are_named(features):
    with pytest.raises(InputError, match=f"it has {', '.join(features)}"):
        choose_fields(DataConfig(name="any"), tfds_features.FeaturesDict(features))


def test_splits_are_found_by_name():
    config = DataConfig(name="any")
    full = {"train": "train", "validation": "validation", "test": "test"}
    assert choose_splits(config, ["test", "train", "validation", "unsupervised"]) == full
    assert choose_splits(config, ["train", "test"])["validation"] == "test"
    assert choose_splits(config, ["train", "dev"]) == {"train": "train", "validation": "dev"}
    with pytest.raises(InputError, match="no split named train; it has all"):
        choose_splits(config, ["all"])
