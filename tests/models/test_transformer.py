"""The three architectures: who influences whom, shared parameters, dropout, types, sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax.config import ModelConfig
from attn_jax.models import attention
from attn_jax.models.layers import dropout
from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import build_model

T, S = 5, 4
IDS = jnp.arange(T, dtype=jnp.int32)[None]
SOURCE = Tokens.of(jnp.arange(T, T + S, dtype=jnp.int32)[None], jnp.array([[1, 1, 0, 1]], bool))
PACKED = Tokens(
    ids=IDS,
    positions=jnp.array([[0, 1, 2, 0, 1]], jnp.int32),
    segments=jnp.array([[1, 1, 1, 2, 2]], jnp.int32),
)
PADDED = Tokens.of(IDS, jnp.array([[1, 1, 1, 1, 0]], bool))

# Every value of every field at least twice, rather than the full product.
MODELS = [
    {"architecture": "encoder", "positions": "rotary", "norm_position": "post"},
    {"architecture": "encoder", "positions": "learned", "norm": "rms", "activation": "swiglu"},
    {"architecture": "encoder", "positions": "sinusoidal", "activation": "relu", "bias": True},
    {"architecture": "encoder", "positions": "none", "num_kv_heads": 1, "window": 2},
    {"architecture": "decoder", "positions": "rotary", "norm": "rms", "activation": "swiglu"},
    {"architecture": "decoder", "positions": "learned", "norm_position": "post", "bias": True},
    {"architecture": "decoder", "positions": "sinusoidal", "num_kv_heads": 1, "window": 2},
    {"architecture": "decoder", "positions": "none", "activation": "relu", "norm": "rms"},
    {"architecture": "encoder_decoder", "positions": "rotary", "num_kv_heads": 1, "window": 2},
    {"architecture": "encoder_decoder", "positions": "learned", "activation": "relu"},
    {"architecture": "encoder_decoder", "positions": "sinusoidal", "norm_position": "post"},
    {"architecture": "encoder_decoder", "positions": "none", "norm": "rms", "bias": True},
]


def name(fields):
    return "-".join(str(v) for v in fields.values())


@jax.jit(static_argnums=0)
def _jacobian(graph, table, rest, tokens, source):
    direction = jnp.asarray(np.random.default_rng(0).normal(size=(1, 1, 8)), jnp.float32)

    def projected(table):
        hidden = nnx.merge(graph, table, rest)(tokens, source)
        return (hidden * direction)[0].sum(-1)

    return jax.tree.leaves(jax.jacrev(projected)(table))[0]


def influence(model, tokens, source=None):
    """True at [t, i] where the gradient of hidden state t reaches the embedding of token id i."""
    parts = nnx.split(model, nnx.PathContains("embedding"), ...)
    jacobian_TVD = np.asarray(_jacobian(*parts, tokens, source))
    return (jacobian_TVD != 0).any(-1)[:, : T + S]


def expected_influence(model, tokens):
    """Where influence may go: one step of the mask per layer, and the residual stream."""
    tokens = model.fill_blocks(tokens)
    step = np.asarray(visible(tokens, tokens, model.config.window))[0] | np.eye(T, dtype=bool)
    return np.linalg.matrix_power(step.astype(int), model.config.num_layers) > 0


def check_influence(model, tokens):
    reached = influence(model, tokens, SOURCE)
    assert np.array_equal(reached[:, :T], expected_influence(model, tokens))
    if model.config.architecture == "encoder_decoder":
        # Every real source token matters to every target token that is not padding.
        real = np.asarray(tokens.segments[0] == 1)
        expected = np.outer(real, np.asarray(SOURCE.segments[0] == 1))
        assert np.array_equal(reached[:, T:], expected)
    else:
        assert not reached[:, T:].any()


@pytest.mark.parametrize("fields", MODELS, ids=name)
def test_gradients_go_where_the_mask_says(tiny, fields):
    model = tiny(**fields)
    check_influence(model, PADDED)
    if fields["architecture"] != "encoder_decoder":  # whose sources are never packed
        check_influence(model, PACKED)


@pytest.mark.parametrize("window", [0, 2])
def test_the_expected_influence_is_what_the_names_promise(tiny, window):
    plain = Tokens.of(IDS)
    causal = expected_influence(tiny(architecture="decoder", window=window), plain)
    both = expected_influence(tiny(architecture="encoder", window=window), plain)
    reach = np.subtract.outer(np.arange(T), np.arange(T))
    limit = T if window == 0 else 2  # two layers of one step each
    assert np.array_equal(causal, (reach >= 0) & (reach <= limit))
    assert np.array_equal(both, abs(reach) <= limit)
    packed = expected_influence(tiny(architecture="encoder", window=window), PACKED)
    assert not packed[:3, 3:].any()
    assert not packed[3:, :3].any()


def test_gradients_go_both_ways_in_a_prefix_only(tiny):
    reached = influence(tiny(), Tokens.of(IDS).prefix(3))[:, :T]
    assert np.array_equal(reached, np.tri(T, dtype=bool) | (np.add.outer([0] * T, range(T)) < 3))


def test_gradients_see_a_planted_leak(tiny, monkeypatch):
    def leak(q, k, window):
        return visible(q, k, window).at[:, 1, 2].set(True)

    _jacobian.clear_cache()
    monkeypatch.setattr(attention, "visible", leak)
    with pytest.raises(AssertionError):
        check_influence(tiny(architecture="decoder"), PADDED)
    _jacobian.clear_cache()


@pytest.mark.parametrize("fields", MODELS, ids=name)
def test_changing_a_token_changes_only_what_sees_it(tiny, forward, fields):
    """T21, without gradients: row j of a batch is the text with token j changed."""
    model = tiny(**fields)
    changed = jnp.where(jnp.eye(T + 1, T, dtype=bool), 19, IDS)  # the last row is unchanged
    tokens, source = _repeat(PADDED.replace(ids=IDS), T + 1), _repeat(SOURCE, T + 1)
    hidden = forward(model, tokens.replace(ids=changed), source)
    differs = np.asarray(abs(hidden[:T] - hidden[T:]).max(-1) > 1e-6)
    assert np.array_equal(differs.T, expected_influence(model, PADDED))


def _repeat(tokens, times):
    return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), tokens)


def test_changing_a_source_token_changes_every_target(tiny, forward):
    model = tiny(architecture="encoder_decoder")
    changed = jnp.where(jnp.eye(S + 1, S, dtype=bool), 19, SOURCE.ids)
    source = _repeat(SOURCE, S + 1).replace(ids=changed)
    hidden = forward(model, _repeat(Tokens.of(IDS), S + 1), source)
    differs = np.asarray(abs(hidden[:S] - hidden[S:]).max(-1))
    real = np.asarray(SOURCE.segments[0] == 1)
    assert (differs[real] > 1e-6).all()
    assert (differs[~real] == 0).all()


@pytest.mark.parametrize(
    ("architecture", "positions", "equivariant"),
    [("encoder", "none", True), ("encoder", "rotary", False), ("decoder", "none", False)],
)
def test_only_an_encoder_without_positions_ignores_order(
    tiny, forward, architecture, positions, equivariant
):
    model = tiny(architecture=architecture, positions=positions)
    order = jnp.array([3, 0, 4, 2, 1])
    hidden = forward(model, Tokens.of(IDS))[:, order]
    shuffled = forward(model, Tokens.of(IDS[:, order]))
    assert np.allclose(shuffled, hidden, atol=1e-5) == equivariant


def layout(model):
    return {path: leaf.shape for path, leaf in nnx.to_flat_state(nnx.state(model))}


@pytest.mark.parametrize("fields", [{}, {"positions": "learned", "bias": True}], ids=name)
def test_encoder_and_decoder_have_the_same_parameters(tiny, forward, fields):
    encoder, decoder = (tiny(architecture=a, **fields) for a in ("encoder", "decoder"))
    assert layout(encoder) == layout(decoder)
    # Weights of another seed, moved into the decoder.
    weights = jax.tree.map(lambda x: x[::-1], nnx.state(encoder))
    encoder, decoder = (nnx.merge(nnx.graphdef(m), weights) for m in (encoder, decoder))
    tokens = Tokens.of(IDS)
    for same in (tokens.causal(), tokens.bidirectional(), tokens.prefix(2)):
        assert np.array_equal(forward(encoder, same), forward(decoder, same))
    encoded, decoded = forward(encoder, tokens), forward(decoder, tokens)
    assert abs(encoded - decoded).max() > 1e-3
    assert np.array_equal(encoded, forward(decoder, tokens.bidirectional()))
    assert np.array_equal(decoded, forward(encoder, tokens.causal()))


def test_encoder_decoder_blocks_rule_the_target_and_never_the_source(tiny, forward):
    model = tiny(architecture="encoder_decoder")
    tokens = Tokens.of(IDS)
    causal = forward(model, tokens, SOURCE)
    assert np.array_equal(forward(model, tokens.causal(), SOURCE), causal)
    assert np.array_equal(forward(model, tokens, SOURCE.causal()), causal)
    assert abs(forward(model, tokens.bidirectional(), SOURCE) - causal).max() > 1e-3


@pytest.mark.parametrize("width", [64, 61])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_rate_mean_and_independence(rate, width):
    ones = jnp.ones((500, width))
    dropped = np.asarray(dropout(ones, rate, jax.random.key(0)))
    zero = dropped == 0
    assert abs(zero.mean() - rate) < 0.01
    assert abs(dropped.mean() - 1) < 0.02
    assert len(np.unique(dropped)) == 2
    neighbors = (zero[:, 1:] & zero[:, :-1]).mean()  # four neighbors share a random word
    assert abs(neighbors - rate**2) < 0.01
    assert zero.mean(0).std() < 3 * (rate * (1 - rate) / 500) ** 0.5


def test_dropout_off():
    x = jnp.ones((4, 8))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_a_model_drops_only_with_a_key(tiny, forward, architecture):
    model, plain = (tiny(architecture=architecture, dropout=rate) for rate in (0.2, 0.0))
    tokens = Tokens.of(IDS)
    run = lambda m, key: forward(m, tokens, SOURCE, key)  # noqa: E731
    assert np.array_equal(run(model, None), run(plain, None))
    first, again, second = (run(model, jax.random.key(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert abs(first - second).max() > 1e-3
    assert abs(first - run(model, None)).max() > 1e-3


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_bfloat16_activations_float32_parameters_and_logits(tiny, forward, architecture):
    model = tiny(architecture=architecture, dtype="bfloat16")
    assert {x.dtype for x in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}
    tokens = Tokens.of(IDS)
    hidden = forward(model, tokens, SOURCE)
    assert hidden.dtype == jnp.bfloat16
    assert model.logits(hidden).dtype == jnp.float32
    exact = forward(tiny(architecture=architecture), tokens, SOURCE)
    assert exact.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(hidden, np.float32), exact, atol=0.15, rtol=0.05)


def count(model):
    return sum(x.size for x in jax.tree.leaves(nnx.state(model)))


def test_parameter_counts_by_hand(tiny):
    table = 20 * 8  # shared by input and output
    block = 8 + 8 * (8 + 2 * 4) + 8 * 8 + 8 + 8 * 2 * 12 + 12 * 8  # norm, qkv, out, norm, up, down
    assert count(tiny(num_kv_heads=1, activation="swiglu")) == table + 2 * block + 8
    norm, dense = 2 * 8, lambda a, b: (a + 1) * b
    attention, mlp = dense(8, 24) + dense(8, 8), dense(8, 12) + dense(12, 8)
    cross = dense(8, 8) + dense(8, 16) + dense(8, 8)
    encoder, decoder = 2 * norm + attention + mlp, 3 * norm + attention + cross + mlp
    model = tiny(architecture="encoder_decoder", positions="learned", bias=True)
    assert count(model) == table + 2 * 16 * 8 + 2 * (encoder + decoder) + 2 * norm


def test_fresh_parameters_depend_on_the_seed_and_give_unit_sizes():
    config = ModelConfig(num_layers=1, d_model=64, num_heads=2, d_ff=64)
    first, again, other = (build_model(config, 50, seed) for seed in (0, 0, 1))
    leaves = [jax.tree.leaves(nnx.state(m)) for m in (first, again, other)]
    assert all(np.array_equal(a, b) for a, b in zip(*leaves[:2], strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(*leaves[::2], strict=True) if a.ndim > 1)
    embedded = first.embed(jnp.arange(50, dtype=jnp.int32)[None])
    assert 0.9 < embedded.std() < 1.1
    assert 0.5 < first.logits(embedded / 1.0).std() < 2
