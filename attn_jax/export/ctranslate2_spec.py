"""Our parameters under CTranslate2's names; reads numpy and ctranslate2 only, no JAX."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_jax.config import ModelConfig

EPSILON = 1e-6  # of Flax's norms; CTranslate2's own is 1e-5
# Names in CTranslate2's enumeration; jax.nn.gelu is the tanh approximation.
ACTIVATIONS = {"gelu": "GELUTanh", "relu": "RELU", "swiglu": "SWISH"}

Params = Mapping[Any, Any]  # nested dicts of arrays
Weights = dict[str, np.ndarray]


def rename(config: ModelConfig, params: Params, positions: np.ndarray | None = None) -> Weights:
    """Returns the parameters of an encoder-decoder as CTranslate2 has them, float32, by name.

    Queries, keys and values are fused in the same order there, with grouped heads too. Its dense
    layers are transposed, and its gate is a layer of its own.

    Args:
      config: of the model.
      params: as `split_model` returns them.
      positions: [P, D], what is added to the embeddings at each position; not read where that is
        learned, and so among the parameters, or where it is nothing, as with rotary positions.
    """
    embedding = params["embedding"]
    weights = {
        "encoder/embeddings_0/weight": embedding,
        "decoder/embeddings/weight": embedding,
        "decoder/projection/weight": embedding,
    }
    for side in ("encoder", "decoder"):
        stack = params[side]
        if config.positions != "rotary":
            table = stack["positions"] if config.positions == "learned" else positions
            weights[f"{side}/position_encodings/encodings"] = table
        if config.norm_position == "pre":
            weights |= _norm(f"{side}/layer_norm", config, stack["last_norm"])
        for number, block in stack["blocks"].items():
            weights |= _block(f"{side}/layer_{number}", config, block)
    return {name: np.ascontiguousarray(x, np.float32) for name, x in weights.items()}


def _block(scope: str, config: ModelConfig, block: Params) -> Weights:
    found = {}
    for ours, theirs in (("attention", "self_attention"), ("cross", "attention"), ("mlp", "ffn")):
        if ours in block:
            found |= _norm(f"{scope}/{theirs}/layer_norm", config, block[f"norm_{ours}"])
            for name, layer in _dense_layers(config, block[ours]):
                found |= _linear(f"{scope}/{theirs}/{name}", layer)
    return found


def _dense_layers(config: ModelConfig, branch: Params) -> list[tuple[str, Params]]:
    """Returns the dense layers of attention or of an MLP, with their names there."""
    ours = [name for name in ("qkv", "q", "kv", "up", "out", "down") if name in branch]
    layers = {f"linear_{number}": branch[name] for number, name in enumerate(ours)}
    if "up" in branch and config.activation == "swiglu":
        halves = {name: np.split(np.asarray(x), 2, axis=-1) for name, x in branch["up"].items()}
        for half, name in enumerate(("linear_0", "linear_0_noact")):
            layers[name] = {part: x[half] for part, x in halves.items()}
    return list(layers.items())


def _linear(scope: str, layer: Params) -> Weights:
    weights = {f"{scope}/weight": np.asarray(layer["kernel"]).T}
    return weights | ({f"{scope}/bias": np.asarray(layer["bias"])} if "bias" in layer else {})


def _norm(scope: str, config: ModelConfig, norm: Params) -> Weights:
    weights = {f"{scope}/gamma": np.asarray(norm["scale"])}
    if config.norm == "layer":
        weights[f"{scope}/beta"] = np.asarray(norm.get("bias", np.zeros(config.d_model)))
    return weights


def make_spec(config: ModelConfig, weights: Weights) -> Any:
    """Returns the `TransformerSpec` of a model, but for its vocabulary.

    Args:
      config: of the model; it must have no window.
      weights: of `rename`.
    """
    from ctranslate2.specs import common_spec, model_spec, transformer_spec

    options = {
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "num_heads_kv": config.num_kv_heads or None,
        "pre_norm": config.norm_position == "pre",
        "activation": common_spec.Activation[ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm == "rms",
    }
    if config.positions == "rotary":
        # In all dimensions of a head; a pair is half a head apart.
        options |= {"rotary_dim": 0, "rotary_interleave": False}
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(**options),
        transformer_spec.TransformerDecoderSpec(**options),
    )
    spec.config.layer_norm_epsilon = EPSILON
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = True  # by sqrt(D)
    for name, value in weights.items():
        scope, _, last = name.rpartition("/")
        setattr(model_spec.index_spec(spec, scope), last, value)
    return spec


def save(spec: Any, vocabulary: list[str], directory: str) -> None:
    """Writes a `TransformerSpec` into a directory; source and target share the vocabulary."""
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.validate()
    spec.optimize()
    spec.save(directory)
