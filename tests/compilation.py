"""How tests compile, also those in processes of their own."""

import jax

# They compile much and compute little: quickly, and each program once.
SETTINGS = {
    "jax_disable_most_optimizations": True,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
}


def environment() -> dict[str, str]:
    """Returns the settings of this process, for that of another one."""
    settings = SETTINGS | {"jax_compilation_cache_dir": jax.config.jax_compilation_cache_dir}
    return {name.upper(): str(value) for name, value in settings.items()}
