"""What all tests share: strict ranks, shapes checked at run time, and a tiny vocabulary."""

import functools
import gc
import sys
import tempfile
from types import ModuleType

import jax
import pytest
from beartype import beartype
from compilation import SETTINGS
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")

VOCAB_SIZE = 80  # of the tiny models: enough for all ids of a batch to differ


def pytest_configure(config):
    """Keeps compiled programs where other workers, processes and later sessions find them."""
    kept = getattr(config, "cache", None)  # None with -p no:cacheprovider
    folder = kept.mkdir("xla") if kept else tempfile.mkdtemp()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    for name, value in SETTINGS.items():
        jax.config.update(name, value)
    # Tracing makes many small objects, few of them garbage: to look for it rarely saves 5 %.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def check_shapes(function):
    """Checks the annotations of `function` on every call.

    Constructors are left alone: a pytree dataclass is rebuilt around whatever its leaves become
    inside `jax.tree.map`, `vmap` and `grad`, such as tracers of another rank, axes or None.
    """
    return function if function.__name__ == "__init__" else beartype(function)


# The hook wants its checker by name; a module of our own works under every pytest import mode.
sys.modules["attn_jax_checker"] = ModuleType("attn_jax_checker")
sys.modules["attn_jax_checker"].check_shapes = check_shapes
install_import_hook("attn_jax", "attn_jax_checker.check_shapes")


@pytest.fixture(scope="session")
def specials():
    """Special ids in an unusual order, so that nothing may assume that <pad> is 0."""
    from attn_jax.data.tokenizers import Specials

    return Specials(pad=6, bos=1, eos=3, mask=0, sep=5, unk=2)


@pytest.fixture(scope="session")
def vocabulary(specials):
    """The ids of the tiny models; the last four of them are sentinels, too."""
    from attn_jax.data.tokenizers import Vocabulary

    return Vocabulary(VOCAB_SIZE, specials, sentinels=tuple(range(VOCAB_SIZE - 4, VOCAB_SIZE)))


@pytest.fixture(scope="session")
def tiny():
    """Returns a function that builds a tiny model with `ModelConfig` fields changed.

    Models are shared between tests, which therefore must not change them. All parameters are
    random, so that fresh zeros and ones (biases, scales) cannot hide a mistake.

    Most tests call them outside of `jit` on batches of 6 rows of 6 tokens: each operation is then
    compiled once for all tests and configurations.
    """
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    from attn_jax.config import ModelConfig
    from attn_jax.models.transformer import build_model

    small = {"num_layers": 2, "d_model": 8, "num_heads": 2, "d_ff": 12, "max_length": 16}

    @functools.cache
    def build(**fields):
        make = functools.partial(build_model, ModelConfig(**small | fields), VOCAB_SIZE)
        # Abstract first: running the initializers would compile each of them.
        graph, shapes = nnx.split(nnx.eval_shape(make))
        rng = np.random.default_rng(0)
        return nnx.merge(graph, jax.tree.map(lambda x: random_values(rng, x.shape), shapes))

    def random_values(rng, shape):
        size = 0.3 + shape[0] ** -0.5 if len(shape) > 1 else 0.3
        center = 0.0 if len(shape) > 1 else 1.0
        return jnp.asarray(rng.normal(center, size, shape), jnp.float32)

    return build


@pytest.fixture
def compilations():
    """A list that grows with every compilation, or look-up of a compiled program."""
    found = []

    def listen(name, seconds, **_):
        if name.endswith("backend_compile_duration"):
            found.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)
