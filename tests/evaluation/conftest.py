"""Tiny data sets and models to evaluate."""

from tiny_runs import (  # noqa: F401
    _compile_fast,
    lm_run,
    session_folder,
    tiny_data,
    translation_run,
)
