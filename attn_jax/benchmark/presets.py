"""The sizes that benchmarks name, ours and the peers'."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_jax.config import Config, ModelConfig
from attn_jax.errors import InputError, nearest
from attn_jax.validation import CHOICES, validate


@dataclass(frozen=True)
class TrainSizes:
    """A language model and its batch; the MLP is 4 times as wide as the model."""

    layers: int
    heads: int
    width: int
    length: int  # positions of a row
    batch: int  # rows
    vocab: int


@dataclass(frozen=True)
class DecodeSizes:
    """An encoder-decoder; `layers` is of each side."""

    layers: int
    heads: int
    width: int
    ffn: int
    vocab: int


TRAIN = {
    "cpu-char": TrainSizes(layers=4, heads=4, width=128, length=64, batch=12, vocab=65),
    "gpu-char": TrainSizes(layers=6, heads=6, width=384, length=256, batch=16, vocab=65),
    "d512": TrainSizes(layers=6, heads=8, width=512, length=256, batch=8, vocab=8192),
}
DECODE = {
    "tiny": DecodeSizes(layers=4, heads=4, width=128, ffn=256, vocab=9712),
    "base": DecodeSizes(layers=6, heads=8, width=512, ffn=2048, vocab=32000),
}
OBJECTIVES = {"causal_lm": "decoder", "masked_lm": "encoder"}  # and the architecture of each
MASK_RATE = 0.3


def choose(name: str, value: str | None, allowed: Mapping[str, Any]) -> Any:
    """Returns `allowed[value]`.

    Raises:
      InputError: there is no such value; says what is allowed.
    """
    if value not in allowed:
        known = ", ".join(allowed)
        hint = nearest(value, allowed) if value else ""
        raise InputError(f"{name} = {value or ''!r}: expected one of {known}{hint}")
    return allowed[value]


def whole_number(name: str, value: str) -> int:
    """Returns a whole number from 1 to 2^20; raises InputError for anything else."""
    if not value.strip().isdecimal() or not 1 <= int(value) <= 2**20:
        raise InputError(f"{name} = {value!r}: expected whole numbers from 1 to {2**20}")
    return int(value)


def check_dtype(dtype: str) -> str:
    """Returns `dtype`; raises InputError for one that models do not have."""
    return choose("dtype", dtype, {name: name for name in CHOICES["model.dtype"]})


def train_config(sizes: TrainSizes, objective: str = "causal_lm", dtype: str = "float32") -> Config:
    """Returns the experiment of a preset: learned positions, no biases or dropout, AdamW, clipping.

    Args:
      sizes: of the model and the batch.
      objective: causal_lm trains a decoder, masked_lm (rate 0.3) an encoder.
      dtype: of activations; parameters are float32.

    Raises:
      InputError: another objective or dtype.
    """
    config = Config()
    model = config.model
    model.architecture = choose("objective", objective, OBJECTIVES)
    model.num_layers, model.num_heads, model.d_model = sizes.layers, sizes.heads, sizes.width
    model.d_ff = 4 * sizes.width
    model.positions, model.max_length = "learned", sizes.length
    model.dtype = check_dtype(dtype)
    config.objective.name = objective
    config.objective.mask_rate = MASK_RATE
    config.data.length, config.data.batch_tokens = sizes.length, sizes.length * sizes.batch
    optimizer = config.optimizer
    optimizer.learning_rate, optimizer.schedule, optimizer.warmup_steps = 1e-3, "constant", 0
    optimizer.b2, optimizer.weight_decay = 0.99, 0.1
    return validate(config)


def decode_config(sizes: DecodeSizes, dtype: str = "float32") -> ModelConfig:
    """Returns the model of a preset: pre-norm, ReLU, biases, sinusoidal positions."""
    return ModelConfig(
        architecture="encoder_decoder",
        num_layers=sizes.layers,
        d_model=sizes.width,
        num_heads=sizes.heads,
        d_ff=sizes.ffn,
        activation="relu",
        positions="sinusoidal",
        bias=True,
        dtype=check_dtype(dtype),
    )
