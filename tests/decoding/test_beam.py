"""Beam search against exhaustive search and a slow one, on tiny vocabularies."""

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from oracles import PAD, Reader, exhaustive, slow_beam, strip, tokens_of, with_vocabulary

from attn_jax.decoding import beam as module
from attn_jax.decoding.beam import Beam, beam_search
from attn_jax.decoding.prompts import prepare
from attn_jax.decoding.sampling import greedy
from attn_jax.errors import InputError
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Decoder

V, NEW, SIZE = 9, 7, 3
PROMPTS = [[1, 2, 4, 5, 7], [8], [7, 2, 1], [2, 2], [4, 8, 7, 5], [5]]
SOURCES = [[1, 2, 4], [7], [5, 4, 8, 1, 2], [1], [2, 8], [7, 7, 1, 5]]
ALPHAS = [0.0, 0.6, 1.0, 2.0]

# With an <eos> that each writes here and there.
MODELS = {
    "rotary": ({"num_layers": 1}, 8),
    # A ring of 5 + 3 * 2 slots, which 3 * 6 tokens are written to after the prompt of 5: as many
    # positions as there are in the learned table.
    "ring": (
        {"num_layers": 1, "window": 2, "num_kv_heads": 1, "positions": "learned"}
        | {"max_length": 11},
        0,
    ),
    "pair": ({"num_layers": 1, "architecture": "encoder_decoder", "positions": "sinusoidal"}, 5),
}


class Case:
    """A model with its prompts and source."""

    def __init__(self, tiny, name):
        fields, self.eos = MODELS[name]
        self.model = with_vocabulary(tiny(**fields), V)
        pair = name == "pair"
        self.prompts = [[4]] * 6 if pair else PROMPTS
        self.source = tokens_of(SOURCES).bidirectional() if pair else None
        self.ends = {"max_new": NEW, "eos": self.eos, "pad": PAD}

    def search(self, prompts=None, **fields):
        beam = Beam(**{"size": SIZE, "n_best": SIZE} | fields)
        prompt = tokens_of(prompts or self.prompts)
        return beam_search(self.model, prompt, self.source, beam=beam, **self.ends)

    def read(self, *texts):
        width = max(map(len, self.prompts)) + NEW - 1
        return Reader(self.model, 6 * SIZE, width, self.source)(*texts)

    def slow(self, alpha, early):
        return slow_beam(self.read, self.prompts, SIZE, alpha, NEW, self.eos, SIZE, early)


@pytest.fixture(scope="module", params=MODELS)
def case(request, tiny):
    return Case(tiny, request.param)


def assert_same(found, expected, eos):
    """Compares `Hypotheses` with `[(score, ids), ..]` of each row."""
    for ids, scores, row in zip(found.ids, found.scores, expected, strict=True):
        np.testing.assert_allclose(scores, [score for score, _ in row], atol=1e-4)
        assert [strip(text, eos) for text in ids] == [text for _, text in row]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.slow
def test_a_slow_search_finds_the_same(case, alpha):
    """Every architecture, ragged prompts, a ring that is gone round several times."""
    whole, early = (case.slow(alpha, early) for early in (False, True))
    for stops, expected in ((False, whole), (True, early)):
        found = case.search(length_penalty=alpha, early_stopping=stops)
        assert_same(found, expected, case.eos)
    lengths = {len(ids) for row in whole for _, ids in row}
    # Some end by <eos>, and some for want of room.
    assert alpha != 1 or (NEW in lengths and len(lengths) > 2)


def test_early_stopping_ends_a_row_with_as_many_texts_as_beams(tiny):
    case = Case(tiny, "pair")
    expected = case.slow(1.0, True)
    assert_same(case.search(), expected, case.eos)
    rows = zip(expected, case.slow(1.0, False), strict=True)
    assert sum(early[0] != whole[0] for early, whole in rows) >= 1  # which it costs


@pytest.mark.slow
def test_n_best_are_different_and_sorted(case):
    found = case.search()
    assert found.ids.shape == (6, SIZE, NEW)
    for ids, scores in zip(found.ids.tolist(), found.scores, strict=True):
        assert len({tuple(text) for text in ids}) == SIZE
        assert (np.diff(scores) <= 0).all()
        assert np.isfinite(scores).all()


def test_one_beam_is_greedy(tiny):
    case = Case(tiny, "rotary")
    found = case.search(size=1, n_best=1, length_penalty=0.0)
    expected = np.asarray(greedy(case.model, tokens_of(PROMPTS), **case.ends))
    assert np.array_equal(found.ids[:, 0], expected)
    assert len({len(strip(ids, case.eos)) for ids in expected}) > 1


WORDS, LONGEST = 3, 6
ALL = 2 ** (LONGEST + 1) - 1  # texts of two words that end, and those that are cut


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_wide_beam_is_exhaustive_search(tiny, alpha):
    """Of three words, one of them <eos>, all 127 texts in order."""
    model, prompts = with_vocabulary(tiny(num_layers=1), WORDS), [[0, 1, 1], [1]]
    ends = {"max_new": LONGEST, "eos": 2, "pad": PAD}
    beam = Beam(128, alpha, n_best=128)
    found = beam_search(model, tokens_of(prompts), beam=beam, **ends)
    read = Reader(model, 2**LONGEST, 3 + LONGEST)
    for row, prompt in enumerate(prompts):
        expected = exhaustive(read, prompt, alpha, LONGEST, 2, WORDS)
        assert len(expected) == ALL
        scores = [score for score, _ in expected]
        np.testing.assert_allclose(found.scores[row, :ALL], scores, atol=1e-4)
        texts = [strip(ids, 2) for ids in found.ids[row, :ALL]]
        assert sorted(texts) == sorted(ids for _, ids in expected)
        gaps = np.diff(scores, prepend=np.inf, append=-np.inf) < -1e-4  # not by rounding
        alone = np.flatnonzero(gaps[:-1] & gaps[1:])
        assert len(alone) > ALL / 2
        assert all(texts[i] == expected[i][1] for i in alone)
    # There are no more, and what there is none of looks like nothing.
    assert (found.scores[:, ALL:] == -np.inf).all()
    assert (found.ids[:, ALL:] == PAD).all()


