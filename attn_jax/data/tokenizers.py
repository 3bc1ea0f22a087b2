"""Tokenizers: byte, character, pre-split words and sentencepiece behind one small interface.

Special ids are data of a tokenizer, never constants: a byte tokenizer pads with 256.
"""

import base64
import hashlib
import json
import os
import string
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, SupportsInt

import numpy as np

from attn_jax.config import TokenizerConfig
from attn_jax.errors import InputError
from attn_jax.files import write_whole

FILE = "tokenizer.json"
UNKNOWN = "⁇"  # what an unknown token decodes to


@dataclass(frozen=True)
class Specials:
    """Ids that stand for no text, apart from `unk`, which stands for any text unseen."""

    pad: int
    bos: int
    eos: int
    mask: int
    sep: int
    unk: int

    @classmethod
    def starting_at(cls, first: int) -> "Specials":
        """Returns six ids in a row."""
        return cls(*range(first, first + 6))


@dataclass(frozen=True)
class Vocabulary:
    """What objectives know about the ids of a tokenizer; hashed by jit, so in plain values.

    size:      V, of all ids.
    specials:  the special ones.
    edges:     bool [2, V] as bytes: which tokens may start a word, and which may end one. A word
               ends between two tokens if the first may end one and the second may start one.
    sentinels: ids that stand for hidden spans, in order; special, too.
    """

    size: int
    specials: Specials
    edges: bytes = b""
    sentinels: tuple[int, ...] = ()

    @property
    def special(self) -> tuple[int, ...]:
        """All ids that are no text, and `unk`."""
        return (*astuple(self.specials), *self.sentinels)

    @property
    def ordinary(self) -> np.ndarray:
        """All other ids, int32."""
        return np.setdiff1d(np.arange(self.size, dtype=np.int32), self.special)

    @property
    def word_edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Which tokens may start a word, and which may end one: bool [V] each."""
        starts, ends = np.frombuffer(self.edges, bool).reshape(2, self.size)
        return starts, ends


class Tokenizer(ABC):
    """Text to ids and back.

    `sentinels` are the last ids, which stand for hidden spans and are never read from text.
    """

    name: ClassVar[str]  # as in `tokenizer.name`
    unknown_starts_word: ClassVar[bool] = False  # unknown is a letter, of whatever word it is in
    specials: Specials
    vocab_size: int
    sentinels: range = range(0)

    def _count_ids(self, others: int, sentinels: int) -> None:
        self.vocab_size = others + sentinels
        self.sentinels = range(others, self.vocab_size)

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`; special ids are neither added nor parsed from it."""

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """Returns the text of ids, of which only `unk` may be special."""

    @abstractmethod
    def _piece(self, token: int) -> str:
        """Returns the text of an ordinary token, for people to read."""

    @abstractmethod
    def _num_bytes(self, token: int) -> int:
        """Returns how many bytes of UTF-8 an ordinary token stands for."""

    def _starts_word(self, token: int) -> bool:
        """Tells whether an ordinary token may be the first of a word."""
        return True

    def _ends_word(self, token: int) -> bool:
        """Tells whether an ordinary token may be the last of a word."""
        return True

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Returns what the constructor takes beside `sentinels`, ready for JSON."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns `[encode(text) for text in texts]`, maybe faster."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """Returns the text of `ids`; special ids are dropped, unknown tokens become "⁇"."""
        dropped = {*astuple(self.specials), *self.sentinels} - {self.specials.unk}
        return self._decode([int(i) for i in ids if int(i) not in dropped])

    def whole(self, text: str) -> str:
        """Returns a text in whole words, as `decode` writes it; most are so already."""
        return text

    def piece(self, token: SupportsInt) -> str:
        """Returns one token readably: its text, or its name such as "<bos>"."""
        names = {i: f"<{name}>" for name, i in asdict(self.specials).items()}
        names |= {i: f"<sentinel_{n}>" for n, i in enumerate(self.sentinels)}
        return names.get(int(token)) or self._piece(int(token))

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """Returns True where a token begins a word; a space belongs to the word after it."""
        starts, ends = self.vocabulary.word_edges
        array = np.asarray(ids, np.int32)
        return [True, *(ends[array[:-1]] & starts[array[1:]]).tolist()] if len(array) else []

    def names(self) -> list[str]:
        """Returns the name of every token by id, all different, for programs that go by names."""
        names = [self.piece(i) for i in range(self.vocab_size)]
        special = self.vocabulary.special
        ordinary = {name for i, name in enumerate(names) if i not in special}
        for i in special:
            while names[i] in ordinary:  # a text may spell "<eos>"
                names[i] = f"<{names[i]}>"
        return names

    def token_bytes(self) -> np.ndarray:
        """Returns int32 [V]: bytes of UTF-8 that each token adds to a text, 0 for specials."""
        sizes = np.zeros(self.vocab_size, np.int32)
        for token in self.vocabulary.ordinary.tolist():
            sizes[token] = self._num_bytes(token)
        return sizes

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What objectives know about the ids."""
        found = Vocabulary(self.vocab_size, self.specials, sentinels=tuple(self.sentinels))
        edges = np.ones((2, self.vocab_size), bool)  # a special token is a word of its own
        edges[0, self.specials.unk] = self.unknown_starts_word
        for token in found.ordinary.tolist():
            edges[:, token] = self._starts_word(token), self._ends_word(token)
        return replace(found, edges=edges.tobytes())

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest; equal for tokenizers that treat every text alike."""
        return hashlib.sha256(self._json().encode()).hexdigest()[:16]

    def save(self, directory: str | os.PathLike) -> None:
        """Writes `tokenizer.json` into `directory`, whole or not at all."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / FILE, self._json())

    def _json(self) -> str:
        state = {"name": self.name, **self.state()}
        # Without any, the file and the fingerprint are those of a tokenizer that knew none.
        return json.dumps(state | ({"sentinels": len(self.sentinels)} if self.sentinels else {}))


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes are ids 0..255; the specials follow."""

    name = "byte"
    specials = Specials.starting_at(256)

    def __init__(self, sentinels: int = 0) -> None:
        self._count_ids(262, sentinels)

    def encode(self, text: str) -> list[int]:
        """Returns the bytes of `text`."""
        return list(text.encode())

    def _decode(self, ids: list[int]) -> str:
        unknown = UNKNOWN.encode()
        return b"".join(bytes([i]) if i < 256 else unknown for i in ids).decode(errors="replace")

    def _piece(self, token: int) -> str:
        return chr(token) if 32 <= token < 127 else f"<0x{token:02X}>"

    def _num_bytes(self, token: int) -> int:
        return 1

    def _starts_word(self, token: int) -> bool:
        return chr(token) in string.whitespace  # a space belongs to what follows

    def state(self) -> dict[str, Any]:
        """Returns nothing: all byte tokenizers are alike."""
        return {}


