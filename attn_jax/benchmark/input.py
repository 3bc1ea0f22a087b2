"""The input pipeline alone: batches of a config's own data, as the loop asks for them."""

import sys
import time
from typing import Any

from tqdm import tqdm

from attn_jax.benchmark.measure import WARM_UP, Budget, finish, peak_mib, speed
from attn_jax.config import Config
from attn_jax.data.pipeline import open_dataset
from attn_jax.training.ledger import read_tokens

GROUP = 20  # batches timed together: the pipeline reads ahead, so single ones say little


def run(config: Config, budget: Budget, name: str) -> dict[str, Any]:
    """Times groups of training batches; returns the report, in which a step is one batch.

    Args:
      config: whose `data` and `tokenizer` are read.
      budget: in groups of 20 batches.
      name: in the report and the progress bar.
    """
    start = time.perf_counter()
    dataset = open_dataset(config)
    batches = iter(dataset.train_batches(config.train.seed))
    next(batches)
    ready = time.perf_counter() - start

    def group() -> tuple[float, int]:
        start = time.perf_counter()
        texts = [next(batches) for _ in range(GROUP)]
        return (time.perf_counter() - start) / GROUP, sum(map(read_tokens, texts))

    last = [group() for _ in range(WARM_UP)][-1][0]
    count = budget.count(GROUP * last)
    groups = [group() for _ in tqdm(range(count), name, unit="group", file=sys.stderr)]
    tokens = sum(tokens for _, tokens in groups) / (GROUP * count)
    result = {"kind": "input", "name": name, "open_s": ready, "peak_mib": peak_mib()}
    result |= {"padding_share": dataset.padding_share}
    result |= speed([seconds for seconds, _ in groups], tokens)
    result["steps"] = GROUP * count
    return finish(result | {"batches_per_s": 1e3 / result["step_ms"]})
