"""Batched scoring beside one forward pass a token; prints one JSON object.

python -m benchmarks.score [--method=pll] [--preset=tiny] [--sentences=1000] [--nojit]

One by one means a batch of one row, with the vocabulary projected only where a token is asked for:
in a compiled program for the longest sentence or, with --nojit, as one would call the model by
hand. Everything is compiled before the clock runs. `ratio` is of the time on the clock; `cpu_ratio`
of processor time, which other programs disturb less, and which does not see that one pass a token
leaves all cores but one idle.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx
from jaxtyping import Array

from attn_jax import launch
from attn_jax.benchmark.presets import choose
from attn_jax.config import ModelConfig, ObjectiveConfig
from attn_jax.data.tokenizers import WhitespaceTokenizer
from attn_jax.devices import in_order, use_cores
from attn_jax.evaluation.methods import METHODS
from attn_jax.evaluation.score_batches import Rows, score_rows
from attn_jax.evaluation.scorers import Item, TextScorer
from attn_jax.evaluation.scoring import make_scorer
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import build_model
from attn_jax.objectives import make_objective
from attn_jax.training.state import split_model

SIZES = {
    "tiny": ModelConfig(num_layers=2, d_model=16, num_heads=2, d_ff=32),
    "small": ModelConfig(num_layers=2, d_model=32, num_heads=2, d_ff=64),
    "char": ModelConfig(num_layers=4, d_model=128, num_heads=4, d_ff=512),
}
ONE_PASS = {name: name for name in METHODS if name != "fused"}  # and not the sum of two
VOCAB_SIZE = 2000
SHORTEST, LONGEST = 6, 16  # tokens of a sentence

PRESET = flags.DEFINE_string("preset", "tiny", ", ".join(SIZES))
METHOD = flags.DEFINE_string("method", "pll", ", ".join(ONE_PASS))
JIT = flags.DEFINE_bool("jit", True, "Whether one pass a token is jitted too.")
SENTENCES = flags.DEFINE_integer("sentences", 1000, "Random ones.", lower_bound=2)


def make(preset: str, method: str) -> tuple[Any, dict, TextScorer]:
    """Returns a graph, random parameters, and the scorer of an encoder that fills gaps."""
    config = replace(choose("preset", preset, SIZES), architecture="encoder")
    choose("method", method, ONE_PASS)
    tokenizer = WhitespaceTokenizer([f"w{i}" for i in range(VOCAB_SIZE - 6)])
    objective = make_objective(ObjectiveConfig("masked_lm"), tokenizer.vocabulary)
    graph, params = split_model(build_model(config, VOCAB_SIZE))
    return graph, params, make_scorer(method, graph, objective, tokenizer, config)


def draw(count: int) -> list[Item]:
    """Returns random sentences."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(SHORTEST, LONGEST + 1, count)
    return [Item((), tuple(rng.integers(6, VOCAB_SIZE, n).tolist())) for n in lengths]


def one_by_one(read: Callable[[Rows], Array], scorer: TextScorer, items: list[Item]) -> list[float]:
    """Scores every token with a forward pass of its own."""
    totals = []
    for item in items:
        copies, total = scorer.copies(item, scorer.method), 0.0
        lengths, prefix = (np.array([x], np.int32) for x in (copies.ids.shape[1], copies.prefix))
        for ids, at, target in zip(copies.ids, copies.at, copies.targets, strict=True):
            rows = Rows(ids[None], lengths, prefix, at[None].astype(np.int32), target[None])
            total += float(read(rows))
        totals.append(total)
    return totals


def jitted(graph: Any, params: dict) -> Callable[[Rows], Array]:
    """Returns a reader whose one program is compiled for the longest sentence."""

    def read(rows: Rows) -> Array:
        missing = LONGEST + 2 - rows.ids.shape[1]
        rows = rows._replace(ids=np.pad(rows.ids, ((0, 0), (0, missing))))
        return in_order(score_rows(graph, params, rows), 1)[0].sum()

    return read


def plain(graph: Any, params: dict) -> Callable[[Rows], Array]:
    """Returns a reader that calls the model as one would by hand."""
    model = nnx.merge(graph, params)

    def read(rows: Rows) -> Array:
        tokens = Tokens.of(jnp.asarray(rows.ids)).prefix(jnp.asarray(rows.prefix)[:, None])
        hidden = model(tokens)[0, rows.at[0]]
        log_probs = jax.nn.log_softmax(model.logits(hidden))
        return log_probs[jnp.arange(rows.at.shape[1]), rows.targets[0]].sum()

    return read


def timed(work: Callable[[], list[float]]) -> tuple[list[float], float, float]:
    """Returns what the work gives, its seconds, and its seconds of processor time."""
    clock, cpu = time.perf_counter(), time.process_time()
    return work(), time.perf_counter() - clock, time.process_time() - cpu


def main() -> None:
    """Measures what the flags say."""
    use_cores()  # as experiments.score does
    graph, params, scorer = make(PRESET.value, METHOD.value)
    items = draw(SENTENCES.value)

    def batched() -> list[float]:
        return [found.total for found in scorer.score(params, items)]

    read = (jitted if JIT.value else plain)(graph, params)
    batched()
    lengths = {len(item.target): item for item in items}
    one_by_one(read, scorer, list(lengths.values()))
    a, seconds, cpu = timed(batched)
    b, slow_seconds, slow_cpu = timed(lambda: one_by_one(read, scorer, items))
    result = {
        "method": METHOD.value,
        "preset": PRESET.value,
        "jit": JIT.value,
        "sentences": len(items),
        "tokens": sum(len(item.target) for item in items),
        "seconds": seconds,
        "one_by_one_seconds": slow_seconds,
        "ratio": slow_seconds / seconds,
        "cpu_ratio": slow_cpu / cpu,
        "largest_difference": float(np.abs(np.subtract(a, b)).max()),
        "load": os.getloadavg()[0],
        "device": jax.devices()[0].device_kind,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    launch.run(main)
