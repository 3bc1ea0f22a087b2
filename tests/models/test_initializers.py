"""Draws of few sizes give what jax's own initializers give."""

import jax
import numpy as np
import pytest
from flax import nnx

from attn_jax.config import ModelConfig
from attn_jax.models import initializers
from attn_jax.models.transformer import build_model

SHAPES = [(3, 5), (64, 192), (300, 400)]  # the last takes a longer draw


@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_those_of_the_exact_size(shape):
    key = jax.random.key(3)
    usual = nnx.initializers.variance_scaling(1 / 6, "fan_in", "truncated_normal")(key, shape)
    np.testing.assert_array_equal(initializers.scaled(1 / 6)(key, shape), usual)
    usual = nnx.initializers.normal(0.3)(key, shape)
    np.testing.assert_array_equal(initializers.normal(0.3)(key, shape), usual)


def test_another_shape_costs_one_small_program(compilations):
    """The one that cuts; the draw, which is slow to compile, is there already."""
    initializers.scaled()(jax.random.key(0), (7, 11))
    before = len(compilations)
    initializers.scaled()(jax.random.key(0), (19, 30))
    assert len(compilations) - before == 1


def test_fresh_branches_add_up_to_unit_scale():
    """A branch's last product has 1 / (all branches of its stack) of the usual variance."""
    sizes = {"num_layers": 2, "d_model": 64, "num_heads": 2, "d_ff": 128}
    config = ModelConfig(architecture="encoder_decoder", **sizes)
    found, expected = {}, {}
    for path, kernel in nnx.to_flat_state(nnx.state(build_model(config, 8))):
        if path[-1] == "kernel":
            branches = {"encoder": 4, "decoder": 6}[path[0]] if path[-2] in ("out", "down") else 1
            found[path] = kernel[...].std() * len(kernel[...]) ** 0.5
            expected[path] = pytest.approx(branches**-0.5, rel=0.06)
    assert found == expected
    assert len(found) == 2 * (4 + 7)  # encoder: qkv, out, up, down; decoder: also q, kv, out
