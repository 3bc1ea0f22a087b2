"""Linear probe: can a linear classifier read labels off the frozen hidden states?"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize
from scipy.special import logsumexp

from attn_jax.config import names_in
from attn_jax.data.batches import spread
from attn_jax.data.sources.files import read_text
from attn_jax.data.sources.source import digest
from attn_jax.data.tokenizers import Tokenizer
from attn_jax.errors import InputError
from attn_jax.evaluation.evaluator import Evaluator, Subject
from attn_jax.evaluation.item_files import open_path
from attn_jax.evaluation.score_batches import POSITIONS, fit, rows_of, width_of
from attn_jax.models.tokens import Tokens

FIELD = "eval.probe"
MASKS = ("causal", "bidirectional")


@dataclass(frozen=True)
class Labelled:
    """Texts, or pairs of texts, and their labels."""

    labels: list[str]
    texts: list[tuple[str, ...]]


class Probe(Evaluator):
    """Accuracy of logistic regression on mean-pooled hidden states of the last layer, by mask.

    A text is read as `<bos> a <eos>`, a pair as `<bos> a <sep> b <eos>`. The parameters of the
    model stay as they are.
    """

    kinds = ("text",)

    def __init__(self, subject: Subject):
        """Reads at most `eval.max_items` texts of each of the two files of `eval.probe`.

        Raises:
          InputError: a file is wrong, or the model is an encoder-decoder.
        """
        config = subject.config
        if config.model.architecture == "encoder_decoder":
            raise InputError("eval.evaluators: 'probe' reads one stack, not an encoder_decoder")
        self._subject = subject
        self._train, self._test = read_labelled(config.eval.probe, config.eval.max_items)
        self._labels = sorted(set(self._train.labels))
        learned = config.model.positions == "learned"
        self._limit = config.model.max_length if learned else POSITIONS
        tokenizer = subject.dataset.tokenizer
        self._sequences = [encode(tokenizer, x.texts) for x in (self._train, self._test)]

    def run(self, params: dict) -> dict[str, Any]:
        """Returns the accuracy on the second file by mask, and that of the commonest label."""
        number = {label: i for i, label in enumerate(self._labels)}
        y, truth = (np.array([number[x] for x in s.labels]) for s in (self._train, self._test))
        return {
            "items": len(truth),
            "train_items": len(y),
            "fingerprint": digest(self._train, self._test),
            "labels": self._labels,
            "cut": sum(len(x) > self._limit for texts in self._sequences for x in texts),
            "majority": float((truth == Counter(y.tolist()).most_common(1)[0][0]).mean()),
            "own_mask": self._subject.objective.mask,
            **{mask: self._measure(params, mask, y, truth) for mask in MASKS},
        }

    def _measure(self, params: dict, mask: str, y: np.ndarray, truth: np.ndarray) -> dict:
        train, test = (self._features(params, mask, texts) for texts in self._sequences)
        center, scale = train.mean(0), train.std(0) + 1e-6
        weights = fit_logistic((train - center) / scale, y, len(self._labels))
        guesses = _logits((test - center) / scale, weights).argmax(1)
        accuracy = float((guesses == truth).mean())
        stderr = math.sqrt(accuracy * (1 - accuracy) / len(truth))
        return {"mask": mask, "accuracy": accuracy, "accuracy_stderr": stderr}

    def _features(self, params: dict, mask: str, sequences: list[list[int]]) -> np.ndarray:
        """Returns the mean hidden state of each text, [N, D]."""
        graph = self._subject.graph
        cut = [sequence[: self._limit] for sequence in sequences]
        order = sorted(range(len(cut)), key=lambda i: -len(cut[i]))
        running = [
            jax.tree.map(lambda x, n=n: x[:n], _pool(graph, mask == "causal", params, *batch))
            for n, *batch in _batches([cut[i] for i in order], self._limit)
        ]
        features = np.concatenate(jax.device_get(running))
        return features[np.argsort(order)].astype(np.float64)


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
    chosen = [spread(len(file.labels), most) for file in files]
    train, test = (
        Labelled([file.labels[i] for i in kept], [file.texts[i] for i in kept])
        for file, kept in zip(files, chosen, strict=True)
    )
    if len(set(train.labels)) < 2:
        raise InputError(f"{names[0]}: all labels are {train.labels[0]!r}, expected several")
    for label in test.labels:
        if label not in train.labels:
            raise InputError(f"{names[1]}: label {label!r} is not in {names[0]}")
    return train, test


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


def encode(tokenizer: Tokenizer, texts: list[tuple[str, ...]]) -> list[list[int]]:
    """Returns `<bos> a <eos>` or `<bos> a <sep> b <eos>` of each."""
    bos, sep, eos = (getattr(tokenizer.specials, name) for name in ("bos", "sep", "eos"))
    sides = [tokenizer.encode_batch(side) for side in zip(*texts, strict=True)]
    found = []
    for first, *second in zip(*sides, strict=True):
        found.append([bos, *first, *(token for ids in second for token in (sep, *ids)), eos])
    return found


def fit_logistic(x: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """Returns the weights [D + 1, classes] of logistic regression, the bias last.

    Minimizes the summed cross-entropy plus half the squared weights (bias excluded), which has
    one minimum; found by L-BFGS.

    Args:
      x: features, [N, D].
      y: class of each, [N].
      classes: how many there are.
    """
    one_hot = np.eye(classes)[y]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(-1, classes)
        logits = _logits(x, weights)
        log_probs = logits - logsumexp(logits, axis=1, keepdims=True)
        error = np.exp(log_probs) - one_hot
        gradient = np.vstack([x.T @ error + weights[:-1], error.sum(0)])
        loss = -(log_probs * one_hot).sum() + (weights[:-1] ** 2).sum() / 2
        return loss, gradient.ravel()

    start = np.zeros((x.shape[1] + 1) * classes)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return found.x.reshape(-1, classes)


def _logits(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return x @ weights[:-1] + weights[-1]


def _batches(
    sequences: list[list[int]], limit: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields how many texts a batch holds, their ids and their lengths; the longest come first."""
    while sequences:
        width = width_of(len(sequences[0]), limit)
        chosen, sequences = sequences[: rows_of(width)], sequences[rows_of(width) :]
        rows = fit(len(chosen), rows_of(width))
        ids, lengths = np.zeros((rows, width), np.int32), np.zeros(rows, np.int32)
        for row, sequence in enumerate(chosen):
            ids[row, : len(sequence)], lengths[row] = sequence, len(sequence)
        yield len(chosen), ids, lengths


@partial(jax.jit, static_argnums=(0, 1))
def _pool(
    graph: nnx.GraphDef, causal: bool, params: dict, ids: Int[Array, "B T"], lengths: Array
) -> Float[Array, "B D"]:
    """Returns the mean hidden state of each row's real tokens."""
    real = jnp.arange(ids.shape[1])[None, :] < lengths[:, None]
    tokens = Tokens.of(ids, real)
    tokens = tokens.causal() if causal else tokens.bidirectional()
    hidden = nnx.merge(graph, params)(tokens).astype(jnp.float32)
    total = jnp.sum(jnp.where(real[:, :, None], hidden, 0), axis=1)
    return total / jnp.maximum(lengths, 1)[:, None]
