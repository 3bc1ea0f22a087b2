"""What is told of a text that was written, against a pass over each row alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import PAD, strip, tokens_of
from test_beam import NEW, SOURCES, Case

from attn_jax.decoding.beam import Beam, beam_search
from attn_jax.decoding.explain import explain, is_written
from attn_jax.objectives.translation import CausalTranslation, PrefixTranslation


@pytest.mark.slow
def test_scores_and_cross_attention_of_what_was_written(tiny):
    case = Case(tiny, "pair")
    model, source, eos = case.model, case.source, case.eos
    found = case.search()
    texts = np.array(found.ids[:, 0])
    told = explain(model, tokens_of(case.prompts), texts, source, eos=eos)
    lengths = [len(strip(ids, eos)) for ids in texts]
    scores = np.asarray(told.log_probs).sum(axis=1) / lengths
    np.testing.assert_allclose(found.scores[:, 0], scores, atol=1e-4)

    # Ragged prompts; one row ends early.
    prompts = [[4, 2], [4], [4], [4, 7], [7, 8], [4, 1]]
    texts[2, 1:] = [eos, *[PAD] * (NEW - 2)]
    texts[3, :] = [4, 2, 1, 7, 8, 2, 4]
    told = explain(model, tokens_of(prompts), texts, source, eos=eos)
    log_probs, attention = map(np.asarray, told)
    assert attention.shape == (1, 6, 2, NEW, 5)
    assert (log_probs[2, 2:] == 0).all()
    assert (attention[:, 2, :, 2:] == 0).all()
    sums = attention.sum(axis=-1)
    np.testing.assert_allclose(sums, np.broadcast_to(sums > 0.5, sums.shape), atol=1e-5)
    # One row alone, without padding.
    row = 3
    read = [*prompts[row], *texts[row]]

    @jax.jit
    def alone(tokens, source):
        captured = []
        return model.logits(model(tokens, source, capture=captured)), captured

    logits, captured = alone(tokens_of([read[:-1]]), tokens_of([SOURCES[row]]))
    at = range(len(prompts[row]) - 1, len(read) - 1)
    logits = np.asarray(logits, np.float64)[0, at]
    picked = logits[range(NEW), texts[row]] - np.log(np.exp(logits).sum(axis=1))
    np.testing.assert_allclose(log_probs[row], picked, atol=1e-5)
    np.testing.assert_allclose(
        attention[0, row, :, :, :1], np.asarray(captured[1])[0][:, at], atol=1e-5
    )
    assert (attention[0, row, :, :, 1:] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("objective", [CausalTranslation, PrefixTranslation])
def test_a_beam_scores_joined_pairs_with_sides_as_one_pass_does(tiny, specials, objective):
    model = tiny(num_layers=1, side_embeddings=True)
    prompt, _ = objective(specials).prompt(tokens_of(SOURCES, 5))
    beam, eos = Beam(size=2, length_penalty=0.0), specials.eos
    found = beam_search(model, prompt, beam=beam, max_new=4, eos=eos, pad=PAD)
    told = explain(model, prompt, found.ids[:, 0], eos=eos)
    np.testing.assert_allclose(found.scores[:, 0], told.log_probs.sum(axis=1), atol=1e-4)
    other = explain(model, prompt.replace(sides=1 - prompt.sides), found.ids[:, 0], eos=eos)
    assert abs(other.log_probs - told.log_probs).max() > 1e-3


def test_a_text_is_written_up_to_its_first_eos():
    ids = jnp.array([[3, 3, 6], [1, 3, 6], [1, 2, 4]])
    assert is_written(ids, 3).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
