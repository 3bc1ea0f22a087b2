"""Batched scores are those of one forward pass for each token, under every method."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax.data.tokenizers import ByteTokenizer, Vocabulary, WhitespaceTokenizer
from attn_jax.errors import InputError
from attn_jax.evaluation import score_batches
from attn_jax.evaluation.methods import METHODS
from attn_jax.evaluation.score_batches import fit, rows_of, width_of
from attn_jax.evaluation.scorers import Item, Scorer, hidden_places
from attn_jax.evaluation.scoring import make_scorer, score_under_all
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.objectives import OBJECTIVES
from attn_jax.objectives.causal_lm import CausalLM
from attn_jax.objectives.losses import token_losses
from attn_jax.objectives.masked_lm import MaskedLM
from attn_jax.objectives.masking import Masking
from attn_jax.objectives.prefix_lm import PrefixLM
from attn_jax.objectives.span_corruption import PrefixSpanCorruption
from attn_jax.objectives.translation import CausalTranslation, PrefixTranslation, Translation
from attn_jax.training.state import split_model

T = 9  # of the oracle's rows, padding included: the longest text
TEXT_METHODS = tuple(METHODS)
PLL = ("pll", "pll_within_word", "pll_whole_word", "pll_global")
# Even ids begin words. Of different lengths, so that batches hold parts of several.
TEXTS = [(10, 11, 13, 20), (30,), (41, 43, 40), (10, 13, 15, 16, 18, 19, 21), (50, 52), (61, 60)]
ONE_PIECE = [(10, 12, 14, 20), (30,), (40, 42), (66, 10, 14)]
ITEMS = [Item((), text) for text in TEXTS] + [Item((30, 31, 70), (12, 13, 14)), Item((8,), (9, 11))]


class Evens(WhitespaceTokenizer):
    """Even ids begin words."""

    def __init__(self, specials):
        super().__init__([])
        self.specials, self.sentinels = specials, range(78, 80)

    def word_starts(self, ids):
        return [i == 0 or token % 2 == 0 for i, token in enumerate(ids)]


@pytest.fixture(scope="module")
def tokenizer(specials):
    return Evens(specials)


def _masking(tokenizer):
    return Masking(Vocabulary(80, tokenizer.specials), 0.3, 0.3, 0.8, 0.1)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Eight rows of 8 tokens, so that a few texts make several batches, the last one small."""
    monkeypatch.setattr(score_batches, "POSITIONS", 64)


@pytest.fixture(scope="module")
def models(tiny):
    """A decoder whose states predict the next token, an encoder's their own, by the shift."""
    return {1: tiny(architecture="decoder"), 0: tiny(architecture="encoder")}


@pytest.fixture(scope="module")
def score(models, tokenizer):
    """Returns a function that scores items in batches."""

    def run(shift, method, items, model=None):
        model = model or models[shift]
        graph, params = split_model(model)
        objective = OBJECTIVES[("masked_lm", "masked_next_token")[shift]](_masking(tokenizer))
        scorer = make_scorer(method, graph, objective, tokenizer, model.config)
        return [found.log_probs for found in scorer.score(params, items)]

    return run


def words_of(text):
    """Each token's word as (first, last) columns, in a loop."""
    starts = [i for i, token in enumerate(text) if i == 0 or token % 2 == 0]
    ends = [*starts[1:], len(text)]
    return [(a, b) for a, b in zip(starts, ends, strict=True) for _ in range(a, b)]


@partial(jax.jit, static_argnums=0)
def _one_row(graph, params, tokens):
    model = nnx.merge(graph, params)
    return jax.nn.log_softmax(model.logits(model(tokens)[0]))


