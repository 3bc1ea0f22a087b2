"""Batched scoring beside one forward pass a token; prints one JSON object.

python -m benchmarks.score [--method=pll] [--preset=tiny] [--sentences=1000]

Both sides are jitted, and compiled before the clock runs. One by one means a batch of one row, all
of one width, with the vocabulary projected only where a token is asked for. `ratio` is of the time
on the clock; `cpu_ratio` of processor time, which other programs disturb less, and which does not
see that one pass a token leaves all cores but one idle.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from absl import flags

from attn_jax import launch
from attn_jax.benchmark.presets import choose
from attn_jax.config import ModelConfig, ObjectiveConfig
from attn_jax.data.tokenizers import WhitespaceTokenizer
from attn_jax.evaluation.methods import METHODS
from attn_jax.evaluation.score_batches import Rows, score_rows
from attn_jax.evaluation.scorers import Item, TextScorer
from attn_jax.evaluation.scoring import make_scorer
from attn_jax.models.transformer import build_model
from attn_jax.objectives import make_objective
from attn_jax.training.state import split_model

SIZES = {
    "tiny": ModelConfig(num_layers=2, d_model=16, num_heads=2, d_ff=32),
    "small": ModelConfig(num_layers=2, d_model=32, num_heads=2, d_ff=64),
    "char": ModelConfig(num_layers=4, d_model=128, num_heads=4, d_ff=512),
}
VOCAB_SIZE = 2000
SHORTEST, LONGEST = 6, 16  # tokens of a sentence

PRESET = flags.DEFINE_string("preset", "tiny", ", ".join(SIZES))
METHOD = flags.DEFINE_string("method", "pll", ", ".join(METHODS))
SENTENCES = flags.DEFINE_integer("sentences", 1000, "Random ones.", lower_bound=2)


def make(preset: str, method: str) -> tuple[Any, dict, TextScorer]:
    """Returns a graph, random parameters, and the scorer of an encoder that fills gaps."""
    config = replace(choose("preset", preset, SIZES), architecture="encoder")
    choose("method", method, {name: name for name in METHODS if name != "fused"})
    tokenizer = WhitespaceTokenizer([f"w{i}" for i in range(VOCAB_SIZE - 6)])
    objective = make_objective(ObjectiveConfig("masked_lm"), tokenizer.vocabulary)
    graph, params = split_model(build_model(config, VOCAB_SIZE))
    return graph, params, make_scorer(method, graph, objective, tokenizer, config)


def draw(count: int) -> list[Item]:
    """Returns random sentences."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(SHORTEST, LONGEST + 1, count)
    return [Item((), tuple(rng.integers(6, VOCAB_SIZE, n).tolist())) for n in lengths]


def one_by_one(graph: Any, params: dict, scorer: TextScorer, items: Sequence[Item]) -> list[float]:
    """Scores every token with a forward pass of its own."""
    ids, totals = np.zeros((1, LONGEST + 2), np.int32), []
    for item in items:
        copies, total = scorer.copies(item, scorer.method), 0.0
        lengths, prefix = (np.array([x], np.int32) for x in (copies.ids.shape[1], copies.prefix))
        for row, at, target in zip(copies.ids, copies.at, copies.targets, strict=True):
            ids[0, : len(row)] = row
            rows = Rows(ids.copy(), lengths, prefix, at[None].astype(np.int32), target[None])
            total += float(score_rows(graph, params, rows)[0].sum())
        totals.append(total)
    return totals


def timed(work: Callable[[], list[float]]) -> tuple[list[float], float, float]:
    """Returns what the work gives, its seconds, and its seconds of processor time."""
    clock, cpu = time.perf_counter(), time.process_time()
    return work(), time.perf_counter() - clock, time.process_time() - cpu


def main() -> None:
    """Measures what the flags say."""
    graph, params, scorer = make(PRESET.value, METHOD.value)
    items = draw(SENTENCES.value)

    def batched() -> list[float]:
        return [found.total for found in scorer.score(params, items)]

    batched()
    one_by_one(graph, params, scorer, items[:2])
    a, seconds, cpu = timed(batched)
    b, slow_seconds, slow_cpu = timed(lambda: one_by_one(graph, params, scorer, items))
    result = {
        "method": METHOD.value,
        "preset": PRESET.value,
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
