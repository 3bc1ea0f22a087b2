"""Texts in, texts out: batching by length around every kind of decoding."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from attn_jax.data.tokenizers import Tokenizer
from attn_jax.decoding.beam import Beam, beam_search
from attn_jax.decoding.prompts import prepare
from attn_jax.decoding.sampling import GREEDY, Sampling, sample
from attn_jax.devices import local_mesh
from attn_jax.errors import InputError
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer
from attn_jax.objectives import Objective

ROWS = 64  # texts decoded at once ...
POSITIONS = 64 * 256  # ... fewer, if they and their results would take more than this
WIDTH = 16  # lengths are rounded up to a multiple, so that few shapes compile

Search = Sampling | Beam


def make_search(
    beam_size: int, length_penalty: float, early_stopping: bool = True, **sampling: float | int
) -> Search:
    """Returns beam search for `beam_size` > 1, else sampling, or greedy decoding.

    Args:
      beam_size: see `Beam`.
      length_penalty: see `Beam`.
      early_stopping: see `Beam`.
      sampling: fields of `Sampling`.

    Raises:
      InputError: a value is not allowed, or would be ignored beside the others.
    """
    if beam_size == 1:
        of_beams = {"length_penalty": length_penalty, "early_stopping": early_stopping}
        for name, value in of_beams.items():
            if value != getattr(Beam, name):
                raise InputError(f"{name} = {value!r}: expected beam_size > 1 with it")
        return Sampling(**sampling)
    for name, value in sampling.items():
        if value != getattr(Sampling, name):
            raise InputError(f"{name} = {value!r}: expected beam_size = 1 with it, not {beam_size}")
    return Beam(beam_size, length_penalty, early_stopping=early_stopping)


class Writer:
    """Writes translations, or what follows, with a trained model."""

    def __init__(
        self,
        model: Transformer,
        objective: Objective,
        tokenizer: Tokenizer,
        max_new: int,
        search: Search = GREEDY,
    ):
        """Keeps what all texts have in common.

        Args:
          model: trained with `objective`.
          objective: one on pairs translates; one on text continues from `<bos> text`.
          tokenizer: of the run.
          max_new: most tokens that are written.
          search: how; greedy if left out.

        Raises:
          InputError: nothing could be read before so many tokens.
        """
        self._objective, self._tokenizer = objective, tokenizer
        self._model = prepare(model)
        self._max_new, self._search = max_new, search
        self._pairs = objective.kind == "pair"
        self._longest = model.config.max_length if model.config.positions == "learned" else None
        self._two_sides = model.config.architecture == "encoder_decoder"
        if self._longest and max_new > self._longest:
            table = f"model.max_length = {self._longest} of the learned positions"
            raise InputError(f"max_new = {max_new}: expected at most {table}")
        if self.limit < 1:
            raise InputError(f"max_new = {max_new}: leaves no room for what the model reads")

    @property
    def limit(self) -> int:
        """The most tokens of one text that can be read."""
        room = POSITIONS - self._max_new
        if not self._longest:
            return room
        if self._two_sides:
            return min(room, self._longest)
        # One table for what is read, <sep> after it, and all that is written but the last token.
        return min(room, self._longest - self._max_new + (not self._pairs))

    def check(self, text: str) -> None:
        """Refuses nothing: any text can be translated, or continued."""

    def length(self, ids: list[int]) -> int:
        """Returns how much of the limit a text takes."""
        return len(ids)

    def read(self, text: str) -> list[int]:
        """Returns the tokens of a text as the model reads them."""
        specials = self._tokenizer.specials
        if self._pairs:  # which are stripped in training too
            return [*self._tokenizer.encode(text.strip()), specials.eos]
        return [specials.bos, *self._tokenizer.encode(text)]

    def cut(self, ids: list[int]) -> list[int]:
        """Cuts what was `read` down to the limit: the end of a source, or the oldest tokens."""
        if len(ids) <= self.limit:
            return ids
        return [*ids[: self.limit - 1], ids[-1]] if self._pairs else ids[-self.limit :]

    def write(self, texts: dict[int, list[int]]) -> Iterator[tuple[int, str]]:
        """Yields `(number, translation or continued text)` of each text, shortest texts first.

        What is drawn depends on the seed and a text's number, not on the other texts.

        Args:
          texts: their tokens, by number.
        """
        order = sorted(texts, key=lambda number: len(texts[number]))
        beams = self._search.size if isinstance(self._search, Beam) else 1
        while order:
            rows = _rows([len(texts[i]) for i in order[:ROWS]], beams * self._max_new)
            rows = max(rows, local_mesh().size)  # else devices would write copies
            chosen, order = order[:rows], order[rows:]
            written = self._batch([texts[i] for i in chosen], chosen, rows)
            for number, ids in zip(chosen, written, strict=False):
                # Decoded together with its beginning: a first piece alone would lose its space.
                begun = [] if self._pairs else texts[number]
                yield number, self._tokenizer.decode([*begun, *ids])

    def write_texts(self, texts: Sequence[str]) -> list[str]:
        """Returns the translation, or the continued text, of each text; long ones are cut."""
        found = dict(self.write({i: self.cut(self.read(text)) for i, text in enumerate(texts)}))
        return [found[i] for i in range(len(texts))]

    def _batch(self, sequences: list[list[int]], numbers: list[int], rows: int) -> np.ndarray:
        """Returns the tokens of the best text of each row."""
        specials = self._tokenizer.specials
        tokens = _pad(sequences, specials.pad, (rows, self._width(sequences)))
        prompt, source = self._objective.prompt(tokens)
        # Rows left over are empty, so that nothing waits for them.
        left_over = jnp.arange(rows)[:, None] >= len(sequences)
        prompt = prompt.replace(segments=jnp.where(left_over, 0, prompt.segments))
        ends = {"max_new": self._max_new, "eos": specials.eos, "pad": specials.pad}
        if isinstance(self._search, Beam):
            found = beam_search(self._model, prompt, source, beam=self._search, **ends)
            return np.asarray(found.ids[:, 0])
        indices = np.pad(numbers, (0, rows - len(numbers)))
        options = {"sampling": self._search, "indices": jnp.asarray(indices)}
        return np.asarray(sample(self._model, prompt, source, **options, **ends))

    def _width(self, sequences: list[list[int]]) -> int:
        longest = max(map(len, sequences))
        width = -(-longest // WIDTH) * WIDTH
        if self._longest:  # padding must not run off the table
            written = 0 if self._two_sides else self._max_new
            width = min(width, max(longest, self._longest - written))
        return width


def _rows(lengths: list[int], new: int) -> int:
    """Returns how many of the first texts are decoded at once, a power of 2: few shapes compile."""
    rows = ROWS
    while rows > 1 and rows * (max(lengths[:rows]) + new) > POSITIONS:
        rows //= 2
    return rows


def _pad(sequences: list[list[int]], pad: int, shape: tuple[int, int]) -> Tokens:
    """Returns the sequences, padded on the right; rows left over are empty."""
    ids = np.full(shape, pad, np.int32)
    real = np.zeros(shape, bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        real[row, : len(sequence)] = True
    return Tokens.of(jnp.asarray(ids), jnp.asarray(real))
