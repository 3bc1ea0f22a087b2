"""Where JAX keeps compiled programs from one start to the next."""

import os

import jax


def use_compilation_cache() -> None:
    """Keeps compiled programs in $JAX_COMPILATION_CACHE_DIR, else in ~/.cache/attn_jax."""
    if not jax.config.jax_compilation_cache_dir:
        home = os.path.join(os.path.expanduser("~"), ".cache", "attn_jax")
        jax.config.update("jax_compilation_cache_dir", home)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
