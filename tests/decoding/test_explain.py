"""What is told of a text that was written, against a pass over each row alone."""

import jax
import jax.numpy as jnp
import numpy as np
from oracles import PAD, strip, tokens_of

from attn_jax.decoding.beam import Beam, beam_search
from attn_jax.decoding.explain import explain, is_written

SOURCES = [[1, 2, 4], [7], [5, 4, 8, 1, 2], [1], [2, 8], [7, 7, 1, 5]]
PROMPTS = [[4, 2], [4], [4], [4, 7], [9, 8], [4, 1]]
EOS = 3


def test_scores_and_cross_attention_of_what_was_written(tiny):
    model = tiny(architecture="encoder_decoder", num_layers=1)
    prompt, source = tokens_of(PROMPTS), tokens_of(SOURCES)
    ends = {"max_new": 4, "eos": EOS, "pad": PAD}
    found = beam_search(model, prompt, source, beam=Beam(3), **ends)
    texts = np.array(found.ids[:, 0])
    told = explain(model, prompt, texts, source, eos=EOS)
    lengths = [len(strip(ids, EOS)) for ids in texts]
    scores = np.asarray(told.log_probs).sum(axis=1) / lengths
    np.testing.assert_allclose(found.scores[:, 0], scores, atol=1e-4)

    texts[2, 1:] = [EOS, PAD, PAD]
    told = explain(model, prompt, texts, source, eos=EOS)
    log_probs, attention = map(np.asarray, told)
    assert attention.shape == (1, 6, 2, 4, 5)
    assert (log_probs[2, 2:] == 0).all()
    assert (attention[:, 2, :, 2:] == 0).all()
    sums = attention.sum(axis=-1)
    np.testing.assert_allclose(sums, np.broadcast_to(sums > 0.5, sums.shape), atol=1e-5)
    # One row alone, without padding.
    row = 3
    read = [*PROMPTS[row], *texts[row]]

    @jax.jit
    def alone(tokens, source):
        captured = []
        return model.logits(model(tokens, source, capture=captured)), captured

    logits, captured = alone(tokens_of([read[:-1]]), tokens_of([SOURCES[row]]))
    at = range(len(PROMPTS[row]) - 1, len(read) - 1)
    logits = np.asarray(logits, np.float64)[0, at]
    picked = logits[range(4), texts[row]] - np.log(np.exp(logits).sum(axis=1))
    np.testing.assert_allclose(log_probs[row], picked, atol=1e-5)
    np.testing.assert_allclose(
        attention[0, row, :, :, :1], np.asarray(captured[1])[0][:, at], atol=1e-5
    )
    assert (attention[0, row, :, :, 1:] == 0).all()


def test_a_text_is_written_up_to_its_first_eos():
    ids = jnp.array([[3, 3, 6], [1, 3, 6], [1, 2, 4]])
    assert is_written(ids, EOS).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
