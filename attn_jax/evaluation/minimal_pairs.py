"""Minimal pairs: is the acceptable sentence more probable than the unacceptable one?"""

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attn_jax.data.batches import spread
from attn_jax.data.sources.source import digest
from attn_jax.errors import InputError
from attn_jax.evaluation.evaluator import Evaluator, Subject
from attn_jax.evaluation.item_files import json_lines, text_of
from attn_jax.evaluation.methods import METHODS
from attn_jax.evaluation.scorers import Item, Scores
from attn_jax.evaluation.scoring import make_scorers, score_under_all

FIELD = "eval.minimal_pairs"


@dataclass(frozen=True)
class Paradigm:
    """Pairs (good, bad) that show one thing, of a phenomenon, of a field of linguistics."""

    name: str
    phenomenon: str
    field: str
    pairs: list[tuple[str, str]]


class MinimalPairs(Evaluator):
    """Accuracy on minimal pairs in BLiMP's format (Warstadt et al. 2020), method by method.

    Equal scores are wrong: a model without an opinion must not look perfect.
    """

    kinds = ("text",)

    def __init__(self, subject: Subject):
        """Reads the pairs of `eval.minimal_pairs`, at most `eval.max_items` of a paradigm.

        Raises:
          InputError: a file or a sentence is wrong, or a method of `eval.scoring` does not fit.
        """
        config = subject.config.eval
        self._scorers = make_scorers(subject)
        self._paradigms = read_paradigms(config.minimal_pairs, config.max_items)
        texts = [text for paradigm in self._paradigms for pair in paradigm.pairs for text in pair]
        # Of the paradigms too: accuracy is a mean over them.
        self._fingerprint = digest(
            *((paradigm.name, paradigm.pairs) for paradigm in self._paradigms)
        )
        # Of one stack, so that all methods read a text alike.
        encoded = zip(texts, subject.dataset.tokenizer.encode_batch(texts), strict=True)
        self._items = {text: Item((), tuple(ids)) for text, ids in encoded}
        self._refuse_long()

    def run(self, params: dict) -> dict[str, Any]:
        """Returns `{method: accuracies}`, shares of 1, and the number of pairs."""
        found = score_under_all(self._scorers, params, list(self._items.values()))
        return {
            "items": sum(len(paradigm.pairs) for paradigm in self._paradigms),
            "fingerprint": self._fingerprint,
            "methods": [scorer.method for scorer in self._scorers],
            **{method: self._accuracies(method, scores) for method, scores in found.items()},
        }

    def curve(self, params: dict) -> dict[str, Any]:
        """Returns the mean accuracy of each method."""
        found = self.run(params)
        return {method: {"accuracy": found[method]["accuracy"]} for method in found["methods"]}

    def _accuracies(self, method: str, scores: list[Scores]) -> dict[str, Any]:
        totals = {text: x.total for text, x in zip(self._items, scores, strict=True)}
        # By how many nats the good sentence of each pair scores higher.
        margins = [
            np.array([totals[good] - totals[bad] for good, bad in paradigm.pairs])
            for paradigm in self._paradigms
        ]
        accuracy = np.array([(margin > 0).mean() for margin in margins])
        variance = accuracy * (1 - accuracy) / [len(margin) for margin in margins]
        return {
            "mask": METHODS[method],
            "accuracy": float(accuracy.mean()),
            "accuracy_stderr": math.sqrt(variance.sum()) / len(accuracy),
            "ties": sum(int((margin == 0).sum()) for margin in margins),
            "fields": self._means("field", accuracy),
            "phenomena": self._means("phenomenon", accuracy),
            "paradigms": self._means("name", accuracy),
        }

    def _means(self, kind: str, accuracy: np.ndarray) -> dict[str, float]:
        """Returns the mean over the paradigms of each phenomenon, or field."""
        groups = defaultdict(list)
        for paradigm, value in zip(self._paradigms, accuracy, strict=True):
            if getattr(paradigm, kind):  # not every file tells
                groups[getattr(paradigm, kind)].append(float(value))
        return {name: float(np.mean(values)) for name, values in sorted(groups.items())}

    def _refuse_long(self) -> None:
        scorer = self._scorers[0]
        for text, item in self._items.items():
            if scorer.length(item) > scorer.limit:
                raise InputError(
                    f"{FIELD}: {text[:40]!r}..: {scorer.length(item)} tokens, and the model reads "
                    f"{scorer.limit}"
                )


def read_paradigms(path: str, most: int = 0) -> list[Paradigm]:
    """Reads minimal pairs, grouped by their UID and sorted by it.

    Args:
      path: a .jsonl file, or a folder or a .zip of them. Each line has `sentence_good` and
        `sentence_bad`, and may have `UID` (else the file's name without ".jsonl" counts),
        `linguistics_term` and `field`.
      most: pairs of a paradigm that are kept, drawn evenly and always the same; 0 means all.

    Raises:
      InputError: a line is wrong.
    """
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    about: dict[str, tuple[str, str]] = {}
    for where, item in json_lines(FIELD, path):
        file = Path(where).name.rpartition(":")[0]  # without the number of the line
        name = str(item.get("UID") or file.removesuffix(".jsonl"))
        told = (item.get(key) or "" for key in ("linguistics_term", "field"))
        about.setdefault(name, tuple(map(str, told)))
        pair = tuple(text_of(where, item, f"sentence_{side}") for side in ("good", "bad"))
        groups[name].append(pair)
    if not groups:
        raise InputError(f"{FIELD} = {path!r}: holds no pairs")
    chosen = {name: spread(len(pairs), most) for name, pairs in groups.items()}
    return [
        Paradigm(name, *about[name], [groups[name][i] for i in chosen[name]])
        for name in sorted(groups)
    ]
