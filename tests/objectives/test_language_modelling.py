"""Causal and prefix language modelling: targets, weights and masks of packed rows."""

import jax
import jax.numpy as jnp
import numpy as np

from attn_jax.config import ObjectiveConfig
from attn_jax.models.tokens import Tokens
from attn_jax.objectives import make_objective
from attn_jax.objectives.causal_lm import CausalLM
from attn_jax.objectives.masked_lm import MaskedLM
from attn_jax.objectives.masking import Masking
from attn_jax.objectives.prefix_lm import PrefixLM
from attn_jax.objectives.translation import CausalTranslation, PrefixTranslation, Translation

JOINED = {"causal": CausalTranslation, "prefix": PrefixTranslation}

KEY = jax.random.key(0)
causal_lm, prefix_lm = jax.jit(CausalLM()), jax.jit(PrefixLM())


def packed(*sizes, rows=1, padding=0):
    """Rows of segments of the given sizes, then padding; ids 10, 11, .."""
    segments = [n for n, size in enumerate(sizes, 1) for _ in range(size)] + [0] * padding
    positions = [p for size in sizes for p in range(size)] + [0] * padding
    fields = [range(10, 10 + len(segments)), positions, segments]
    return Tokens(*(jnp.asarray(np.tile(np.array([x], np.int32), (rows, 1))) for x in fields))


def test_causal_targets_are_the_next_tokens_of_the_same_document():
    tokens = packed(3, 2, 1, padding=2)
    batch = causal_lm(tokens, KEY)
    assert batch.weights.tolist() == [[1, 1, 0, 1, 0, 0, 0, 0]]
    counted = np.asarray(batch.weights) == 1
    assert np.asarray(batch.targets)[counted].tolist() == [11, 12, 14]
    assert np.array_equal(batch.inputs.ids, tokens.ids)
    assert batch.inputs.blocks.tolist() == [[0, 1, 2, 0, 1, 0, 0, 0]]
    assert batch.at is None
    assert batch.source is None


def test_a_row_without_padding_has_no_target_for_its_last_token():
    batch = causal_lm(packed(4), KEY)
    assert batch.weights.tolist() == [[1, 1, 1, 0]]
    assert batch.targets.tolist()[0][:3] == [11, 12, 13]


def test_causal_weights_are_zeros_and_ones_and_not_segment_ids():
    """T5: with segments 1 to 3, weights taken from them would reach 3."""
    tokens = packed(4, 5, 6, padding=3)
    weights = causal_lm(tokens, KEY).weights
    assert weights.dtype == jnp.float32
    assert set(np.unique(weights)) == {0.0, 1.0}
    assert set(np.asarray(tokens.segments)[np.asarray(weights) > 0]) == {1, 2, 3}


SIZES = (5, 2, 1, 3)
ROWS = packed(*SIZES, rows=300, padding=2)


def prefix_lengths(batch):
    """Prefix length of each token's segment, counted from the mask: the tokens of block 0."""
    segments, blocks = np.asarray(batch.inputs.segments), np.asarray(batch.inputs.blocks)
    same = segments[:, :, None] == segments[:, None, :]
    return (same & (blocks == 0)[:, None, :]).sum(-1)


def test_prefixes_leave_something_to_predict_and_take_all_lengths():
    lengths = prefix_lengths(prefix_lm(ROWS, KEY, 0))
    for segment, size in enumerate(SIZES, 1):
        drawn = lengths[:, np.asarray(ROWS.segments)[0] == segment]
        assert (drawn == drawn[:, :1]).all()
        values, counts = np.unique(drawn[:, 0], return_counts=True)
        assert values.tolist() == list(range(1, max(size, 2)))
        assert (abs(counts / 300 - 1 / len(values)) < 0.1).all()


def test_prefix_loss_starts_at_the_last_token_of_the_prefix():
    batch = prefix_lm(ROWS, KEY, 0)
    lengths, positions = prefix_lengths(batch), np.asarray(ROWS.positions)
    causal = causal_lm(ROWS, KEY)
    assert np.array_equal(batch.targets, causal.targets)
    assert np.array_equal(batch.weights, causal.weights * (positions >= lengths - 1))
    assert np.array_equal(batch.inputs.blocks, np.maximum(positions - lengths + 1, 0))
    # Of the n tokens of a segment, all those after the prefix are predicted.
    begins = np.cumsum((0, *SIZES[:-1]))
    per_row = sum(n - lengths[:, b] for n, b in zip(SIZES, begins, strict=True))
    assert np.array_equal(np.asarray(batch.weights).sum(1), per_row)
    assert set(np.unique(batch.weights)) == {0.0, 1.0}


def test_prefixes_depend_on_the_key_and_on_the_row_number_alone():
    blocks = np.asarray(prefix_lm(ROWS, KEY, 0).inputs.blocks)
    later = np.asarray(prefix_lm(ROWS, KEY, 2).inputs.blocks)
    assert np.array_equal(later[:-2], blocks[2:])
    assert not np.array_equal(prefix_lm(ROWS, jax.random.key(1), 0).inputs.blocks, blocks)
    assert len({tuple(row) for row in blocks.tolist()}) == 4 * 1 * 1 * 2


def test_objectives_by_name(specials, vocabulary):
    made = {
        name: make_objective(ObjectiveConfig(name=name), vocabulary)
        for name in ("causal_lm", "prefix_lm", "masked_lm", "translation")
    }
    assert made["causal_lm"] == CausalLM()
    assert made["prefix_lm"] == PrefixLM()
    assert made["masked_lm"] == MaskedLM(Masking(vocabulary, 0.3, 0.3, 0.8, 0.1))
    assert made["translation"] == Translation(specials)
    for mask in ("causal", "prefix"):
        config = ObjectiveConfig(name=f"{mask}_translation")
        assert make_objective(config, vocabulary) == JOINED[mask](specials)
