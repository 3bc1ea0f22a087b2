"""Framed documents of words of several tokens, for the tests of masking."""

from dataclasses import astuple

import jax.numpy as jnp
import numpy as np

from attn_jax.data.tokenizers import Vocabulary
from attn_jax.models.tokens import Tokens

VOCAB = 26
STARTS = range(7, 14)  # ids that start a word; the other ordinary ones go on with it


def word_vocabulary(specials):
    """Ids 7 .. 13 start a word, and id 13 never ends one."""
    edges = np.zeros((2, VOCAB), bool)
    edges[0, list(STARTS)] = edges[1] = True
    edges[1, 13] = False
    return Vocabulary(VOCAB, specials, edges.tobytes())


def stream(specials, words, B, T, seed=0):
    """Framed documents of the given numbers of words, end to end, cut into B rows of T tokens."""
    rng = np.random.default_rng(seed)
    ordinary = np.setdiff1d(np.arange(VOCAB), astuple(specials))
    ids, documents = [], []
    while len(ids) < B * T:
        n = int(rng.choice(words))
        ids += [specials.bos, *rng.choice(ordinary, n), specials.eos]
        documents += [documents[-1] + 1 if documents else 1] * (n + 2)
    ids, documents = (np.array(x[: B * T], np.int32).reshape(B, T) for x in (ids, documents))
    segments = documents - documents[:, :1] + 1
    same = segments[:, :, None] == segments[:, None, :]
    positions = np.tril(same).sum(-1).astype(np.int32) - 1
    return Tokens(*map(jnp.asarray, (ids, positions, segments)))


def is_ordinary(specials, tokens):
    """True at each token of text."""
    ids, segments = np.asarray(tokens.ids), np.asarray(tokens.segments)
    return (segments != 0) & ~np.isin(ids, astuple(specials))


def chosen(batch, shift=0):
    """True at [b, t] where token t is a target that counts."""
    found = np.zeros(batch.inputs.ids.shape, int)
    at = np.arange(found.shape[1])[None] if batch.at is None else np.asarray(batch.at)
    at, weights = np.broadcast_arrays(at + shift, np.asarray(batch.weights, int))
    rows = np.broadcast_to(np.arange(len(found))[:, None], at.shape)
    counts = weights > 0
    np.add.at(found, (rows[counts], at[counts]), 1)
    assert found.max() <= 1  # no place counts twice
    return found == 1


def has_target(specials, tokens, where, may=True):
    """Per segment of each row that has a token that may be one: whether it has a target."""
    allowed = is_ordinary(specials, tokens) & may
    segments = np.asarray(tokens.segments)
    return np.array(
        [
            where[b][segments[b] == s].any()
            for b in range(len(segments))
            for s in np.unique(segments[b])
            if allowed[b][segments[b] == s].any()
        ]
    )


def words_of(vocabulary, ids, segments, may):
    """The columns of each word of a row, by a loop."""
    starts, ends = vocabulary.word_edges
    words = []
    for t in np.flatnonzero(may):
        goes_on = t and may[t - 1] and segments[t - 1] == segments[t]
        if not goes_on or (starts[ids[t]] and ends[ids[t - 1]]):
            words.append([])
        words[-1].append(int(t))
    return words
