"""Tiny runs, and packed rows of very different lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import (  # noqa: F401
    _compile_fast,
    lm_run,
    run_module,
    session_folder,
    tiny_data,
    translation_run,
)

from attn_jax.config import Config, with_fields
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.objectives import make_objective
from attn_jax.training.optimizers import make_optimizer
from attn_jax.training.state import new_state, split_model
from attn_jax.training.step import StepSpec

# Lengths of the documents packed into each row of 16: rows differ much in what they hold.
DOCUMENTS = ((16,), (3,), (9, 7), (5, 4), (2, 2), (), (16,), (12,))


def packed_rows(specials, seed=0, documents=DOCUMENTS):
    """Rows of documents `<bos> .. <eos>` with ids 7 .. 79 between, and padding."""
    rng = np.random.default_rng(seed)
    ids = np.full((len(documents), 16), specials.pad, np.int32)
    positions, segments = np.zeros_like(ids), np.zeros_like(ids)
    for row, lengths in enumerate(documents):
        start = 0
        for number, length in enumerate(lengths, 1):
            words = rng.integers(7, 80, length)
            words[0], words[-1] = specials.bos, specials.eos
            here = slice(start, start + length)
            ids[row, here], positions[row, here] = words, np.arange(length)
            segments[row, here] = number
            start += length
    return Tokens(ids, positions, segments)


def padded_pairs(specials, seed=0, lengths=(16, 3, 9, 5, 2, 0, 14, 12)):
    """Pairs whose sides have very different lengths."""
    source = packed_rows(specials, seed, [(n,) if n else () for n in lengths])
    target = packed_rows(specials, seed + 1, [(n,) if n else () for n in reversed(lengths)])
    source.ids[source.ids == specials.bos] = 7  # a source has none
    # A pair has both sides or none.
    empty = (source.segments[:, 0] == 0) | (target.segments[:, 0] == 0)
    source.segments[empty] = target.segments[empty] = 0
    return Pair(source, target)


@pytest.fixture(scope="session")
def text_of(specials):
    """Returns a function from the name of an objective to a batch of text for it."""

    def make(objective, seed=0):
        if "translation" in objective:
            return jax.tree.map(jnp.asarray, padded_pairs(specials, seed))
        return jax.tree.map(jnp.asarray, packed_rows(specials, seed))

    return make


@pytest.fixture(scope="session")
def new_spec(specials, tiny):
    """Returns a function that makes a step's spec, and its first state, around a tiny model."""

    def make(objective="causal_lm", **changes):
        architecture = {"masked_lm": "encoder", "translation": "encoder_decoder"}
        fields = {name.replace("__", "."): value for name, value in changes.items()}
        dropout = fields.get("model.dropout", 0.0)
        model = tiny(
            architecture=architecture.get(objective, "decoder"), num_layers=1, dropout=dropout
        )
        config = with_fields(Config(), {"objective.name": objective} | fields)
        graph, params = split_model(model)
        optimizer = make_optimizer(config.optimizer, config.train.steps)
        objective = make_objective(config.objective, specials, 80)
        return StepSpec(graph, objective, optimizer, config), new_state(params, optimizer, config.train.seed)

    return make