class _TableTokenizer(Tokenizer):
    """Looks whole units of text up in a table; the specials come first."""

    specials = Specials.starting_at(0)

    def __init__(self, pieces: Sequence[str], sentinels: int = 0) -> None:
        self._first = len(astuple(self.specials))
        self._pieces = list(pieces)
        self._ids = {piece: i for i, piece in enumerate(pieces, self._first)}
        self._count_ids(self._first + len(pieces), sentinels)

    def _lookup(self, units: Iterable[str]) -> list[int]:
        return [self._ids.get(unit, self.specials.unk) for unit in units]

    def _piece(self, token: int) -> str:
        return self._pieces[token - self._first]

    def _texts(self, ids: Iterable[int]) -> list[str]:
        return [UNKNOWN if i == self.specials.unk else self._piece(i) for i in ids]

    def state(self) -> dict[str, Any]:
        """Returns the table."""
        return {"pieces": self._pieces}


class CharTokenizer(_TableTokenizer):
    """One token per character that the training text has."""

    name = "char"

    def encode(self, text: str) -> list[int]:
        """Returns one id per character."""
        return self._lookup(text)

    def _decode(self, ids: list[int]) -> str:
        return "".join(self._texts(ids))

    def _num_bytes(self, token: int) -> int:
        return len(self._piece(token).encode())

    def _starts_word(self, token: int) -> bool:
        return self._piece(token).isspace()

    @classmethod
    def train(cls, texts: Iterable[str], sentinels: int = 0) -> "CharTokenizer":
        """Collects the characters of `texts`."""
        seen: set[str] = set()
        for text in texts:
            seen.update(text)
        return cls(sorted(seen), sentinels)