def oracle(model, specials, shift, method, item):
    """One unbatched forward pass for each token."""
    if method == "fused":
        causal, pll = (oracle(model, specials, shift, m, item) for m in ("causal", "pll"))
        return [a + b for a, b in zip(causal, pll, strict=True)]
    text = [*item.source, *item.target]
    words, n = words_of(text), len(text)
    scores = []
    for t in range(len(item.source), n):
        if method in ("causal", "prefix"):
            read = [specials.bos, *text[:t]] + [specials.mask] * (1 - shift)
            first = 1 + len(item.source) if method == "prefix" else 1
            blocks = [max(i - first + 1, 0) for i in range(len(read))]
        else:
            last = {"pll": t + 1, "pll_global": n}.get(method, words[t][1])
            begin = words[t][0] if method == "pll_whole_word" else t
            gaps = [specials.mask if begin <= i < last else text[i] for i in range(n)]
            read, blocks = [specials.bos, *gaps, specials.eos], [0] * (n + 2)
        padding = [0] * (T - len(read))
        fields = (jnp.array([x]) for x in (read + padding, [i < len(read) for i in range(T)]))
        tokens = Tokens.of(*fields).replace(blocks=jnp.array([blocks + padding]))
        log_probs = _one_row(*split_model(model), tokens)[t + 1 - shift]
        scores.append(float(log_probs[text[t]]))
    return scores


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("method", TEXT_METHODS)
def test_batched_scores_are_those_of_one_pass_a_token(models, specials, score, shift, method):
    found = score(shift, method, ITEMS)
    for item, of_item in zip(ITEMS, found, strict=True):
        expected = oracle(models[shift], specials, shift, method, item)
        np.testing.assert_allclose(of_item, expected, atol=1e-4)


