"""The training step: the loop's own step, objective, optimizer and placing of batches."""

import time
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import jax
import numpy as np

from attn_jax.benchmark.measure import (
    TRAINING_CONVENTION,
    Budget,
    compile_ahead,
    finish,
    peak_mib,
    speed,
    time_steps,
)
from attn_jax.benchmark.presets import TrainSizes, train_config
from attn_jax.benchmark.roofline import ceiling
from attn_jax.config import Config
from attn_jax.data.pipeline import open_dataset
from attn_jax.data.tokenizers import Specials, Vocabulary
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.models.transformer import build_model
from attn_jax.objectives import Objective, make_objective
from attn_jax.training.ledger import count_parameters, flops_per_token, read_tokens
from attn_jax.training.optimizers import make_optimizer
from attn_jax.training.parallel import make_parallel
from attn_jax.training.state import new_state, split_model
from attn_jax.training.step import StepSpec

BATCHES = 8  # different ones, gone through again and again


@dataclass(frozen=True)
class Workload:
    """What is trained on what; `texts` are numpy batches."""

    config: Config
    vocabulary: Vocabulary
    texts: list[Tokens | Pair]

    @property
    def objective(self) -> Objective:
        """The objective of the config, for these ids."""
        return make_objective(self.config.objective, self.vocabulary)


def synthetic(sizes: TrainSizes, objective: str = "causal_lm", dtype: str = "float32") -> Workload:
    """Returns a model of these sizes on random ordinary ids: full rows of one segment each.

    Raises:
      InputError: there is no such objective or dtype.
    """
    vocabulary = Vocabulary(sizes.vocab, Specials.starting_at(sizes.vocab - 6))
    shape = (sizes.batch, sizes.length)
    positions = np.broadcast_to(np.arange(sizes.length, dtype=np.int32), shape)
    rng = np.random.default_rng(0)
    texts = [
        Tokens(
            rng.integers(0, sizes.vocab - 6, shape, np.int32), positions, np.ones(shape, np.int32)
        )
        for _ in range(BATCHES)
    ]
    return Workload(train_config(sizes, objective, dtype), vocabulary, texts)


def real(config: Config) -> Workload:
    """Returns the experiment of a config on the first batches of its own data."""
    dataset = open_dataset(config)
    texts = list(islice(dataset.train_batches(config.train.seed), BATCHES))
    return Workload(config, dataset.tokenizer.vocabulary, texts)


def run(work: Workload, budget: Budget, name: str) -> dict[str, Any]:
    """Returns the report of `measure`, beside the ceiling of this device."""
    result = measure(work, budget, name)
    top = ceiling(work.config.model.dtype)
    achieved = result["flops_per_token"] * result["tokens_per_s"]
    return finish(result | {"ceiling_gflops": top / 1e9, "roofline_share": achieved / top})


def measure(work: Workload, budget: Budget, name: str) -> dict[str, Any]:
    """Times the step, batches being put on the devices included.

    Args:
      work: model and data.
      budget: how long.
      name: in the report and the progress bar.
    """
    start = time.perf_counter()
    config = work.config
    graph, params = split_model(build_model(config.model, work.vocabulary.size, config.train.seed))
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    parallel = make_parallel(config.train.parallel)
    step = parallel.compile(StepSpec(graph, work.objective, optimizer, config))
    state = parallel.put_state(new_state(params, optimizer, config.train.seed))
    ready = time.perf_counter() - start

    shapes = {str(jax.tree.map(np.shape, text)): text for text in work.texts}
    compiled = []
    for text in shapes.values():
        batch = parallel.put_batch(text)
        compiled.append(compile_ahead(step, state, batch))
        state, _ = step(state, batch)
    texts = cycle(work.texts)

    def one() -> Any:
        nonlocal state
        state, sums = step(state, parallel.put_batch(next(texts)))
        return state, sums

    times = time_steps(one, budget, name)
    result = {
        "kind": "train",
        "name": name,
        "objective": config.objective.name,
        "dtype": config.model.dtype,
        "parameters": count_parameters(params)[0],
        "build_s": ready,
        "compile_s": sum(seconds for seconds, _ in compiled),
        "temp_mib": max(mib for _, mib in compiled),
        "peak_mib": peak_mib(),
        "flops_per_token": flops_per_token(
            config.model,
            params,
            work.objective,
            iter(work.texts),
            jax.random.key(config.train.seed),
        ),
        "flops_convention": TRAINING_CONVENTION,
    }
    tokens = sum(map(read_tokens, work.texts)) / len(work.texts)
    return result | speed(times, tokens)