class WhitespaceTokenizer(_TableTokenizer):
    """Words between spaces, for text that is split already, such as BPE files with "@@ " marks."""

    name = "whitespace"
    unknown_starts_word = True  # unknown is a word, or a piece of one

    def encode(self, text: str) -> list[int]:
        """Returns one id per word."""
        return self._lookup(text.split())

    def whole(self, text: str) -> str:
        """Joins BPE pieces."""
        return f"{text} ".replace("@@ ", "").rstrip(" ")

    def _decode(self, ids: list[int]) -> str:
        return self.whole(" ".join(self._texts(ids)))

    def _num_bytes(self, token: int) -> int:
        piece = self._piece(token)
        return len(piece.removesuffix("@@").encode()) + (not piece.endswith("@@"))

    def _ends_word(self, token: int) -> bool:
        return not self._piece(token).endswith("@@")

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, sentinels: int = 0
    ) -> "WhitespaceTokenizer":
        """Keeps the most frequent words of `texts`; `vocab_size` counts the special ids, too."""
        counts = Counter(word for text in texts for word in text.split())
        # Equal counts go by spelling, so that the order of the texts plays no part.
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ranked[: vocab_size - len(astuple(cls.specials)) - sentinels], sentinels)


class SentencePieceTokenizer(Tokenizer):
    """A sentencepiece model that gives every text of known characters back as it was.

    Kudo and Richardson (2018), https://arxiv.org/abs/1808.06226.
    """

    name = "sentencepiece"
    specials = Specials.starting_at(0)

    def __init__(self, model: str, sentinels: int = 0) -> None:
        import sentencepiece

        self._model = model  # in base64
        self._processor = sentencepiece.SentencePieceProcessor(
            model_proto=base64.b64decode(model, validate=True)
        )
        self._count_ids(self._processor.vocab_size(), sentinels)

    def encode(self, text: str) -> list[int]:
        """Returns the most probable segmentation."""
        return self._processor.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes in several threads."""
        return self._processor.encode(list(texts))

    def _decode(self, ids: list[int]) -> str:
        return self._processor.decode(ids)

    def _piece(self, token: int) -> str:
        return self._processor.id_to_piece(token).replace("▁", " ")

    def _num_bytes(self, token: int) -> int:
        return len(self._piece(token).encode())

    def _starts_word(self, token: int) -> bool:
        return self._piece(token).startswith(" ")

    def names(self) -> list[str]:
        """Returns sentencepiece's own names."""
        own = [self._processor.id_to_piece(i) for i in range(self._processor.vocab_size())]
        return own + [self.piece(i) for i in self.sentinels]

    def state(self) -> dict[str, Any]:
        """Returns the model file in base64."""
        return {"model": self._model}

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> "SentencePieceTokenizer":
        """Trains a unigram model."""
        from attn_jax.data.sentencepiece_training import train_model

        model = train_model(texts, config, cls.specials)
        return cls(base64.b64encode(model).decode(), config.sentinels)


_KINDS: dict[str, type[Tokenizer]] = {
    kind.name: kind
    for kind in (ByteTokenizer, CharTokenizer, WhitespaceTokenizer, SentencePieceTokenizer)
}


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Trains the tokenizer that `config` names; the same texts give the same tokenizer.

    Raises:
      InputError: if `tokenizer.vocab_size` is more, or less, than the texts allow.
    """
    if config.name == "byte":
        return ByteTokenizer(config.sentinels)
    if config.name == "char":
        return CharTokenizer.train(texts, config.sentinels)
    if config.name == "whitespace":
        return WhitespaceTokenizer.train(texts, config.vocab_size, config.sentinels)
    return SentencePieceTokenizer.train(texts, config)


def load_tokenizer(directory: str | os.PathLike) -> Tokenizer:
    """Reads what `Tokenizer.save` wrote.

    Raises:
      InputError: if the file is missing or damaged.
    """
    path = Path(directory) / FILE
    try:
        state = json.loads(path.read_text())
        return _KINDS[state.pop("name")](**state)
    except OSError as error:
        raise InputError(f"{path}: cannot read the tokenizer: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(f"{path}: not a saved tokenizer") from error
