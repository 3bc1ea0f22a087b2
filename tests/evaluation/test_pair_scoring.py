"""Targets of pairs, and spans that are hidden, are scored as they were trained."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_scoring import ITEMS, about, small_batches, tokenizer

from attn_jax.data.tokenizers import Vocabulary
from attn_jax.evaluation.scorers import Item
from attn_jax.evaluation.scoring import make_scorer
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.objectives.losses import token_losses
from attn_jax.objectives.span_corruption import PrefixSpanCorruption, SpanCorruption
from attn_jax.objectives.translation import CausalTranslation, PrefixTranslation, Translation
from attn_jax.training.state import split_model

TRANSLATIONS = {
    "encoder_decoder": (Translation, "encoder_decoder"),
    "causal": (CausalTranslation, "decoder"),
    "prefix": (PrefixTranslation, "decoder"),
}
PAIRS = [((10, 11), (20, 21, 22)), ((12,), (30, 33)), ((13, 14, 15, 16), (40,)), ((9,), ())]


@pytest.mark.parametrize("kind", TRANSLATIONS)
def test_targets_of_pairs_are_scored_as_in_training(tiny, tokenizer, specials, kind):
    make, architecture = TRANSLATIONS[kind]
    objective, model = make(specials), tiny(architecture=architecture)
    scorer = make_scorer("own", *about(model, tokenizer, objective))
    assert scorer.method == "prefix"
    found = scorer.score(split_model(model)[1], [Item(*pair) for pair in PAIRS])
    losses = jax.jit(lambda pair: token_losses(model, objective(pair, jax.random.key(0))))
    for (source, target), scores in zip(PAIRS, found, strict=True):
        sides = [*source, specials.eos], [specials.bos, *target, specials.eos]
        ids = [jnp.array([side + [0] * (6 - len(side))]) for side in sides]
        real = [jnp.arange(6)[None] < len(side) for side in sides]
        expected = losses(Pair(*(Tokens.of(*x) for x in zip(ids, real, strict=True))))
        n = len(target) + 1  # and <eos>
        assert expected.weights.sum() == n
        np.testing.assert_allclose(scores.log_probs, -expected.nll[0, :n], atol=1e-4)
        assert scorer.predicted(Item(source, target)) == (*target, specials.eos)


SPANS = {"encoder_decoder": SpanCorruption, "decoder": PrefixSpanCorruption}
# Of these the longer text has the shorter longest side.
UNEVEN = [Item((8, 9, 10, 11), (20, 21, 22, 23, 24)), Item((8, 9, 10, 11, 12, 13, 14), (9,))]


@pytest.mark.parametrize("architecture", SPANS)
@pytest.mark.parametrize("method", ["pll", "prefix"])
def test_hidden_spans_are_scored_as_in_training(tiny, tokenizer, specials, architecture, method):
    """One unbatched pass for each token; in one stack <sep> stands for the first sentinel."""
    model, sentinel = tiny(architecture=architecture), tokenizer.sentinels[0]
    objective = SPANS[architecture](Vocabulary(80, specials), 0.15, 3.0)
    scorer = make_scorer(method, *about(model, tokenizer, objective))
    items = ITEMS + UNEVEN
    found = scorer.score(split_model(model)[1], items)
    for (before, target), scores in zip(items, found, strict=True):
        for t, token in enumerate(target):
            if method == "pll":
                gap = [*before, *target[:t], sentinel, *target[t + 1 :]]
                source, read = [specials.bos, *gap, specials.eos], [sentinel]
            else:
                source = [specials.bos, *before, sentinel, specials.eos]
                read = [sentinel, *target[:t]]
            expected = span_oracle(model, specials, source, read)[token]
            assert scores.log_probs[t] == pytest.approx(float(expected), abs=1e-4)


def span_oracle(model, specials, source, read):
    """Returns the log-probabilities of what comes after `read`."""
    graph, params = split_model(model)
    if model.config.architecture == "encoder_decoder":
        return read_pair(graph, params, padded(source), padded(read))
    joined = padded([*source, specials.sep, *read[1:]])
    return read_joined(graph, params, joined, jnp.array([[len(source)]]))


def padded(ids):
    """Of one width, so that one program reads all: what is padding is not seen."""
    row = jnp.array([ids + [0] * (20 - len(ids))])
    return Tokens.of(row, jnp.arange(20)[None] < len(ids))


@partial(jax.jit, static_argnums=0)
def read_pair(graph, params, source, target):
    model = nnx.merge(graph, params)
    return last_log_probs(model, model(target.causal(), source), target)


@partial(jax.jit, static_argnums=0)
def read_joined(graph, params, tokens, prefix):
    model = nnx.merge(graph, params)
    return last_log_probs(model, model(tokens.prefix(prefix)), tokens)


def last_log_probs(model, hidden, tokens):
    return jax.nn.log_softmax(model.logits(hidden[0, tokens.segments[0].sum() - 1]))


def test_loss_on_the_source_changes_no_score(tiny, tokenizer, specials):
    model = tiny(architecture="decoder")
    found = [
        make_scorer("own", *about(model, tokenizer, CausalTranslation(specials, weight))).score(
            split_model(model)[1], [Item(*PAIRS[0])]
        )
        for weight in (0.0, 1.0)
    ]
    np.testing.assert_array_equal(found[0][0].log_probs, found[1][0].log_probs)
