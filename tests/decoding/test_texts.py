"""What flags ask for becomes one kind of decoding, or is refused."""

import numpy as np
import pytest

from attn_jax.data.tokenizers import Tokenizer
from attn_jax.decoding import text
from attn_jax.decoding.beam import Beam, Hypotheses
from attn_jax.decoding.sampling import GREEDY, Sampling
from attn_jax.decoding.text import make_search
from attn_jax.errors import InputError
from attn_jax.objectives.causal_lm import CausalLM
from attn_jax.objectives.translation import CausalTranslation, Translation

PLAIN = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0}


def test_flags_choose_the_search():
    assert make_search(1, 1.0, **PLAIN) == GREEDY
    assert make_search(4, 0.5, **PLAIN) == Beam(4, 0.5, n_best=1)
    exact = make_search(4, 0.5, early_stopping=False, **PLAIN)
    assert exact == Beam(4, 0.5, n_best=1, early_stopping=False)
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
        (1, 1.0, {"early_stopping": False}, "early_stopping = False: expected beam_size > 1"),
        (0, 1.0, {}, "beam_size = 0: expected from 1 to 1000"),
        (1, 1.0, {"top_k": 3}, "top_k = 3: expected temperature > 0"),
    ],
)
def test_flags_that_conflict_are_refused(beam_size, length_penalty, fields, message):
    with pytest.raises(InputError, match=message):
        make_search(beam_size, length_penalty, **PLAIN | fields)


class Digits(Tokenizer):
    """As far as a `Writer` needs one: ids are digits, and 10 more."""

    vocab_size, sentinels = 20, range(0)
    _piece = _num_bytes = state = None

    def __init__(self, specials):
        self.specials = specials

    def encode(self, text):
        return [10 + int(digit) for digit in text]

    def _starts_word(self, token):
        return False

    def _decode(self, ids):
        return "".join(str(i - 10) for i in ids)


OBJECTIVES = {
    "encoder_decoder": Translation,
    "joined": CausalTranslation,
    "lm": lambda specials: CausalLM(),
}


def make_writer(tiny, specials, kind, search=GREEDY):
    fields = {"positions": "learned", "max_length": 8, "num_layers": 1}
    if kind == "encoder_decoder":
        fields["architecture"] = kind
    objective = OBJECTIVES[kind](specials)
    return text.Writer(tiny(**fields), objective, Digits(specials), 3, search)


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.slow
def test_texts_of_the_limit_fit_the_table_of_positions_and_longer_ones_do_not(
    tiny, specials, kind, monkeypatch
):
    monkeypatch.setattr(text, "ROWS", 2)
    writer = make_writer(tiny, specials, kind)
    longest = "7" * (writer.limit - 1)
    assert len(writer.read(longest)) == writer.limit
    assert len(writer.write_texts(["1", longest])) == 2
    assert len(writer.write_texts([longest + "7"])) == 1  # cut
    with pytest.raises(InputError, match=r"model\.max_length = 8"):
        list(writer.write({0: writer.read(longest + "7")}))
    ids = writer.read(longest + "89")
    kept = longest + "89"[: 0 if kind != "lm" else None]
    expected = [*writer.read(longest)] if kind != "lm" else writer.read(kept)[-writer.limit :]
    assert writer.cut(ids) == expected
    assert writer.cut(writer.read("12")) == writer.read("12")


@pytest.mark.parametrize(("kind", "width"), [("encoder_decoder", 8), ("joined", 5)])
def test_widths_are_rounded_up_as_far_as_the_table_goes(tiny, specials, kind, width):
    """Few shapes compile; the source of an encoder-decoder has a table of its own."""
    writer = make_writer(tiny, specials, kind)
    assert [writer._width([[10] * n]) for n in (1, 4)] == [width, width]


def test_no_room_is_refused(tiny, specials):
    model = tiny(positions="learned", max_length=8, num_layers=1)
    with pytest.raises(InputError, match=r"max_new = 9: expected at most model\.max_length = 8"):
        text.Writer(model, CausalLM(), Digits(specials), 9)
    with pytest.raises(InputError, match=f"max_new = {text.POSITIONS}: leaves no room"):
        text.Writer(tiny(num_layers=1), CausalLM(), Digits(specials), text.POSITIONS)


def test_of_a_beam_the_best_text_is_taken(tiny, specials, monkeypatch):
    asked = []

    def search(model, prompt, source, **options):
        asked.append(options)
        return Hypotheses(np.array([[[11, 12], [13, 14]]]), np.array([[-1.0, -2.0]]))

    monkeypatch.setattr(text, "beam_search", search)
    writer = make_writer(tiny, specials, "encoder_decoder", Beam(2))
    assert list(writer.write({7: [10, specials.eos]})) == [(7, "12")]
    assert asked == [{"beam": Beam(2), "max_new": 3, "eos": specials.eos, "pad": specials.pad}]


def test_beams_take_room_from_rows():
    lengths = [56] * 64
    assert text._rows(lengths, 200) == 64  # of 256 positions each
    assert text._rows(lengths, 5 * 200) == 8
