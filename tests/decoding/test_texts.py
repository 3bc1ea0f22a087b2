"""What flags ask for becomes one kind of decoding, or is refused."""

import numpy as np
import pytest
from oracles import tokens_of

from attn_jax.decoding import text
from attn_jax.decoding.beam import Beam, Hypotheses
from attn_jax.decoding.sampling import GREEDY, Sampling
from attn_jax.decoding.text import make_search
from attn_jax.errors import InputError

PLAIN = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0}


def test_flags_choose_the_search():
    assert make_search(1, 1.0, **PLAIN) == GREEDY
    assert make_search(4, 0.5, **PLAIN) == Beam(4, 0.5, n_best=1)
    warm = PLAIN | {"temperature": 0.7, "top_k": 5, "seed": 3}
    assert make_search(1, 1.0, **warm) == Sampling(0.7, 5, 1.0, 0.0, 3)


@pytest.mark.parametrize(
    ("beam_size", "length_penalty", "fields", "message"),
    [
        (
            2,
            1.0,
            {"temperature": 0.5},
            r"temperature = 0\.5: expected beam_size = 1 with it, not 2",
        ),
        (2, 1.0, {"top_p": 0.5}, r"top_p = 0\.5: expected beam_size = 1 with it, not 2"),
        (2, 1.0, {"seed": 5}, "seed = 5: expected beam_size = 1"),
        (1, 0.5, {}, r"length_penalty = 0\.5: expected beam_size > 1 with it"),
        (0, 1.0, {}, "beam_size = 0: expected from 1 to 1000"),
        (1, 1.0, {"top_k": 3}, "top_k = 3: expected temperature > 0"),
    ],
)
def test_flags_that_conflict_are_refused(beam_size, length_penalty, fields, message):
    with pytest.raises(InputError, match=message):
        make_search(beam_size, length_penalty, **PLAIN | fields)


def test_of_a_beam_the_best_text_is_taken(monkeypatch):
    asked = []

    def search(model, prompt, source, **options):
        asked.append(options)
        return Hypotheses(np.array([[[1, 2], [3, 4]]]), np.array([[-1.0, -2.0]]))

    monkeypatch.setattr(text, "beam_search", search)
    ends = {"max_new": 2, "eos": 3, "pad": 6}
    write = getattr(text._write, "__wrapped__", text._write)
    found = write(None, tokens_of([[1]]), None, Beam(2), np.array([0]), **ends)
    assert found.tolist() == [[1, 2]]
    assert asked == [{"beam": Beam(2), **ends}]


def test_beams_take_room_from_rows():
    lengths = [56] * 64
    assert text._rows(lengths, 200) == 64  # of 256 positions each
    assert text._rows(lengths, 5 * 200) == 8
