"""Draws of few sizes give what jax's own initializers give."""

import jax
import numpy as np
import pytest
from flax import nnx

from attn_jax.models import initializers

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
