"""The recipes of configs/ for translation, on small stand-ins for their data."""

import gzip

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
import tensorflow_datasets.translate
from flax import nnx
from test_configs import load
from tiny_runs import ROOT, WORDS

from attn_jax.comparison.arms import plan
from attn_jax.config import with_fields
from attn_jax.data.pipeline import open_dataset
from attn_jax.data.sources.builder import quiet
from attn_jax.models.transformer import build_model
from attn_jax.training.ledger import count_parameters
from attn_jax.training.state import split_model
from attn_jax.validation import validate

TINY = "multi30k_tiny"
LANGUAGES = {"de": "Über {} Brücken.", "en": "Over {} bridges!", "ru": "Через {} мостов?"}


def config_of(name):
    return load(ROOT / f"configs/{name}.py").get_config()


def parameters(config):
    shapes = nnx.eval_shape(lambda: build_model(config.model, config.tokenizer.vocab_size))
    return count_parameters(split_model(shapes)[1])[0]


def sentence(language, i):
    return LANGUAGES[language].format(f"{WORDS[i % 10]} {WORDS[i * i % 7]} ({i})")


REGISTERED = {"wmt14_base": ("en", "de"), "iwslt14": ("ru", "en")}


@pytest.mark.parametrize("name", REGISTERED)
def test_registered_sets_are_read_in_the_right_direction(name, tmp_path, monkeypatch):
    """The real builders, with sentences of ours in place of those that they download."""
    config, (source, target) = config_of(name), REGISTERED[name]
    with quiet():
        builder = tfds.builder_cls(config.data.name.partition("/")[0])

    def splits(self, dl_manager):
        return {split: self._generate_examples(split) for split in ("train", "validation", "test")}

    def examples(self, split):
        for i in range(300 if split == "train" else 5):
            yield i, {language: sentence(language, i) for language in (source, target)}

    monkeypatch.setattr(builder, "_split_generators", splits)
    monkeypatch.setattr(builder, "_generate_examples", examples)
    small = {"data.data_dir": str(tmp_path), "tokenizer.name": "char"}
    dataset = open_dataset(validate(with_fields(config, small)))
    assert dataset.kind == "pair"
    assert len(dataset.texts("test")) == 5
    pairs = {(sentence(source, i), sentence(target, i)) for i in range(300)}
    assert set(dataset.texts("train")) == pairs
    batch = next(dataset.train_batches(seed=0))
    assert batch.source.ids.shape[0] == config.data.batch_tokens // config.data.length
    first = [side.ids[0][side.segments[0] == 1] for side in (batch.source, batch.target)]
    assert tuple(map(dataset.tokenizer.decode, first)) in pairs


def test_raw_text_comes_back_as_it_was(tmp_path):
    """Cased, with punctuation and umlauts, in .gz files named as those of the recipe."""
    config = config_of("multi30k_raw")
    fields = {"data.data_dir": str(tmp_path / "tfds"), "tokenizer.vocab_size": 50}
    for split in ("train", "validation", "test"):
        paths = getattr(config.data, f"{split}_files").split(",")
        assert all(path.startswith("data/multi30k/") for path in paths)
        copies = [tmp_path / path.rpartition("/")[2] for path in paths]
        for copy, language in zip(copies, ("en", "de"), strict=True):
            assert copy.suffixes[-2:] == [f".{language}", ".gz"]
            lines = [sentence(language, i) for i in range(120)]
            copy.write_bytes(gzip.compress("\n".join(lines).encode()))
        fields[f"data.{split}_files"] = ",".join(map(str, copies))
    dataset = open_dataset(validate(with_fields(config, fields)))
    source, target = dataset.texts("test")[7]
    assert (source, target) == (sentence("en", 7), sentence("de", 7))
    for text in (source, target):  # one vocabulary of both languages
        ids = dataset.tokenizer.encode(text)
        assert dataset.tokenizer.specials.unk not in ids
        assert dataset.tokenizer.decode(ids) == text


def test_the_raw_recipe_differs_in_text_and_tokenizer_only():
    tiny, raw = config_of(TINY), config_of("multi30k_raw")
    assert (raw.model, raw.optimizer, raw.train) == (tiny.model, tiny.optimizer, tiny.train)
    assert raw.tokenizer.vocab_size == 8000


def test_encoder_decoder_and_prefix_arm_have_the_same_parameters_to_the_byte(tmp_path):
    sizes = []
    for run in plan(config_of("shakespeare"), "0", tmp_path):
        model = nnx.eval_shape(lambda config=run.config: build_model(config.model, 65))
        sizes.append(jax.tree.map(lambda x: (x.shape, x.dtype), split_model(model)[1]))
    assert len(sizes) == 3
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    study = config_of("multi30k_grid")
    return {run.arm: run.config for run in plan(study, "0", tmp_path_factory.mktemp("grid"))}


@pytest.mark.slow
def test_the_grid_matches_the_parameters_that_it_says(grid):
    whole, shared, half, stack = (
        parameters(grid[arm]) for arm in ("encoder-decoder", "shared", "half-depth", "causal")
    )
    assert 2.5e6 <= whole <= 2.6e6
    assert stack == pytest.approx(whole, rel=0.01)
    assert grid["prefix"].model == grid["causal-source-loss"].model == grid["causal"].model
    assert half < shared < 0.85 * whole


def test_the_grid_chooses_nothing_on_the_test_set(grid):
    """Every run is judged once, at its end, and all of them alike."""
    for config in grid.values():
        assert (config.eval.split, config.eval.beam_size, config.eval.max_items) == ("test", 5, 0)
        assert config.train.eval_every == 0
        assert config.eval == grid["causal"].eval
    tiny = config_of(TINY)
    shares = [c.optimizer.warmup_steps / c.train.steps for c in (tiny, grid["causal"])]
    assert np.isclose(*shares, atol=1e-3)
    losses = {arm: config.objective.source_loss for arm, config in grid.items()}
    assert [arm for arm, weight in losses.items() if weight] == ["causal-source-loss"]
