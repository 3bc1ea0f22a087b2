"""A trained encoder-decoder as a folder that CTranslate2 translates with."""

import base64
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from attn_jax.config import Config, ModelConfig
from attn_jax.data.cache import cached
from attn_jax.data.tokenizers import Tokenizer
from attn_jax.errors import InputError
from attn_jax.export.ctranslate2_spec import Params, make_spec, rename, save
from attn_jax.files import refuse_unwritable
from attn_jax.models.positions import sinusoidal
from attn_jax.training.restore import restore_run

POSITIONS = 1024  # rows of tables that we compute; CTranslate2 reads as many tokens by default


def export_run(workdir: Path, output: Path, step: int = 0, average_last: int = 1) -> None:
    """Writes the model and the tokenizer of a run into a new folder, whole or not at all.

    Args:
      workdir: of the run.
      output: a folder that does not exist.
      step: see `restore_run`.
      average_last: see `restore_run`.

    Raises:
      InputError: CTranslate2 is not installed, cannot express the model, or the folder is there.
    """
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:
        needed = "pip install -r requirements-peers.txt"
        raise InputError(f"ctranslate2 cannot be imported ({error}); {needed}") from error
    if output.exists():
        raise InputError(f"output = {str(output)!r}: exists, expected a new folder")
    refuse_unwritable("output", output)
    run = restore_run(workdir, step, average_last)
    refuse_inexpressible(run.config)
    rows = max(POSITIONS, run.config.data.length)
    cached(output, lambda to: write(run.config.model, run.params, run.tokenizer, to, rows))


def refuse_inexpressible(config: Config) -> None:
    """Raises InputError, with the name of the field, for what CTranslate2 cannot do."""
    expected = {
        "model.architecture": (config.model.architecture, "encoder_decoder"),
        "objective.name": (config.objective.name, "translation"),
        "model.window": (config.model.window, 0),
        "model.share_sides": (config.model.share_sides, False),
    }
    for name, (value, needed) in expected.items():
        if value != needed:
            raise InputError(f"{name} = {value!r}: CTranslate2 export expects {needed!r}")


def write(
    config: ModelConfig, params: Params, tokenizer: Tokenizer, directory: Path, rows: int
) -> None:
    """Writes the model, its vocabulary, and the tokenizer.

    Args:
      config: of an encoder-decoder that CTranslate2 can express.
      params: its parameters, as `split_model` returns them.
      tokenizer: of the run.
      directory: it exists.
      rows: positions that sinusoidal tables have, and those of zeros where there are no positions.
    """
    spec = make_spec(config, rename(config, params, positions_table(config, rows)))
    vocabulary, specials = tokenizer.names(), tokenizer.specials
    spec.config.unk_token = vocabulary[specials.unk]
    spec.config.bos_token = spec.config.decoder_start_token = vocabulary[specials.bos]
    spec.config.eos_token = vocabulary[specials.eos]
    spec.config.add_source_eos = True  # a source is `w1 .. wn <eos>`
    save(spec, vocabulary, str(directory))
    tokenizer.save(directory)
    if tokenizer.name == "sentencepiece":
        model = base64.b64decode(tokenizer.state()["model"])
        (directory / "sentencepiece.model").write_bytes(model)


def positions_table(config: ModelConfig, rows: int) -> np.ndarray | None:
    """Returns what the model adds to embeddings, [rows, D], where that is no parameter."""
    if config.positions == "sinusoidal":
        return np.asarray(sinusoidal(jnp.arange(rows)[None], config.d_model)[0])
    # Without a table CTranslate2 would add sinusoids of its own.
    return np.zeros((rows, config.d_model)) if config.positions == "none" else None
