"""The annotations of attn_jax are checked while the tests run (see tests/conftest.py)."""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from attn_jax.models.attention import attend
from attn_jax.models.positions import sinusoidal
from attn_jax.models.tokens import Tokens


def test_wrong_types_and_ranks_are_refused():
    with pytest.raises(TypeCheckError):
        sinusoidal(jnp.zeros((1, 3)), 4)  # floats
    with pytest.raises(TypeCheckError):
        sinusoidal(jnp.zeros(3, jnp.int32), 4)  # one axis


def test_letters_must_agree_between_arguments():
    tokens = Tokens.of(jnp.zeros((1, 3), jnp.int32)).causal()
    x, longer = jnp.zeros((1, 2, 3, 4)), jnp.zeros((1, 2, 5, 4))
    assert attend(x, x, x, tokens, tokens).shape == x.shape
    with pytest.raises(TypeCheckError):
        attend(x, x, longer, tokens, tokens)


def test_methods_and_traced_functions_are_checked(tiny):
    with pytest.raises(TypeCheckError):
        tiny().embed(jnp.zeros((1, 3)))
    with pytest.raises(TypeCheckError):
        jax.jit(lambda x: sinusoidal(x, 4))(jnp.zeros((1, 3)))


def test_ranks_are_not_promoted():
    with pytest.raises(ValueError, match="rank"):
        jnp.zeros((2, 3)) + jnp.zeros(3)
