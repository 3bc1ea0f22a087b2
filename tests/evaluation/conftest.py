"""Tiny data sets and models to evaluate."""

import jax
import numpy as np
import pytest
from flax import nnx
from tiny_runs import (
    lm_run,
    tiny_data,
    translation_run,
)

from attn_jax.data.pipeline import open_dataset
from attn_jax.evaluation.evaluator import Subject
from attn_jax.models.transformer import build_model
from attn_jax.objectives import make_objective
from attn_jax.training.state import split_model


@pytest.fixture(scope="session")
def make_subject():
    """Returns a function that makes what is evaluated, and random parameters, from a config."""

    def make(config):
        dataset = open_dataset(config)
        tokenizer = dataset.tokenizer
        objective = make_objective(config.objective, tokenizer.vocabulary)
        shapes = nnx.eval_shape(lambda: build_model(config.model, tokenizer.vocab_size))
        graph, like = split_model(shapes)
        rng = np.random.default_rng(0)
        params = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), like)
        return Subject(config, dataset, objective, graph), jax.device_put(params)

    return make
