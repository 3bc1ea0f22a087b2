"""What is timed beside the step as it is computes the same."""

import functools

import jax
import numpy as np
import pytest

from attn_jax.benchmark import train
from attn_jax.benchmark.presets import TrainSizes
from attn_jax.config import with_fields
from attn_jax.models.transformer import build_model
from attn_jax.objectives import losses
from attn_jax.training import step
from attn_jax.training.state import split_model
from attn_jax.validation import validate
from benchmarks import tricks

SIZES = TrainSizes(layers=1, heads=2, width=8, length=12, batch=4, vocab=40)


@pytest.fixture(autouse=True)
def _pieces_of_few_logits(monkeypatch):
    monkeypatch.setattr(losses, "most_logits", lambda: 20 * SIZES.vocab)


def lowered(objective, fields):
    """Losses and gradients of a trick's experiment as a program, and its arguments."""
    work = train.synthetic(SIZES, objective)
    named = {f"model.{name}": value for name, value in fields.items()}
    config = validate(with_fields(work.config, named))
    graph, params = split_model(build_model(config.model, SIZES.vocab))
    spec = step.StepSpec(graph, work.objective, None, config)

    def losses_and_gradients(params, text):
        key = jax.random.key(0)
        sums, grads = step._sums_and_gradients(spec, params, work.objective(text, key), key)
        return sums["loss"], sums["weight"], grads

    args = params, work.texts[0]
    return jax.jit(losses_and_gradients).lower(*args), args


kept = functools.cache(lambda objective, **fields: lowered(objective, fields))


def with_and_without(name, monkeypatch):
    """Both programs of a trick, and their arguments; a patched name that is not there raises."""
    trick = tricks.TRICKS[name]
    program, args = kept(trick.objective, **trick.fields)
    trick.undo(monkeypatch.setattr)
    return program, lowered(trick.objective, trick.fields)[0], args


@pytest.mark.parametrize("name", sorted(tricks.TRICKS))
def test_an_undone_trick_is_another_program(name, monkeypatch):
    program, undone, _ = with_and_without(name, monkeypatch)
    assert undone.as_text() != program.as_text()


def test_dropout_is_undone_everywhere(monkeypatch):
    """In embeddings too: no word is cut into bytes any more."""
    texts = (program.as_text() for program in with_and_without("dropout", monkeypatch)[:2])
    assert ["ui8" in text for text in texts] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(tricks.TRICKS.keys() - {"dropout"}))  # draws otherwise
def test_an_undone_trick_computes_the_same(name, monkeypatch):
    program, undone, args = with_and_without(name, monkeypatch)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, undone.compile()(*args), program.compile()(*args))


def test_the_table_has_a_row_for_each_trick():
    row = {"about": "rows", "ours_tokens_per_s": 1500, "peer_tokens_per_s": 1000, "ratio": 1.5}
    row |= {"ratio_low": 1.4, "ratio_high": 1.6, "temp_mib": [10, 20]}
    assert tricks.table([row]).splitlines()[2:] == [
        "| rows | 1,500 | 1,000 | 1.50 (1.40 to 1.60) | 10 | 20 |"
    ]
