"""Scores line by line: a number for each, or each token with its log-probability."""

import json
from collections.abc import Iterator
from textwrap import shorten

from attn_jax.data.tokenizers import Tokenizer
from attn_jax.devices import replicate
from attn_jax.errors import InputError
from attn_jax.evaluation.scorers import Item, Scorer, TextScorer


class LineScorer:
    """Turns lines into scores: texts, or `source<TAB>target` if the method is "prefix".

    One stack on text takes both then: of a text alone the source is empty.
    """

    def __init__(self, scorer: Scorer, params: dict, tokenizer: Tokenizer, per_token: bool = False):
        """Keeps what all lines have in common.

        Args:
          scorer: of the method.
          params: of the model.
          tokenizer: of the run.
          per_token: write a JSON object a line, with `pieces` and `log_probs` beside the `score`.
        """
        self._scorer, self._tokenizer, self._per_token = scorer, tokenizer, per_token
        self._params = replicate(params)

    @property
    def limit(self) -> int:
        """The greatest length that the scorer takes."""
        return self._scorer.limit

    def length(self, item: Item) -> int:
        """Returns how long a line is to the scorer."""
        return self._scorer.length(item)

    def cut(self, item: Item) -> Item:
        """Cuts a line down to the limit."""
        return self._scorer.cut(item)

    def check(self, text: str) -> None:
        """Raises InputError for a line that is not what the method scores."""
        _, tab, target = text.partition("\t")
        one_stack = isinstance(self._scorer, TextScorer)
        if self._scorer.method != "prefix" or (one_stack and not tab):
            return
        if not target.strip() or "\t" in target:
            form = "source<TAB>target" + (", or a text" if one_stack else "")
            raise InputError(f"{shorten(text, 40)!r}: expected {form} with method = 'prefix'")

    def read(self, text: str) -> Item:
        """Returns the ids of a line."""
        pair = self._scorer.method == "prefix" and "\t" in text
        source, _, target = text.partition("\t") if pair else ("", "", text)
        return self._scorer.read(source, target)

    def write(self, items: dict[int, Item]) -> Iterator[tuple[int, str]]:
        """Yields `(number, score in nats)` of each line, maybe with its tokens."""
        scores = self._scorer.score(self._params, list(items.values()))
        for (number, item), found in zip(items.items(), scores, strict=True):
            if not self._per_token:
                yield number, f"{found.total:.6f}"
                continue
            pieces = [self._tokenizer.piece(token) for token in self._scorer.predicted(item)]
            told = {"score": found.total, "pieces": pieces, "log_probs": found.log_probs.tolist()}
            yield number, json.dumps(told)
