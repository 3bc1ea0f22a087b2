"""Position schemes: what each computes, and that all of them read the fields, not the columns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.config import Config, with_fields
from attn_jax.errors import InputError
from attn_jax.models.positions import rotate, rotation, sinusoidal
from attn_jax.models.tokens import Tokens
from attn_jax.validation import validate

SCHEMES = ("rotary", "learned", "sinusoidal", "none")
WORDS = np.array([7, 4, 9, 8], np.int32)


@jax.jit
def rotated(x, position):
    return rotate(x, rotation(position.reshape(1, 1), x.shape[-1]))


def test_rotary_products_depend_on_distance_only():
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)

    def product(i, j):
        return float(np.sum(np.asarray(rotated(q, i)) * np.asarray(rotated(k, j))))

    for distance in (0, 1, 5):
        products = [product(start + distance, start) for start in (0, 3, 40)]
        np.testing.assert_allclose(products, products[0], atol=1e-4)
    by_distance = [product(i, 0) for i in range(6)]
    assert len({round(x, 3) for x in by_distance}) == 6
    assert abs(product(2, 0) - product(0, 2)) > 1e-3  # direction counts too


def test_rotary_turns_pairs_by_the_angles_of_the_paper():
    x = np.random.default_rng(0).normal(size=(1, 1, 1, 4)).astype(np.float32)
    a, b = x[0, 0, 0, :2], x[0, 0, 0, 2:]
    turned = (a + 1j * b) * np.exp(1j * 3 * np.array([1, 1 / 100]))  # 10,000^(-2i/4)
    np.testing.assert_allclose(
        np.asarray(rotated(x, 3))[0, 0, 0], np.concatenate([turned.real, turned.imag]), atol=1e-6
    )
    assert np.array_equal(rotated(x, 0), x)


def test_rotary_keeps_the_type():
    assert rotated(np.ones((1, 1, 1, 4), jnp.bfloat16), 3).dtype == jnp.bfloat16


def test_sinusoidal_values():
    positions = jnp.array([[0, 1, 7], [2, 2, 300]], jnp.int32)
    angles = np.asarray(positions)[..., None] / 10_000.0 ** (np.arange(3) / 3)
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    found = jax.jit(sinusoidal, static_argnums=1)(positions, 6)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def rows(*patterns):
    """One row per pattern: the four words at its ones, padding at its zeros."""
    real = np.array(patterns, bool)
    ids = np.full(real.shape, 6, np.int32)
    ids[real] = np.tile(WORDS, len(patterns))
    return Tokens.of(jnp.asarray(ids), jnp.asarray(real)), real


RIGHT, LEFT, GAPS = [1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1], [1, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("architecture", ["encoder", "decoder", "encoder_decoder"])
@pytest.mark.parametrize("positions", SCHEMES)
def test_padding_changes_nothing_wherever_it_lies(tiny, architecture, positions):
    model = tiny(architecture=architecture, positions=positions)
    tokens, real = rows(RIGHT, LEFT, GAPS, RIGHT, LEFT, GAPS)
    source, _ = rows(RIGHT, RIGHT, RIGHT, GAPS, GAPS, LEFT)
    hidden = np.asarray(model(tokens, source))[real].reshape(6, 4, 8)
    np.testing.assert_allclose(hidden, np.repeat(hidden[:1], 6, axis=0), atol=1e-5)


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_a_padded_row_equals_one_without_padding(tiny, architecture):
    model = tiny(architecture=architecture)
    alone = np.asarray(jax.jit(lambda tokens: model(tokens))(Tokens.of(jnp.asarray([WORDS]))))
    tokens, real = rows(RIGHT, LEFT, GAPS, RIGHT, LEFT, GAPS)
    for row in np.asarray(model(tokens))[real].reshape(6, 4, 8):
        np.testing.assert_allclose(row, alone[0], atol=1e-5)


@pytest.mark.parametrize("positions", SCHEMES)
def test_packed_documents_equal_separate_ones(tiny, positions):
    model = tiny(positions=positions)
    tokens, _ = rows(*[RIGHT] * 6)
    alone = np.asarray(model(tokens))[0, :4]
    packed = np.array([0, 1, 0, 1, 2, 3]), np.array([1, 1, 2, 2, 2, 2])
    by_column = np.arange(6), packed[1]
    merged = packed[0], np.ones(6)
    fields = [packed, packed, by_column, by_column, merged, merged]
    places, segments = (np.array(x, np.int32) for x in zip(*fields, strict=True))
    ids = np.array([[5, 8, *WORDS]] * 6, np.int32)
    hidden = np.asarray(model(Tokens(*map(jnp.asarray, (ids, places, segments)))))[:, 2:]
    np.testing.assert_allclose(hidden[0], alone, atol=1e-5)
    # Negative controls. A common shift of all positions is felt by tables only.
    assert (abs(hidden[2] - alone).max() > 1e-3) == (positions in ("learned", "sinusoidal"))
    assert abs(hidden[4] - alone).max() > 1e-3


@pytest.mark.parametrize("positions", SCHEMES)
def test_positions_change_something_except_none(tiny, positions):
    model = tiny(positions=positions)
    tokens = rows(*[RIGHT] * 6)[0].causal()  # the mask is fixed: only the scheme is left to act
    stretched = tokens.replace(positions=2 * tokens.positions)
    difference = abs(np.asarray(model(stretched)) - np.asarray(model(tokens)))[:, :4].max()
    assert difference == 0 if positions == "none" else difference > 1e-3


def test_a_model_refuses_sequences_longer_than_its_learned_table(tiny):
    model = tiny(positions="learned", max_length=4)
    tokens = Tokens.of(jnp.zeros((1, 5), jnp.int32))
    with pytest.raises(InputError, match=r"5 tokens .* model.max_length = 4"):
        model(tokens)
    with pytest.raises(InputError, match=r"5 tokens .* model.max_length = 4"):
        model.start(1, 5)
    assert model.start(1, 4).tokens.ids.shape == (1, 4)
    pair_model = tiny(architecture="encoder_decoder", positions="learned", max_length=4)
    with pytest.raises(InputError, match="5 tokens"):
        pair_model.start(1, 4, tokens)


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "none"])
def test_other_schemes_have_no_limit(tiny, positions):
    model = tiny(positions=positions, max_length=4)
    model.start(1, 5)
    tokens = Tokens.of(jnp.zeros((1, 5), jnp.int32))
    assert jax.eval_shape(model, tokens).shape == (1, 5, 8)


@pytest.mark.parametrize(
    ("objective", "architecture", "length", "fits"),
    [
        ("causal_lm", "decoder", 16, True),
        ("causal_lm", "decoder", 17, False),
        ("translation", "encoder_decoder", 16, True),
        ("prefix_translation", "decoder", 8, True),  # source and target in one row
        ("prefix_translation", "decoder", 9, False),
    ],
)
def test_a_config_whose_learned_table_is_too_short_is_refused(
    objective, architecture, length, fits
):
    config = with_fields(
        Config(),
        {
            "model.positions": "learned",
            "model.max_length": 16,
            "model.architecture": architecture,
            "objective.name": objective,
            "data.length": length,
        },
    )
    if fits:
        validate(config)
    else:
        with pytest.raises(InputError, match=r"model\.max_length = 16"):
            validate(config)
