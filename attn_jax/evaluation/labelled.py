"""Texts with labels: their files, how a model reads them, and what every classifier reports."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn_jax.config import Config, names_in
from attn_jax.data.batches import spread
from attn_jax.data.sources.files import read_text
from attn_jax.data.sources.source import digest
from attn_jax.data.tokenizers import Tokenizer
from attn_jax.errors import InputError
from attn_jax.evaluation.evaluator import Evaluator, Subject, single_stack
from attn_jax.evaluation.item_files import open_path
from attn_jax.evaluation.score_batches import POSITIONS, fit, pad, rows_of, width_of
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import Transformer
from attn_jax.objectives import Objective

FIELD = "eval.labelled"
MASKS = ("causal", "bidirectional")

Sequences = list[list[int]]


@dataclass(frozen=True)
class Labelled:
    """Texts, or pairs of texts, and their labels."""

    labels: list[str]
    texts: list[tuple[str, ...]]

    def keep(self, numbers: np.ndarray) -> "Labelled":
        """Returns some of the texts."""
        return Labelled([self.labels[i] for i in numbers], [self.texts[i] for i in numbers])


class Classification(Evaluator):
    """Accuracy of a classifier of mean-pooled hidden states of the last layer, by mask.

    A text is read as `<bos> a <eos>`, a pair as `<bos> a <sep> b <eos>`.
    """

    kinds = ("text",)
    longest: ClassVar[int] = POSITIONS  # tokens of a text that are read

    def __init__(self, subject: Subject):
        """Reads at most `eval.max_items` texts of each of the two files of `eval.labelled`.

        Raises:
          InputError: a file is wrong.
        """
        config = subject.config
        self._subject = subject
        self._files = read_labelled(config.eval.labelled, config.eval.max_items)
        self._labels = sorted(set(self._files[0].labels))
        learned = config.model.positions == "learned"
        self._limit = min(self.longest, config.model.max_length if learned else self.longest)
        tokenizer = subject.dataset.tokenizer
        read = [encode(tokenizer, file.texts, self._limit) for file in self._files]
        self._cut = sum(cut for _, cut in read)
        self._train, self._test = (sequences for sequences, _ in read)

    @classmethod
    def problem(cls, config: Config, objective: Objective) -> str:
        """Needs a model that reads one sequence."""
        return super().problem(config, objective) or single_stack(config)

    def run(self, params: dict) -> dict[str, Any]:
        """Returns the accuracy on the second file by mask, and that of the commonest label.

        Also how many texts were cut, of both files, and how many of the second are in the first.
        """
        known = set(self._files[0].texts)
        number = {label: i for i, label in enumerate(self._labels)}
        y, truth = (np.array([number[x] for x in file.labels]) for file in self._files)
        return {
            "items": len(truth),
            "train_items": len(y),
            "fingerprint": digest(*self._files),
            "labels": self._labels,
            "cut": self._cut,
            "known": sum(text in known for text in self._files[1].texts),
            "majority": float((truth == Counter(y.tolist()).most_common(1)[0][0]).mean()),
            "own_mask": self._subject.objective.mask,
            **{mask: _accuracy(mask, self._logits(params, mask, y), truth) for mask in MASKS},
        }

    def _logits(self, params: dict, mask: str, y: np.ndarray) -> np.ndarray:
        """Learns from the training texts of classes `y`; returns [test texts, classes]."""
        raise NotImplementedError


def _accuracy(mask: str, logits: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Returns the accuracy; of a classifier that has diverged only that it has."""
    if not np.isfinite(logits).all():
        return {"mask": mask, "diverged": True}
    accuracy = float((logits.argmax(1) == truth).mean())
    stderr = math.sqrt(accuracy * (1 - accuracy) / len(truth))
    return {"mask": mask, "accuracy": accuracy, "accuracy_stderr": stderr}


def read_labelled(paths: str, most: int = 0) -> tuple[Labelled, Labelled]:
    """Reads the training and the test file: `label<TAB>text` or `label<TAB>text<TAB>text` a line.

    Args:
      paths: two, comma-separated. No header.
      most: texts of each that are kept, drawn evenly and always the same; 0 means all.

    Raises:
      InputError: a file or a line is wrong, or a label of the test file is not among the others.
    """
    names = names_in(paths)
    if len(names) != 2:
        raise InputError(f"{FIELD} = {paths!r}: expected two files, TRAIN,TEST")
    files = [_read(name) for name in names]
    columns = {len(texts) for file in files for texts in file.texts}
    if len(columns) > 1:
        raise InputError(f"{FIELD} = {paths!r}: expected as many columns in both files")
    _check_labels(names, *files)
    train, test = (file.keep(spread(len(file.labels), most)) for file in files)
    told = [
        f"{name} (of which eval.max_items = {most} keeps {len(file.labels)} texts)"
        for name, file in zip(names, (train, test), strict=True)
    ]
    _check_labels(told, train, test)
    return train, test


