"""Names, shapes and values of exported parameters; needs no CTranslate2."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax.config import Config, ModelConfig, with_fields
from attn_jax.errors import InputError
from attn_jax.export.ctranslate2 import positions_table, refuse_inexpressible
from attn_jax.export.ctranslate2_spec import EPSILON, rename
from attn_jax.models.layers import make_norm
from attn_jax.models.positions import sinusoidal
from attn_jax.training.state import split_model

D, F, V, P = 8, 12, 80, 16
LINEAR = ("weight", "bias")


def exported(tiny, **fields):
    model = tiny(architecture="encoder_decoder", **fields)
    params = split_model(model)[1]
    return model.config, params, rename(model.config, params, positions_table(model.config, 5))


def expected(linears, norm=("gamma", "beta"), last_norm=True, positions=P, linear=LINEAR):
    """Shapes by hand, of one encoder and one decoder layer."""
    shapes = {
        "encoder/embeddings_0/weight": (V, D),
        "decoder/embeddings/weight": (V, D),
        "decoder/projection/weight": (V, D),
    }
    for side, branches in (("encoder", ("self_attention", "ffn")), ("decoder", tuple(linears))):
        norms = [f"{side}/layer_norm"] if last_norm else []
        for branch in branches:
            norms.append(f"{side}/layer_0/{branch}/layer_norm")
            for name, (outputs, inputs) in linears[branch].items():
                parts = {"weight": (outputs, inputs), "bias": (outputs,)}
                shapes |= {f"{side}/layer_0/{branch}/{name}/{p}": parts[p] for p in linear}
        shapes |= {f"{name}/{part}": (D,) for name in norms for part in norm}
        if positions:
            shapes[f"{side}/position_encodings/encodings"] = (positions, D)
    return shapes


def test_everything_a_model_can_have(tiny):
    """One key-value head for two heads of width 4: 8 + 4 + 4 rows."""
    fields = {"bias": True, "positions": "learned", "activation": "swiglu", "num_kv_heads": 1}
    _, params, weights = exported(tiny, num_layers=1, **fields)
    linears = {
        "self_attention": {"linear_0": (16, D), "linear_1": (D, D)},
        "attention": {"linear_0": (D, D), "linear_1": (8, D), "linear_2": (D, D)},
        "ffn": {"linear_0": (F, D), "linear_0_noact": (F, D), "linear_1": (D, F)},
    }
    assert {name: x.shape for name, x in weights.items()} == expected(linears)
    assert {x.dtype for x in weights.values()} == {np.dtype(np.float32)}
    block = params["decoder"]["blocks"][0]
    for ours, theirs in (
        (params["embedding"], "decoder/projection/weight"),
        (params["decoder"]["positions"], "decoder/position_encodings/encodings"),
        (block["cross"]["kv"]["kernel"].T, "decoder/layer_0/attention/linear_1/weight"),
        (block["cross"]["out"]["bias"], "decoder/layer_0/attention/linear_2/bias"),
        (block["mlp"]["up"]["kernel"][:, :F].T, "decoder/layer_0/ffn/linear_0/weight"),
        (block["mlp"]["up"]["bias"][F:], "decoder/layer_0/ffn/linear_0_noact/bias"),
        (block["norm_cross"]["scale"], "decoder/layer_0/attention/layer_norm/gamma"),
        (block["norm_mlp"]["bias"], "decoder/layer_0/ffn/layer_norm/beta"),
    ):
        np.testing.assert_array_equal(ours, weights[theirs])


def test_nothing_that_it_has_not(tiny):
    fields = {"norm": "rms", "norm_position": "post", "activation": "relu"}
    weights = exported(tiny, num_layers=1, **fields)[2]
    linears = {
        "self_attention": {"linear_0": (3 * D, D), "linear_1": (D, D)},
        "attention": {"linear_0": (D, D), "linear_1": (2 * D, D), "linear_2": (D, D)},
        "ffn": {"linear_0": (F, D), "linear_1": (D, F)},
    }
    bare = expected(linears, ("gamma",), last_norm=False, positions=0, linear=("weight",))
    assert {name: x.shape for name, x in weights.items()} == bare


def test_a_norm_without_bias_adds_nothing(tiny):
    weights = exported(tiny)[2]
    betas = [x for name, x in weights.items() if name.endswith("/beta")]
    assert len(betas) == 2 + 2 * (2 + 3)
    assert not np.any(betas)


def test_tables_that_are_no_parameters(tiny):
    name = "encoder/position_encodings/encodings"
    table = exported(tiny, positions="sinusoidal")[2][name]
    np.testing.assert_array_equal(table, sinusoidal(jnp.arange(5)[None], D)[0])
    table = exported(tiny, positions="none")[2][name]
    np.testing.assert_array_equal(table, np.zeros((5, D)))


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_epsilon_is_that_of_our_norms(norm):
    assert make_norm(ModelConfig(norm=norm), nnx.Rngs(0)).epsilon == EPSILON


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model.architecture", "decoder"),
        ("objective.name", "causal_translation"),
        ("model.window", 4),
        ("model.share_sides", True),
    ],
)
def test_what_ctranslate2_cannot_express_is_refused(field, value):
    fields = {"model.architecture": "encoder_decoder", "objective.name": "translation"}
    refuse_inexpressible(with_fields(Config(), fields))
    with pytest.raises(InputError, match=f"^{field} = {value!r}: CTranslate2 export expects"):
        refuse_inexpressible(with_fields(Config(), fields | {field: value}))
