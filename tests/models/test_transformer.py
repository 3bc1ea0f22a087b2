"""The three architectures: who influences whom, shared parameters, dropout, types, sizes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from slow_model import slow_logits

from attn_jax.config import ModelConfig
from attn_jax.models import layers, transformer
from attn_jax.models.kernels import dense
from attn_jax.models.layers import dropout
from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import build_model

T = 6  # rows of a batch, and tokens of a row


def same_rows(segments):
    """Six equal rows: positions count up in each segment, all ids of the row differ."""
    segments = np.array(segments, np.int32)
    positions = [int((segments[:t] == segments[t]).sum()) for t in range(T)]
    fields = [range(T), positions, segments]
    return Tokens(*(jnp.asarray(np.tile(np.array([x], np.int32), (T, 1))) for x in fields))


PLAIN = same_rows([1] * 6)
PACKED = same_rows([1, 1, 1, 1, 2, 0])
SOURCE = same_rows([1, 1, 0, 1, 2, 2])

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
    {"architecture": "encoder_decoder", "positions": "rotary", "share_sides": True},
]


def name(fields):
    return "-".join(str(v) for v in fields.values())


def with_different_ids(tokens, source):
    """Two batches [T, T] in which no two tokens are the same."""
    ids = jnp.arange(T * T, dtype=jnp.int32).reshape(T, T)
    return tokens.replace(ids=ids), source.replace(ids=ids + T * T)


@pytest.mark.parametrize("fields", MODELS, ids=name)
def test_logits_equal_those_of_a_slow_model(tiny, fields):
    model, (tokens, source) = tiny(**fields), with_different_ids(PACKED, SOURCE)
    logits = model.logits(model(tokens, source))
    np.testing.assert_allclose(logits, slow_logits(model, tokens, source), rtol=1e-4, atol=1e-4)


def influence(model, tokens, source):
    """Where the gradient of each hidden state reaches: target tokens [T, T], source [T, T].

    All ids of the two batches are made different, so that the gradient with respect to the
    embedding table tells all tokens apart. Row t is there for hidden state t.
    """
    tokens, source = with_different_ids(tokens, source)
    graph, table, rest = nnx.split(model, nnx.PathContains("embedding"), ...)
    direction = jnp.asarray(np.random.default_rng(0).normal(size=(T, 8)), jnp.float32)

    def projected(table):
        hidden = nnx.merge(graph, table, rest)(tokens, source)
        return jnp.sum(hidden[jnp.arange(T), jnp.arange(T)] * direction)

    gradient_VD = np.asarray(jax.tree.leaves(jax.grad(projected)(table))[0])
    reached = (gradient_VD != 0).any(-1)[: 2 * T * T].reshape(2, T, T)
    return reached[0], reached[1]


def reach(tokens, window, layers=2):
    """Where influence may go: one step of the mask per layer, and the residual stream."""
    step = np.asarray(visible(tokens, tokens, window))[0] | np.eye(T, dtype=bool)
    return np.linalg.matrix_power(step.astype(int), layers) > 0


def expected_influence(model, tokens, source):
    """What `influence` should find."""
    tokens, source = model.fill_blocks(tokens), source.bidirectional()
    target_reach, source_reach = (reach(x, model.config.window) for x in (tokens, source))
    if model.config.architecture != "encoder_decoder":
        return target_reach, np.zeros((T, T), bool)
    cross = np.asarray(visible(tokens, source))[0].astype(int)
    return target_reach, cross @ source_reach > 0


@pytest.mark.parametrize("fields", MODELS, ids=name)
def test_gradients_go_where_the_mask_says(tiny, fields):
    model = tiny(**fields)
    expected = expected_influence(model, PACKED, SOURCE)
    assert np.array_equal(influence(model, PACKED, SOURCE), expected)


def test_the_expected_influence_is_what_the_names_promise(tiny):
    ahead = np.subtract.outer(np.arange(T), np.arange(T))
    decoder, encoder, both = (
        tiny(architecture=a) for a in ("decoder", "encoder", "encoder_decoder")
    )
    assert np.array_equal(expected_influence(decoder, PLAIN, SOURCE)[0], ahead >= 0)
    assert expected_influence(encoder, PLAIN, SOURCE)[0].all()
    target, source = expected_influence(both, PLAIN, SOURCE)
    assert np.array_equal(target, ahead >= 0)
    assert np.array_equal(source, np.tile([1, 1, 0, 1, 0, 0], (T, 1)))
    packed = expected_influence(encoder, PACKED, SOURCE)[0]
    groups = np.array([1, 1, 1, 1, 2, 3])
    assert np.array_equal(packed, np.equal.outer(groups, groups))
    windowed = expected_influence(tiny(architecture="encoder", window=2), PLAIN, SOURCE)[0]
    assert np.array_equal(windowed, abs(ahead) <= 2)  # two layers of one step each


def test_a_prefix_opens_the_prefix_only(tiny):
    reached = influence(tiny(), PLAIN.prefix(3), SOURCE)[0]
    assert np.array_equal(reached, np.tri(T, dtype=bool) | (np.arange(T) < 3)[None])


@pytest.mark.parametrize("place", [(1, 2), (4, 1)])
def test_gradients_find_a_planted_leak(tiny, monkeypatch, place):
    model = tiny(architecture="decoder")
    expected = expected_influence(model, PACKED, SOURCE)
    t, s = place  # from the future, and from another document
    leak = lambda q, k, window: visible(q, k, window).at[:, t, s].set(True)  # noqa: E731
    monkeypatch.setattr(dense, "visible", leak)
    assert not np.array_equal(influence(model, PACKED, SOURCE), expected)


def changes(run, tokens):
    """True at [t, j] if changing token j moves hidden state t; row j has token j changed."""
    changed = tokens.replace(ids=jnp.where(jnp.eye(T, dtype=bool), 70, tokens.ids))
    return (abs(np.asarray(run(changed)) - np.asarray(run(tokens))).max(-1) > 1e-5).T


@pytest.mark.parametrize("fields", MODELS, ids=name)
def test_changing_a_token_changes_only_what_sees_it(tiny, fields):
    """T21, without gradients."""
    model = tiny(**fields)
    expected = expected_influence(model, PACKED, SOURCE)
    assert np.array_equal(changes(lambda x: model(x, SOURCE), PACKED), expected[0])
    if fields["architecture"] == "encoder_decoder":
        assert np.array_equal(changes(lambda x: model(PACKED, x), SOURCE), expected[1])


@pytest.mark.parametrize(
    ("architecture", "positions", "equivariant"),
    [("encoder", "none", True), ("encoder", "rotary", False), ("decoder", "none", False)],
)
def test_only_an_encoder_without_positions_ignores_order(
    tiny, architecture, positions, equivariant
):
    model = tiny(architecture=architecture, positions=positions)
    order = jnp.array([3, 0, 4, 2, 5, 1])
    shuffled = model(PLAIN.replace(ids=PLAIN.ids[:, order]))
    assert np.allclose(shuffled, model(PLAIN)[:, order], atol=1e-5) == equivariant


def layout(model):
    return {path: leaf.shape for path, leaf in nnx.to_flat_state(nnx.state(model))}


@pytest.mark.parametrize("fields", [{}, {"positions": "learned", "bias": True}], ids=name)
def test_encoder_and_decoder_have_the_same_parameters(tiny, fields):
    encoder, decoder = (tiny(architecture=a, **fields) for a in ("encoder", "decoder"))
    assert layout(encoder) == layout(decoder)
    # Weights of another seed, moved into the decoder.
    weights = jax.tree.map(lambda x: x[::-1], nnx.state(encoder))
    encoder, decoder = (nnx.merge(nnx.graphdef(m), weights) for m in (encoder, decoder))
    tokens = PLAIN
    for same in (tokens.causal(), tokens.bidirectional(), tokens.prefix(2)):
        assert np.array_equal(encoder(same), decoder(same))
    encoded, decoded = encoder(tokens), decoder(tokens)
    assert abs(encoded - decoded).max() > 1e-3
    assert np.array_equal(encoded, decoder(tokens.bidirectional()))
    assert np.array_equal(decoded, encoder(tokens.causal()))


def test_encoder_decoder_blocks_rule_the_target_and_never_the_source(tiny):
    model = tiny(architecture="encoder_decoder")
    tokens = PLAIN
    causal = model(tokens, SOURCE)
    assert np.array_equal(model(tokens.causal(), SOURCE), causal)
    assert np.array_equal(model(tokens, SOURCE.causal()), causal)
    assert abs(model(tokens.bidirectional(), SOURCE) - causal).max() > 1e-3


def of_encoder(path):
    """Where an encoder of its own has what is shared at this path."""
    return ("encoder", *path[1:])


def test_shared_sides_are_two_sides_with_the_same_weights(tiny):
    """Oracle: two stacks into which the weights are copied, whose gradients add up."""
    fields = {"architecture": "encoder_decoder", "positions": "learned"}
    shared, apart = tiny(**fields, share_sides=True), tiny(**fields)
    weights = dict(nnx.to_flat_state(nnx.state(shared)))
    assert {path[0] for path in weights} == {"decoder", "embedding"}
    copied = {
        path: weights.get(path, weights.get(("decoder", *path[1:]))) for path in layout(apart)
    }
    apart = nnx.merge(nnx.graphdef(apart), nnx.from_flat_state(copied))
    (_, hidden), gradient = values_and_gradients(shared, PACKED, SOURCE)
    (_, expected), gradients = values_and_gradients(apart, PACKED, SOURCE)
    np.testing.assert_allclose(hidden, expected, atol=1e-6)
    gradients = {path: leaf[...] for path, leaf in nnx.to_flat_state(gradients)}
    for path, leaf in nnx.to_flat_state(gradient):
        uses = gradients[path] + gradients.get(of_encoder(path), 0)
        np.testing.assert_allclose(leaf[...], uses, rtol=1e-4, atol=1e-4)
    added = [gradients[of_encoder(path)] for path in weights if of_encoder(path) in gradients]
    assert all(abs(x).max() > 1e-4 for x in added)


def test_embeddings_of_sides_come_on_top_of_those_of_tokens(tiny):
    model = tiny(side_embeddings=True)
    sides = jnp.tile(jnp.array([[0, 0, 0, 1, 1, 1]]), (T, 1))
    embedded, plain = model.embed(PLAIN.ids, sides), tiny().embed(PLAIN.ids)
    added = np.asarray(model.side_embedding[...])[np.asarray(sides)] * 8**0.5
    table = np.asarray(model.embedding[...])[np.asarray(PLAIN.ids)] * 8**0.5
    np.testing.assert_allclose(embedded, table + added, atol=1e-6)
    assert plain.shape == embedded.shape
    told, other = (PLAIN.replace(sides=s) for s in (sides, 1 - sides))
    assert abs(model(told) - model(other)).max() > 1e-3
    assert np.array_equal(tiny()(told), tiny()(PLAIN))  # which has none
    with pytest.raises(ValueError, match="sides"):
        model(PLAIN)


@pytest.mark.parametrize("width", [64, 61])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_rate_mean_and_independence(rate, width):
    dropped = np.asarray(dropout(jnp.ones((4000, width)), rate, jax.random.key(0)))
    zero, exact = dropped == 0, round(rate * 256) / 256
    assert abs(exact - rate) <= 1 / 512
    assert abs(zero.mean() - exact) < 0.002  # half a step of 1/256
    assert abs(dropped.mean() - 1) < 0.005
    assert len(np.unique(dropped)) == 2
    neighbors = (zero[:, 1:] & zero[:, :-1]).mean()  # four neighbors share a random word
    assert abs(neighbors - exact**2) < 0.005
    assert abs(zero.mean(0) - exact).max() < 5 * (exact * (1 - exact) / 4000) ** 0.5


def test_dropout_off():
    x = jnp.ones((4, 8))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_a_model_drops_only_with_a_key(tiny, architecture):
    model, plain = (tiny(architecture=architecture, dropout=rate) for rate in (0.2, 0.0))
    tokens = PLAIN
    run = lambda m, key: m(tokens, SOURCE, key=key)  # noqa: E731
    assert np.array_equal(run(model, None), run(plain, None))
    first, again, second = (run(model, jax.random.key(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert abs(first - second).max() > 1e-3
    assert abs(first - run(model, None)).max() > 1e-3


@pytest.mark.parametrize("architecture", ["encoder", "encoder_decoder"])
def test_dropout_is_on_embeddings_and_branches_each_with_a_key_of_its_own(
    tiny, monkeypatch, architecture
):
    """Halved where elements would be dropped, the logits are those of a slow model so halved."""
    keys, (tokens, source) = [], with_different_ids(PACKED, SOURCE)

    def halve(x, rate, key):
        assert rate == 0.2
        keys.append(tuple(np.asarray(jax.random.key_data(key))))
        return x / 2

    for module in (layers, transformer):
        monkeypatch.setattr(module, "dropout", halve)
    model = tiny(architecture=architecture, positions="learned", dropout=0.2)
    logits = model.logits(model(tokens, source, key=jax.random.key(0)))
    expected = slow_logits(model, tokens, source, kept=0.5)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    one_side = 1 + 2 * 2  # embeddings, and two branches a layer
    places = one_side if architecture == "encoder" else 2 * one_side + 2  # cross-attention
    assert len(keys) == len(set(keys)) == places


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_bfloat16_activations_float32_parameters_and_logits(tiny, architecture):
    model = tiny(architecture=architecture, dtype="bfloat16", norm="rms", bias=True)
    assert {x.dtype for x in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}
    hidden = jax.jit(lambda: model(PLAIN, SOURCE))()
    assert hidden.dtype == jnp.bfloat16
    assert jax.eval_shape(model.logits, hidden).dtype == jnp.float32
    exact = tiny(architecture=architecture, norm="rms", bias=True)(PLAIN, SOURCE)
    assert exact.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(hidden, np.float32), exact, atol=0.15, rtol=0.05)


def count(model):
    return sum(x.size for x in jax.tree.leaves(nnx.state(model)))


def test_parameter_counts_by_hand(tiny):
    table = 80 * 8  # shared by input and output
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

    @partial(jax.jit, static_argnums=0)
    def fresh(seed):
        model = build_model(config, 50, seed)
        embedded = model.embed(jnp.arange(50, dtype=jnp.int32)[None])
        return nnx.state(model), embedded.std(), model.logits(embedded).std()

    (first, embedded, logits), (other, *_) = fresh(0), fresh(1)
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True)
    assert not any(np.array_equal(a, b) for a, b in pairs if a.ndim > 1)
    assert 0.9 < embedded < 1.1
    assert 0.5 < logits < 2


def values_and_gradients(model, tokens, source):
    """Hidden states under dropout, and the gradient of their weighted sum."""
    graph, params = nnx.split(model)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(T, T, 8)), jnp.float32)

    def total(params):
        hidden = nnx.merge(graph, params)(tokens, source, key=jax.random.key(0))
        return jnp.sum(hidden * weights), hidden

    return jax.jit(jax.value_and_grad(total, has_aux=True))(params)


@pytest.mark.slow
@pytest.mark.parametrize("share_sides", [False, True])
def test_scanned_and_rematerialized_layers_have_the_same_parameters_and_results(tiny, share_sides):
    fields = {"architecture": "encoder_decoder", "dropout": 0.2, "norm": "rms"}
    fields |= {"activation": "relu", "positions": "none", "share_sides": share_sides}
    expected = values_and_gradients(tiny(**fields), PACKED, SOURCE)
    for how in ({"scan_layers": True, "remat": "block"}, {"remat": "products"}):
        model = tiny(**fields, **how)
        assert jax.tree.structure(nnx.state(model)) == jax.tree.structure(nnx.state(tiny(**fields)))
        got = values_and_gradients(model, PACKED, SOURCE)
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), got, expected)


def test_rematerialization_computes_again_and_a_scan_compiles_one_block(tiny):
    def count(operation, **how):
        graph, params = nnx.split(tiny(**how))
        total = lambda params: jnp.sum(nnx.merge(graph, params)(PACKED))  # noqa: E731
        return str(jax.make_jaxpr(jax.grad(total))(params)).count(operation)

    products, exponentials = (count(name) for name in ("dot_general", " exp "))
    assert count("dot_general", remat="block") > products
    assert count("dot_general", scan_layers=True) < products
    kept = {"remat": "products"}
    assert products < count("dot_general", **kept) < count("dot_general", remat="block")
    assert count(" exp ", **kept) > exponentials


def test_capturing_under_rematerialization_and_a_scan_gives_the_same_weights(tiny):
    found = []
    for how in ({}, {"remat": "block", "scan_layers": True}):
        captured = []
        tiny(**how)(PACKED, capture=captured)
        found.append([np.asarray(weights) for weights in captured])
    assert len(found[0]) == 2
    jax.tree.map(np.testing.assert_array_equal, *found)
