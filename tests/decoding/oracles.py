"""Slow ways to decode, without caches: whole texts are read again for every token."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax.models.tokens import Tokens

PAD = 6


def tokens_of(rows, width=None, pad=PAD):
    """Pads rows on the right."""
    width = width or max(map(len, rows))
    real = np.arange(width)[None] < np.array([[len(row)] for row in rows])
    ids = np.full(real.shape, pad, np.int32)
    ids[real] = np.concatenate(rows)
    positions = np.maximum(np.cumsum(real, axis=1) - 1, 0).astype(np.int32)
    return Tokens(*map(jnp.asarray, (ids, positions, real.astype(np.int32))))


def with_vocabulary(model, size):
    """The same model with the first `size` tokens only, none of them far likelier than others."""
    graph, params = nnx.split(model)
    params = jax.tree.map(lambda x: x, params)
    params["embedding"].set_value(params["embedding"][...][:size] / 2)
    return nnx.merge(graph, params)


@functools.partial(jax.jit, static_argnums=0)
def _log_probs(graph, params, tokens, source):
    model = nnx.merge(graph, params)
    return jax.nn.log_softmax(model.logits(model(tokens.causal(), source)))


class Reader:
    """Log-probabilities of what follows texts, read `rows` at a time, `width` tokens wide."""

    def __init__(self, model, rows, width, source=None):
        self.split, self.shape, self.source = nnx.split(model), (rows, width), source

    def all(self, texts, which=None):
        """[texts, width, V]; text i belongs to row which[i] of the source."""
        rows, width = self.shape
        assert len(texts) <= rows
        filled = [*texts, *[[0]] * (rows - len(texts))]
        source = self.source
        if source is not None:
            which = np.array([*which, *[0] * (rows - len(texts))])
            source = jax.tree.map(lambda x: np.asarray(x)[which], source)
        found = _log_probs(*self.split, tokens_of(filled, width), source)
        return np.asarray(found, np.float64)[: len(texts)]

    def __call__(self, texts, which=None):
        """[texts, V], after the last token of each."""
        last = [len(text) - 1 for text in texts]
        return self.all(texts, which)[np.arange(len(texts)), last]


def slow_beam(read, prompts, size, alpha, max_new, eos, n_best, early=False):
    """Plain beam search; `[(score, ids), ..]` of each prompt.

    It goes on to the end, or, if `early`, until `size` texts of a prompt have ended.
    """
    live = [[(0.0, [])] for _ in prompts]
    done = [[] for _ in prompts]
    for _ in range(max_new):
        at = [(b, s, ids) for b, row in enumerate(live) for s, ids in row]
        found = read([[*prompts[b], *ids] for b, _, ids in at], [b for b, _, _ in at])
        grown = [[] for _ in prompts]
        for (b, s, ids), log_probs in zip(at, found, strict=True):
            grown[b] += [(s + p, [*ids, v]) for v, p in enumerate(log_probs)]
        for b, candidates in enumerate(grown):
            if early and len(done[b]) >= size:
                live[b] = []
                continue
            candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * size]
            ended = [c for c in candidates[:size] if c[1][-1] == eos]
            done[b] += [(s / len(ids) ** alpha, ids) for s, ids in ended]
            live[b] = [c for c in candidates if c[1][-1] != eos][:size]
    for b, row in enumerate(live):
        if early and len(done[b]) >= size:
            continue
        done[b] += [(s / max_new**alpha, ids) for s, ids in row]
    return [sorted(row, key=lambda c: -c[0])[:n_best] for row in done]


def exhaustive(read, prompt, alpha, max_new, eos, size):
    """`[(score, ids), ..]` of all that can be written, best first."""
    words = [v for v in range(size) if v != eos]
    whole = [list(ids) for ids in itertools.product(words, repeat=max_new)]
    found = read.all([[*prompt, *ids] for ids in whole])[:, len(prompt) - 1 :]
    scores = {}
    for ids, log_probs in zip(whole, found, strict=True):
        sums = np.cumsum([0.0, *(log_probs[i, v] for i, v in enumerate(ids))])
        scores[tuple(ids)] = sums[-1] / max_new**alpha
        for n in range(max_new):
            ended = (*ids[:n], eos)
            scores[ended] = (sums[n] + log_probs[n, eos]) / (n + 1) ** alpha
    return sorted(((s, list(ids)) for ids, s in scores.items()), key=lambda c: -c[0])


def strip(ids, eos, pad=PAD):
    """Ids up to <eos>; refuses anything but padding after it."""
    ids = [int(i) for i in ids]
    end = ids.index(eos) + 1 if eos in ids else len(ids)
    assert all(i == pad for i in ids[end:])
    return ids[:end]
