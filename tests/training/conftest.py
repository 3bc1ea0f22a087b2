"""Tiny runs, and packed rows of very different lengths."""

import jax
import jax.numpy as jnp
import pytest
from tiny_runs import (
    lm_run,
    run_module,
    tiny_data,
    translation_run,
)
from unequal import SIMPLE, packed_pairs, packed_rows

from attn_jax.config import Config, with_fields
from attn_jax.objectives import OBJECTIVES, make_objective
from attn_jax.training.optimizers import make_optimizer
from attn_jax.training.state import new_state, split_model
from attn_jax.training.step import StepSpec


@pytest.fixture(scope="session")
def text_of(specials):
    """Returns a function from the name of an objective to a batch of text for it."""

    def make(objective, seed=0):
        if "translation" in objective:
            return jax.tree.map(jnp.asarray, packed_pairs(specials, seed))
        return jax.tree.map(jnp.asarray, packed_rows(specials, seed))

    return make


@pytest.fixture(scope="session")
def new_spec(vocabulary, tiny):
    """Returns a function that makes a step's spec, and its first state, around a tiny model."""

    def make(objective="causal_lm", **changes):
        fields = {name.replace("__", "."): value for name, value in changes.items()}
        dropout = fields.get("model.dropout", 0.0)
        architecture = OBJECTIVES[objective].architectures[-1]
        model = tiny(architecture=architecture, dropout=dropout, **SIMPLE)
        config = with_fields(Config(), {"objective.name": objective} | fields)
        graph, params = split_model(model)
        optimizer = make_optimizer(config.optimizer, config.train.steps)
        objective = make_objective(config.objective, vocabulary)
        return StepSpec(graph, objective, optimizer, config), new_state(
            params, optimizer, config.train.seed
        )

    return make
