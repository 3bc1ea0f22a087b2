"""The budgets by hand: parameters, tokens, FLOPs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.config import ModelConfig
from attn_jax.data.tokenizers import Vocabulary
from attn_jax.files import read_json
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.models.transformer import build_model
from attn_jax.objectives.batch import Batch
from attn_jax.objectives.causal_lm import CausalLM
from attn_jax.objectives.masked_next_token import MaskedNextToken
from attn_jax.objectives.masking import Masking
from attn_jax.objectives.mixture import Mixture
from attn_jax.training import run_directory
from attn_jax.training.ledger import (
    count_parameters,
    flops_per_token,
    order_fingerprint,
    read_tokens,
    training_flops,
)
from attn_jax.training.state import split_model

D, F, V, L = 8, 12, 80, 2  # of the model in `tiny`
BLOCK = D * 3 * D + D * D + 2 * D * F  # kernels: queries, keys and values; output; MLP
NORMS = 2 * D * L + D  # scales: two a block, one at the end


def params_of(tiny, **fields):
    model = tiny(**fields)
    return model.config, split_model(model)[1]


def row(length, width=8):
    return Tokens.of(jnp.ones((1, width), jnp.int32), jnp.arange(width)[None] < length)


def batch_of(inputs, targets, source=None):
    weights = (jnp.arange(inputs.ids.shape[1])[None] < targets).astype(jnp.float32)
    return Batch(inputs, inputs.ids, weights, source=source)


def test_parameters_by_hand(tiny):
    table = V * D
    for architecture in ("encoder", "decoder"):
        _, params = params_of(tiny, architecture=architecture)
        assert count_parameters(params) == (table + L * BLOCK + NORMS, L * BLOCK + NORMS)
    _, params = params_of(tiny, positions="learned")
    inside = L * BLOCK + NORMS
    assert count_parameters(params) == (table + 16 * D + inside, inside)
    _, params = params_of(tiny, bias=True)
    biases = L * (3 * D + D + F + D) + 2 * D * L + D
    assert count_parameters(params)[1] == inside + biases
    _, params = params_of(tiny, architecture="encoder_decoder")
    cross = L * (D * D + D * 2 * D + D * D + D)
    assert count_parameters(params)[1] == 2 * inside + cross
    _, params = params_of(tiny, architecture="encoder_decoder", share_sides=True)
    assert count_parameters(params) == (table + inside + cross, inside + cross)
    _, params = params_of(tiny, side_embeddings=True)
    assert count_parameters(params) == (table + 2 * D + inside, inside)


@pytest.mark.parametrize("n", [1, 5, 8])
def test_flops_of_a_single_stack_by_hand(tiny, n):
    """Of `n` tokens, 3 of them targets; padding up to 8 is free."""
    config, params = params_of(tiny)
    rest = n * L * BLOCK + 3 * V * D  # multiply-adds: dense layers, vocabulary
    attention = 2 * D * L  # of a pair: its score, and its value weighted
    both = training_flops(config, params, batch_of(row(n).bidirectional(), 3))
    assert both == 3 * 2 * (rest + attention * n * n)
    causal = training_flops(config, params, batch_of(row(n).causal(), 3))
    assert causal == 3 * 2 * (rest + attention * n * (n + 1) / 2)


def test_flops_of_a_window_by_hand(tiny):
    config, params = params_of(tiny, window=3)
    flops = training_flops(config, params, batch_of(row(6).causal(), 0))
    pairs = 1 + 2 + 3 + 3 + 3 + 3
    assert flops == 3 * 2 * (6 * L * BLOCK + 2 * D * L * pairs)


def test_flops_of_packed_documents_are_those_of_each(tiny):
    config, params = params_of(tiny)
    segments = jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]])
    positions = jnp.array([[0, 1, 2, 0, 1, 2, 3, 0]])
    tokens = Tokens(jnp.ones((1, 8), jnp.int32), positions, segments).bidirectional()
    flops = training_flops(config, params, batch_of(tokens, 0))
    assert flops == 3 * 2 * (7 * L * BLOCK + 2 * D * L * (3 * 3 + 4 * 4))


@pytest.mark.parametrize("share_sides", [False, True])
def test_flops_of_an_encoder_decoder_by_hand(tiny, share_sides):
    """A source of 5 tokens, and 3 of a target of which all count.

    Shared weights are fewer parameters and as many operations.
    """
    config, params = params_of(tiny, architecture="encoder_decoder", share_sides=share_sides)
    batch = batch_of(row(3).causal(), 3, source=row(5).bidirectional())
    dense = 5 * L * BLOCK + 3 * L * BLOCK  # each side its own stack
    cross = L * (5 * 2 * D * D + 3 * (D * D + D * D))  # keys and values; queries and output
    pairs = 5 * 5 + 3 * 4 / 2 + 3 * 5
    assert training_flops(config, params, batch) == 3 * 2 * (
        dense + cross + 3 * V * D + 2 * D * L * pairs
    )


def test_a_target_of_less_weight_costs_as_much(tiny):
    config, params = params_of(tiny)
    batch = batch_of(row(5).causal(), 3)
    lighter = batch.replace(weights=batch.weights / 2)
    assert training_flops(config, params, lighter) == training_flops(config, params, batch)


def test_flops_are_those_that_xla_counts_where_nothing_is_masked():
    """An outside oracle: matrix products of the forward pass, at a width where they dominate."""
    config = ModelConfig(architecture="encoder", num_layers=1, d_model=64, num_heads=2, d_ff=256)
    model = build_model(config, 300)
    tokens = Tokens.of(jnp.ones((4, 32), jnp.int32)).bidirectional()
    _, params = split_model(model)

    def forward(tokens):
        return model.logits(model(tokens).reshape(-1, 64))

    cost = jax.jit(forward).lower(tokens).cost_analysis()
    ours = training_flops(config, params, Batch(tokens, tokens.ids, jnp.ones((4, 32)))) / 3
    assert ours == pytest.approx(cost["flops"], rel=0.1)


@pytest.mark.parametrize("by", ["batch", "row"])
def test_a_mixture_costs_the_mean_of_its_parts(tiny, specials, by):
    """Whatever the first batches were drawn to be."""
    config, params = params_of(tiny)
    masking = Masking(Vocabulary(80, specials), 0.3, 0.3, 0.8, 0.1)
    masked, key = MaskedNextToken(masking), jax.random.key(0)
    text = Tokens.of(jnp.full((4, 16), 40).at[:, 0].set(specials.bos))

    def flops(objective):
        return flops_per_token(config, params, objective, iter([text, text]), key)

    expected = 0.25 * flops(CausalLM()) + 0.75 * flops(masked)
    assert flops(Mixture(masked, 0.25, by)) == pytest.approx(expected)
    assert flops(masked) < 0.9 * flops(CausalLM())


def test_a_schedule_costs_what_its_middle_does(tiny, specials):
    config, params = params_of(tiny)
    text, key = Tokens.of(jnp.full((4, 64), 40)), jax.random.key(0)

    def flops(first, last):
        masked = MaskedNextToken(Masking(Vocabulary(80, specials), first, last, 0.8, 0.1))
        return flops_per_token(config, params, masked, iter([text]), key)

    assert flops(0.1, 0.5) == flops(0.3, 0.3)
    assert flops(0.1, 0.1) < flops(0.3, 0.3) < flops(0.5, 0.5)


def test_tokens_read_are_those_that_are_not_padding():
    assert read_tokens(row(5)) == 5
    assert read_tokens(Pair(row(5), row(3))) == 8


@pytest.mark.parametrize("run", ["lm_run", "translation_run"])
def test_the_ledger_of_a_run_equals_a_slow_count(run, request, tiny_data):
    from attn_jax.data.pipeline import open_dataset
    from attn_jax.training.run_directory import read_config

    workdir = request.getfixturevalue(run)
    config, ledger = read_config(workdir), read_json(workdir / "ledger.json")
    tokens = targets = 0
    batches = open_dataset(config).train_batches(config.train.seed)
    for _ in range(config.train.steps):
        batch = next(batches)
        sides = (batch.source, batch.target) if run == "translation_run" else (batch,)
        for side in sides:
            tokens += int((side.segments > 0).sum())
        for row_segments in sides[-1].segments:  # of a translation, the target
            for segment in range(1, row_segments.max() + 1):
                targets += int((row_segments == segment).sum()) - 1
    assert ledger["tokens_seen"] == tokens
    assert ledger["loss_bearing_tokens"] == targets
    assert ledger["step"] == config.train.steps
    dataset = open_dataset(config)
    assert ledger["order_fingerprint"] == order_fingerprint(dataset.train_batches(0))
    assert ledger["order_fingerprint"] != order_fingerprint(dataset.train_batches(1))
    assert np.isfinite(ledger["training_flops"])
    assert ledger["training_flops"] > 6 * tokens


@pytest.mark.parametrize(
    ("head", "status", "told"),
    [("abc", "", "abc"), ("abc", "?? configs/mine.py", "abc+changes"), ("", "", None)],
)
def test_a_commit_says_whether_files_differ_from_it(monkeypatch, head, status, told):
    answers = {"rev-parse": head, "status": status}
    monkeypatch.setattr(run_directory, "_git", lambda name, _: answers[name])
    assert run_directory.git_commit() == told
