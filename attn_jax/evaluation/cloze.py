"""Cloze: the last word of a text, asked from all that is before it."""

import math
from typing import Any

import numpy as np

from attn_jax.data.batches import spread
from attn_jax.data.sources.files import read_text
from attn_jax.data.sources.source import digest
from attn_jax.errors import InputError
from attn_jax.evaluation.evaluator import Evaluator, Subject
from attn_jax.evaluation.item_files import json_lines, open_path, text_of
from attn_jax.evaluation.methods import METHODS
from attn_jax.evaluation.scorers import Scorer
from attn_jax.evaluation.scoring import make_scorers

FIELD = "eval.cloze"
FIT = ("causal", "pll_within_word", "pll_whole_word", "pll_global", "prefix")


class Cloze(Evaluator):
    """How well the last word of a text is predicted, as in LAMBADA (Paperno et al. 2016).

    A word is right if each of its tokens is strictly the likeliest at its place. The methods must
    hide the whole word, so a model's own is "pll_whole_word" where it is "pll" elsewhere; then the
    model is told how many tokens the word has, which left to right it is not.
    """

    kinds = ("text",)

    def __init__(self, subject: Subject):
        """Reads at most `eval.max_items` texts of `eval.cloze`.

        Raises:
          InputError: the file is wrong, or a method of `eval.scoring` does not fit.
        """
        config = subject.config.eval
        spans = subject.objective.shift is None
        self._scorers = make_scorers(subject, {"pll": "prefix" if spans else "pll_whole_word"})
        for scorer in self._scorers:
            if scorer.method not in FIT:
                raise InputError(
                    f"eval.scoring = {config.scoring!r}: cloze needs the probability of a word "
                    f"that is hidden whole; expected one of own, {', '.join(FIT)}"
                )
        texts = read_texts(config.cloze)
        texts = [texts[i] for i in spread(len(texts), config.max_items)]
        self._fingerprint = digest(*texts)
        read = self._scorers[0].read  # all methods read a text alike
        items = [read(context, word) for context, word in texts]
        # Of a context that is too long the oldest tokens are left out.
        self._items = [self._scorers[0].cut(item) for item in items]
        self._num_cut = sum(a != b for a, b in zip(items, self._items, strict=True))

    def run(self, params: dict) -> dict[str, Any]:
        """Returns accuracy, mean log-probability of a word in nats, and perplexity, by method."""
        return {
            "items": len(self._items),
            "fingerprint": self._fingerprint,
            "cut": self._num_cut,
            "methods": [scorer.method for scorer in self._scorers],
            **{scorer.method: self._measure(scorer, params) for scorer in self._scorers},
        }

    def _measure(self, scorer: Scorer, params: dict) -> dict[str, Any]:
        found = scorer.score(params, self._items)
        right = np.array([scores.correct.all() for scores in found], float)
        log_prob = float(np.mean([scores.total for scores in found]))
        pseudo = "pseudo_" if METHODS[scorer.method] == "bidirectional" else ""
        return {
            "mask": METHODS[scorer.method],
            "accuracy": float(right.mean()),
            "accuracy_stderr": float(right.std() / math.sqrt(len(right))),
            "log_prob": log_prob,
            f"{pseudo}perplexity": math.exp(min(-log_prob, 700)),
        }


def read_texts(path: str) -> list[tuple[str, str]]:
    """Reads `(context, last word)` of each text.

    Args:
      path: a .jsonl file whose lines have a `text`; any other file has one a line.

    Raises:
      InputError: a line is wrong, or has only one word.
    """
    file = open_path(FIELD, path)
    if file.suffix == ".jsonl":
        texts = [(where, text_of(where, item, "text")) for where, item in json_lines(FIELD, path)]
    else:
        lines = enumerate(read_text(file).split("\n"), 1)
        texts = [(f"{file}:{number}", line.strip()) for number, line in lines if line.strip()]
    found = []
    for where, text in texts:
        context, *word = text.rsplit(maxsplit=1)
        if not word:
            raise InputError(f"{where}: {text[:40]!r}: expected at least two words")
        found.append((context, *word))
    if not found:
        raise InputError(f"{FIELD} = {path!r}: holds no texts")
    return found
