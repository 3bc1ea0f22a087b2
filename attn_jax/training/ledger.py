"""The budgets of a run: parameters, tokens, loss-bearing tokens, FLOPs, seconds."""

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn_jax.config import ModelConfig
from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens
from attn_jax.objectives import Objective
from attn_jax.objectives.batch import Batch

FLOPS_SAMPLE = 8  # batches whose FLOPs are counted; the ledger extrapolates by tokens


def count_parameters(params: dict) -> tuple[int, int]:
    """Returns how many parameters there are, and how many outside embedding and position tables."""
    sizes = _sizes(params)
    tables = sum(n for path, n in sizes.items() if "embedding" in path or "positions" in path)
    return sum(sizes.values()), sum(sizes.values()) - tables


def training_flops(config: ModelConfig, params: dict, batch: Batch) -> float:
    """Returns the floating-point operations of one training step on `batch`.

    Convention: a multiply-add is 2; backward costs twice forward; matrix products only; attention
    by the pairs that the mask lets through (causal is half of bidirectional); the vocabulary only
    at targets; padding is not counted.
    """
    inputs, source = batch.inputs, batch.source
    kernels = {path: n for path, n in _sizes(params).items() if "kernel" in path}
    of_source = sum(n for path, n in kernels.items() if _reads_source(path, config))
    of_inputs = sum(n for path, n in kernels.items() if _reads_target(path))
    pairs = _pairs(inputs, inputs, config.window)
    dense = of_inputs * _real(inputs)
    if source is not None:
        pairs += _pairs(inputs, source) + _pairs(source, source, config.window)
        dense += of_source * _real(source)
    vocabulary = params["embedding"].size * float(np.count_nonzero(batch.weights))
    attention = 2 * config.d_model * config.num_layers * pairs  # scores, and weighted values
    return 3 * 2 * (dense + vocabulary + attention)


def flops_per_token(
    config: ModelConfig, params: dict, objective: Objective, texts: Iterator, key: Array
) -> float:
    """Returns the FLOPs of training a token that is read: the mean over the first batches of text.

    Of a mixture, the mean of its parts by their shares; of a schedule, those of its middle.
    """
    flops = tokens = 0.0
    parts = objective.parts().values() or [(1.0, objective)]
    for text in islice(texts, FLOPS_SAMPLE):
        text = jax.tree.map(jnp.asarray, text)
        for share, part in parts:
            flops += share * training_flops(config, params, part(text, key, progress=0.5))
        tokens += read_tokens(text)
    return flops / tokens


def read_tokens(text: Any) -> int:
    """Returns how many tokens of a batch of text are not padding; of pairs, on both sides."""
    sides = jax.tree.leaves(text, is_leaf=lambda x: isinstance(x, Tokens))
    return sum(_real(side) for side in sides)


def order_fingerprint(batches: Iterator, count: int = 8) -> str:
    """Returns a digest of the first batches of text: equal where runs read it in equal order."""
    found = hashlib.sha256()
    for batch in islice(batches, count):
        for leaf in jax.tree.leaves(batch):
            found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()[:16]


def _reads_source(path: str, config: ModelConfig) -> bool:
    """Whether an encoder-decoder applies this kernel to source tokens; a shared one to both."""
    return "['kv']" in path or "encoder" in path or (config.share_sides and "['cross']" not in path)


def _reads_target(path: str) -> bool:
    return "['kv']" not in path and "encoder" not in path


def _sizes(params: dict) -> dict[str, int]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): leaf.size for path, leaf in leaves}


def _real(tokens: Tokens) -> int:
    return int(np.count_nonzero(np.asarray(tokens.segments)))


def _pairs(queries: Tokens, keys: Tokens, window: int = 0) -> int:
    fields = jax.tree.map(np.asarray, (queries, keys))
    rows = (jax.tree.map(lambda x, i=i: x[i : i + 1], fields) for i in range(len(queries.ids)))
    return sum(int(visible(q, k, window).sum()) for q, k in rows)