@pytest.mark.parametrize("method", ["causal", "pll_within_word"])
def test_windows_and_learned_positions_read_alike(tiny, specials, score, method):
    model = tiny(architecture="decoder", window=3, positions="learned", max_length=T)
    for item, found in zip(ITEMS, score(1, method, ITEMS, model), strict=True):
        expected = oracle(model, specials, 1, method, item)
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("shift", [0, 1])
def test_pll_variants_are_equal_where_every_word_is_one_token(score, shift):
    items = [Item((), text) for text in ONE_PIECE]
    pll, within, whole, to_the_right = (score(shift, method, items) for method in PLL)
    for other in (within, whole):
        for a, b in zip(pll, other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
    # Hiding all that follows is the same only where nothing does.
    for a, b in zip(pll, to_the_right, strict=True):
        assert a[-1] == pytest.approx(b[-1], abs=1e-5)
        assert (abs(a - b)[:-1] > 1e-4).all()


@pytest.mark.parametrize("shift", [0, 1])
def test_pll_variants_differ_in_a_word_of_several_tokens(score, shift):
    scores = [score(shift, method, [Item((), (10, 11, 13, 20))])[0] for method in PLL]
    for i, a in enumerate(scores):
        for b in scores[i + 1 :]:
            assert abs(a - b).max() > 1e-3
    # In a word of one token, and in the last token of any word, within-word hides that token only.
    np.testing.assert_allclose(scores[0][[2, 3]], scores[1][[2, 3]], atol=1e-5)


def test_what_is_hidden_in_a_text_of_two_words():
    """By hand: <bos> a1 a2 b1 b2 <eos>, words 1 2 2 3 3 4; a row for each of the four tokens."""
    words, places = np.array([1, 2, 2, 3, 3, 4]), np.arange(1, 5)
    expected = {
        "pll": [".x....", "..x...", "...x..", "....x."],
        "pll_within_word": [".xx...", "..x...", "...xx.", "....x."],
        "pll_whole_word": [".xx...", ".xx...", "...xx.", "...xx."],
        "pll_global": [".xxxx.", "..xxx.", "...xx.", "....x."],
    }
    for method, rows in expected.items():
        found = hidden_places(method, words, places)
        assert ["".join(".x"[x] for x in row) for row in found.astype(int)] == rows


def test_a_masked_token_cannot_be_seen_and_the_others_can(models, tokenizer):
    """A model that copies what it reads would score 0: the answer must not be among the input."""
    seen = []
    for method in PLL:
        scorer = make_scorer(method, *about(models[0], tokenizer))
        copies = scorer.copies(Item((), (10, 11, 13, 20)), method)
        assert (np.take_along_axis(copies.ids, copies.at, 1) == tokenizer.specials.mask).all()
        assert copies.targets[:, 0].tolist() == [10, 11, 13, 20]
        seen.append((copies.ids != tokenizer.specials.mask).sum(1).tolist())
    assert seen == [[5, 5, 5, 5], [3, 4, 5, 5], [3, 3, 3, 5], [2, 3, 4, 5]]


def about(model, tokenizer, objective=None):
    graph, _ = split_model(model)
    objective = objective or MaskedLM(_masking(tokenizer))
    return graph, objective, tokenizer, model.config


def test_causal_scores_are_the_causal_loss(models, tokenizer, specials):
    """Of all targets but <eos>, which no masked model predicts."""
    model = models[1]
    scorer = make_scorer("causal", *about(model, tokenizer, CausalLM()))
    found = scorer.score(split_model(model)[1], [Item((), text) for text in TEXTS])
    width = max(map(len, TEXTS)) + 2
    rows = [[specials.bos, *text, specials.eos] for text in TEXTS]
    ids = np.array([row + [0] * (width - len(row)) for row in rows])
    real = np.arange(width)[None] < np.array([[len(row)] for row in rows])
    tokens = Tokens.of(jnp.asarray(ids), jnp.asarray(real))
    losses = jax.jit(lambda x: token_losses(model, CausalLM()(x, jax.random.key(0))))(tokens)
    for i, text in enumerate(TEXTS):
        assert losses.weights[i].sum() == len(text) + 1
        expected = -np.asarray(losses.nll)[i, : len(text)].sum()
        assert found[i].total == pytest.approx(expected, abs=1e-4)


def test_a_text_s_score_does_not_depend_on_the_others(score):
    whole = score(1, "pll", ITEMS)
    for item, expected in zip(ITEMS[:3], whole, strict=False):
        np.testing.assert_allclose(score(1, "pll", [item])[0], expected, atol=1e-6)
    twice = score(1, "pll", [ITEMS[3], *ITEMS, ITEMS[3]])
    assert twice[0].tobytes() == twice[4].tobytes() == twice[-1].tobytes()


def test_few_shapes_are_compiled_and_none_twice(score, models):
    for method in ("pll", "causal"):
        score(1, method, ITEMS)
    compiled = score_batches.score_rows._cache_size()
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(1, 10, rng.integers(1, 30))
        items = [Item((), tuple(rng.integers(7, 80, n).tolist())) for n in lengths]
        assert [len(x) for x in score(1, "pll", items)] == lengths.tolist()
    # At most 8, 12 tokens wide, each with a full batch and a small one.
    assert score_batches.score_rows._cache_size() <= compiled + 4


def test_widths_grow_by_at_most_a_half_and_batches_are_full_or_small():
    widths = [width_of(length, 10**6) for length in range(1, 3000)]
    assert all(width >= length for length, width in enumerate(widths, 1))
    assert all(width <= max(8, 1.5 * length) for length, width in enumerate(widths, 1))
    assert sorted(set(widths))[:7] == [8, 12, 16, 24, 32, 48, 64]
    assert width_of(9, 10) == 10
    assert (rows_of(8), rows_of(65)) == (8, 1)
    assert [fit(count, 16) for count in (1, 2, 3, 16)] == [2, 2, 16, 16]


def test_a_token_exactly_as_likely_as_another_is_not_the_likeliest(models, tokenizer):
    """T18: a model without an opinion gives all tokens the same probability."""
    model = models[1]
    params = jax.tree.map(jnp.zeros_like, split_model(model)[1])
    scorer = make_scorer("causal", *about(model, tokenizer, CausalLM()))
    for found in scorer.score(params, ITEMS):
        np.testing.assert_allclose(found.log_probs, -np.log(80), rtol=1e-6)
        assert not found.correct.any()


def test_the_likeliest_token_is_correct(models, tokenizer, score):
    model = models[1]
    graph, params = split_model(model)
    tokens = Tokens.of(jnp.array([[tokenizer.specials.bos, 10] + [0] * (T - 2)])).causal()
    best = tuple(int(x) for x in _one_row(graph, params, tokens)[:2].argmax(-1))
    scorer = make_scorer("causal", *about(model, tokenizer, CausalLM()))
    first, second = scorer.score(params, [Item((), (best[0],)), Item((10,), (best[1],))])
    assert first.correct.tolist() == second.correct.tolist() == [True]


def test_methods_scored_together_score_as_they_do_alone(models, tokenizer):
    model = models[1]
    params = split_model(model)[1]
    scorers = [make_scorer(name, *about(model, tokenizer)) for name in ("fused", "pll", "causal")]
    for chosen in (scorers, scorers[:2]):
        found = score_under_all(chosen, params, ITEMS)
        for scorer in chosen:
            alone = scorer.score(params, ITEMS)
            for a, b in zip(found[scorer.method], alone, strict=True):
                np.testing.assert_array_equal(a.log_probs, b.log_probs)
                np.testing.assert_array_equal(a.correct, b.correct)


def test_a_text_without_tokens_scores_nothing(score):
    alone, both = score(1, "pll", [Item((), ())]), score(1, "pll", [Item((), ()), Item((), (8,))])
    assert [len(x) for x in (*alone, *both)] == [0, 0, 1]


def test_a_prefix_of_one_token_is_causal_and_its_source_is_read_from_both_sides(score):
    alone = [Item((), text) for text in TEXTS]
    for a, b in zip(score(1, "prefix", alone), score(1, "causal", alone), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    after = [Item((30, 31, 70), (12, 13))]
    assert abs(score(1, "prefix", after)[0] - score(1, "causal", after)[0]).max() > 1e-3


def test_own_methods(models, tiny, tokenizer, specials):
    def own(model, objective):
        return make_scorer("own", *about(model, tokenizer, objective)).method

    assert own(models[1], CausalLM()) == "causal"
    assert own(models[1], PrefixLM()) == "prefix"
    assert own(models[0], MaskedLM(_masking(tokenizer))) == "pll"


def test_methods_that_cannot_be_are_refused(tiny, models, tokenizer, specials):
    pairs = about(tiny(architecture="encoder_decoder"), tokenizer, Translation(specials))
    with pytest.raises(InputError, match=r"method = 'causal': .* to translate; .* own, prefix"):
        make_scorer("causal", *pairs)
    joined = about(models[1], tokenizer, CausalTranslation(specials))
    with pytest.raises(InputError, match=r"eval\.scoring = 'pll': .*translate"):
        make_scorer("pll", *joined, "eval.scoring")
    spans = about(models[1], tokenizer, PrefixSpanCorruption(Vocabulary(80, specials), 0.15, 3.0))
    with pytest.raises(InputError, match=r"method = 'causal': .*hidden spans; .* own, prefix, pll"):
        make_scorer("causal", *spans)
    with pytest.raises(InputError, match=r"'pl': expected one of own, causal.*did you mean 'pll'"):
        make_scorer("pl", *about(models[1], tokenizer))


def test_what_is_too_long_is_cut_to_the_limit(tiny, specials, tokenizer):
    learned = {"positions": "learned", "max_length": 8}
    text = make_scorer("pll", *about(tiny(**learned), tokenizer))
    assert text.limit == 8
    cut = text.cut(Item((1, 2, 3), (4, 5, 6, 7)))
    assert cut == Item((2, 3), (4, 5, 6, 7))
    assert text.length(cut) == 8
    assert text.cut(Item((1,), tuple(range(10, 18)))) == Item((), tuple(range(10, 16)))
    fits = Item((1, 2), (3,))
    assert text.cut(fits) == fits
    both = tiny(architecture="encoder_decoder", **learned)
    pairs = make_scorer("own", *about(both, tokenizer, Translation(specials)))
    long = Item(tuple(range(10, 20)), tuple(range(20, 30)))
    assert pairs.length(long) == 12
    assert pairs.cut(long) == Item(long.source[:7], long.target[:6])
    joined = make_scorer("own", *about(tiny(**learned), tokenizer, CausalTranslation(specials)))
    assert joined.limit == 4
    params = split_model(tiny(**learned))[1]
    (scores,) = joined.score(params, [joined.cut(long)])  # runs off no table
    assert len(scores.log_probs) == 3


def test_a_source_and_what_follows_it_are_one_text(tiny):
    tokenizer = ByteTokenizer()
    scorer = make_scorer("causal", *about(tiny(), tokenizer, CausalLM()))
    assert isinstance(scorer, Scorer)
    assert scorer.read("ab ", " cd") == Item((97, 98), (32, 99, 100))
    assert scorer.read("", "cd") == Item((), (99, 100))