@pytest.mark.slow
def test_a_row_does_not_depend_on_its_batch(tiny):
    case = Case(tiny, "rotary")
    together, shuffled = case.search(), case.search(PROMPTS[::-1])
    assert np.array_equal(shuffled.ids[::-1], together.ids)
    alone = case.search(PROMPTS[2:3])
    assert np.array_equal(alone.ids[0], together.ids[2])
    np.testing.assert_allclose(alone.scores[0], together.scores[2], atol=1e-5)


def table_model(tiny, logits):
    """A model in which `logits`[last token] are those of the next one, and what it did."""

    class Table(Decoder):
        def step(self, tokens, cache):
            shapes.append(tokens.ids.shape)
            jax.debug.callback(lambda: steps.append(1))
            return jax.nn.one_hot(tokens.ids, len(logits)), cache

        def logits(self, hidden):
            return jnp.matmul(hidden, jnp.asarray(logits, jnp.float32))

    shapes, steps = [], []
    config = tiny(num_layers=1).config
    model = nnx.eval_shape(lambda: Table(config, len(logits), nnx.Rngs(0)))
    graph, params = nnx.split(model)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params)
    return nnx.merge(graph, zeros), shapes, steps


@pytest.mark.slow
def test_it_stops_when_nothing_can_win_any_more(tiny):
    """After 0 come 1 or <eos>, and so on; after 4 only <eos>; an empty row never begins."""
    logits = np.full((5, 5), -40.0)
    logits[0, [1, 3]] = np.log([0.7, 0.3])
    logits[1, [2, 3]] = np.log([0.6, 0.4])
    logits[2, [2, 3]] = np.log([0.2, 0.8])
    logits[4, 3] = 0.0
    model, shapes, steps = table_model(tiny, logits)
    prompt = tokens_of([[0], [], [4]], 1)
    beam = Beam(2, 0.0, early_stopping=False)
    found = beam_search(model, prompt, beam=beam, max_new=50, eos=3, pad=PAD)
    assert strip(found.ids[0, 0], 3) == [1, 2, 3]  # 0.336, before 0.3 and 0.28
    np.testing.assert_allclose(found.scores[0, 0], np.log(0.336), atol=1e-6)
    assert (found.ids[1] == PAD).all()
    assert found.scores[1, 0] == -np.inf
    assert strip(found.ids[2, 0], 3) == [3]
    assert found.scores[2, 0] == 0
    jax.effects_barrier()
    assert len(steps) == 3  # the prompt and two tokens: what goes on has 0.084
    early = beam_search(model, prompt, beam=Beam(2, 0.0), max_new=50, eos=3, pad=PAD)
    assert strip(early.ids[0, 0], 3) == [3]  # 0.3: two had ended when there was 0.28, too
    jax.effects_barrier()
    assert len(steps) == 3 + 2
    assert set(shapes) == {(3, 1), (3, 2)}  # beams are positions of a row, not rows


def test_a_prompt_may_fill_the_cache(tiny):
    """It takes the whole learned table; one token more that is read again is refused."""
    case = Case(tiny, "ring")
    prompt = [[1, 2, 4, 5, 7, 8, 1, 2, 4, 7, 7]]
    ends = {"eos": -1, "pad": PAD}
    beam = Beam(2, n_best=2)
    found = beam_search(case.model, tokens_of(prompt), beam=beam, max_new=1, **ends)
    assert_same(found, slow_beam(case.read, prompt, 2, 1.0, 1, -1, 2), -1)
    with pytest.raises(InputError, match=r"12 tokens .* model\.max_length = 11"):
        beam_search(case.model, tokens_of(prompt), beam=beam, max_new=2, **ends)


def test_beams_share_the_source_and_the_prompt(tiny):
    """No array of the whole program holds keys of a source, or of a prompt, once a beam."""
    model = tiny(architecture="encoder_decoder", num_layers=1)
    B, M, H, K, S, P = 3, 5, 2, 4, 11, 13  # a cache has B * H for its first axis
    source, prompt = Tokens.of(jnp.zeros((B, S), int)), Tokens.of(jnp.zeros((B, P), int))
    rules = module._Rules(M, 1, True, 3, jnp.ones(4))
    jaxpr = jax.make_jaxpr(lambda: module._search(prepare(model), prompt, source, rules, PAD))()
    sizes = {n: max(size for shape, size in shapes_in(jaxpr) if {n, K} <= shape) for n in (S, P)}
    assert sizes == {S: B * S * H * K, P: B * P * H * K}
    slots = P + M * 3
    assert {size for shape, size in shapes_in(jaxpr) if {slots, K} <= shape} == {B * slots * H * K}


def shapes_in(jaxpr):
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield set(variable.aval.shape), variable.aval.size
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from shapes_in(inner)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "beam_size = 0: expected from 1 to 1000"),
        ({"size": 1001}, "beam_size = 1001: expected from 1 to 1000"),
        ({"length_penalty": -0.1}, r"length_penalty = -0\.1: expected from 0 to 5"),
        ({"length_penalty": float("nan")}, "length_penalty = nan"),
        ({"size": 2, "n_best": 3}, "n_best = 3: expected from 1 to beam_size = 2"),
    ],
)
def test_what_is_not_allowed_is_said(fields, message):
    with pytest.raises(InputError, match=message):
        Beam(**fields)
