"""Where text comes from: one TFDS builder per file, opened by name."""

import importlib

from attn_jax.config import DataConfig
from attn_jax.data.sources.source import OWN, SPLITS, Source

__all__ = ["OWN", "SPLITS", "Source", "open_source"]


def open_source(config: DataConfig) -> Source:
    """Opens the source `config.name`, preparing it first where that has not been done.

    Raises:
      InputError: one line naming the config field or file that is wrong.
    """
    module = config.name if config.name in OWN else "registered"
    return importlib.import_module(f"attn_jax.data.sources.{module}").open_source(config)