def _check_labels(names: list[str], train: Labelled, test: Labelled) -> None:
    if len(set(train.labels)) < 2:
        raise InputError(f"{names[0]}: all labels are {train.labels[0]!r}, expected several")
    for label in test.labels:
        if label not in train.labels:
            raise InputError(f"{names[1]}: label {label!r} is not in {names[0]}")


def _read(name: str) -> Labelled:
    path = open_path(FIELD, name)
    labels, texts = [], []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        label, *rest = (part.strip() for part in line.split("\t"))
        alike = not texts or len(rest) == len(texts[0])
        if len(rest) not in (1, 2) or not all((label, *rest)) or not alike:
            raise InputError(
                f"{path}:{number}: {line[:40]!r}: expected label<TAB>text, or "
                "label<TAB>text<TAB>text, in all lines alike"
            )
        labels.append(label)
        texts.append(tuple(rest))
    return Labelled(labels, texts)


def encode(tokenizer: Tokenizer, texts: list[tuple[str, ...]], limit: int) -> tuple[Sequences, int]:
    """Returns `<bos> a <eos>` or `<bos> a <sep> b <eos>` of each, and how many were cut.

    Of what is longer than `limit` the longer text loses its end first.
    """
    bos, sep, eos = (getattr(tokenizer.specials, name) for name in ("bos", "sep", "eos"))
    sides = [tokenizer.encode_batch(side) for side in zip(*texts, strict=True)]
    found, cut = [], 0
    for whole in zip(*sides, strict=True):
        room = max(limit - len(whole) - 1, 0)
        first, *second = _shorten(whole, room)
        found.append([bos, *first, *(token for ids in second for token in (sep, *ids)), eos])
        cut += sum(map(len, whole)) > room
    return found, cut


def _shorten(texts: Sequence[Sequence[int]], room: int) -> list[Sequence[int]]:
    """Returns one text or two of at most `room` tokens together."""
    if len(texts) == 1:
        return [texts[0][:room]]
    a, b = map(len, texts)
    kept = max(min(a, room - b), min(a, -(-room // 2)))  # all that b leaves, or half
    return [texts[0][:kept], texts[1][: room - kept]]


def stack(sequences: Sequences, rows: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids [rows, W] and lengths [rows], W being as in scoring."""
    return pad(sequences, rows, width_of(max(map(len, sequences)), limit))


def read_all(
    read: Callable[[np.ndarray, np.ndarray], Array], sequences: Sequences, limit: int
) -> np.ndarray:
    """Returns what `read(ids [B, W], lengths [B])` gives, a row each, in the order of sequences."""
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    running = [
        read(*stack(chosen, rows, limit))[: len(chosen)]
        for chosen, rows in _batches([sequences[i] for i in order], limit)
    ]
    return np.concatenate(jax.device_get(running))[np.argsort(order)]


def _batches(sequences: Sequences, limit: int) -> Iterator[tuple[Sequences, int]]:
    """Yields the sequences of a batch, and its rows; the longest come first."""
    while sequences:
        most = rows_of(width_of(len(sequences[0]), limit))
        chosen, sequences = sequences[:most], sequences[most:]
        yield chosen, fit(len(chosen), most)


def mean_hidden(
    model: Transformer,
    ids: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    mask: str,
    key: Array | None = None,
) -> Float[Array, "B D"]:
    """Returns the mean hidden state of each row's real tokens under one of MASKS."""
    real = jnp.arange(ids.shape[1])[None, :] < lengths[:, None]
    tokens = Tokens.of(ids, real)
    tokens = tokens.causal() if mask == "causal" else tokens.bidirectional()
    hidden = model(tokens, key=key).astype(jnp.float32)
    total = jnp.sum(jnp.where(real[:, :, None], hidden, 0), axis=1)
    return total / jnp.maximum(lengths, 1)[:, None]
