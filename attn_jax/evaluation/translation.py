"""Exact match, BLEU and chrF of translations, greedy or by beam search."""

from typing import Any

import numpy as np
from flax import nnx
from sacrebleu.metrics import BLEU, CHRF

from attn_jax.decoding.beam import Beam
from attn_jax.decoding.sampling import GREEDY
from attn_jax.decoding.text import generate_texts
from attn_jax.evaluation.evaluator import Evaluator, Subject

NUM_SAMPLES = 8  # translations shown in the report


class TranslationQuality(Evaluator):
    """Translates held-out sentences and scores them against the references.

    Copying the source is scored beside it: between similar languages that is not zero.
    """

    kinds = ("pair",)

    def __init__(self, subject: Subject):
        self._subject = subject
        config = subject.config
        found = subject.dataset.eval_batches(config.eval.split, config.eval.max_items)
        items = np.concatenate([items for items, _ in found])
        texts = subject.dataset.texts(config.eval.split)
        pairs = [texts[int(i)] for i in sorted(items[items >= 0])]
        self._sources, self._references = map(list, zip(*pairs, strict=True))

    def run(self, params: dict) -> dict[str, Any]:
        """Returns scores in per cent (exact match) and points (BLEU, chrF), and samples."""
        subject = self._subject
        model = nnx.merge(subject.graph, params)
        length, tokenizer = subject.config.data.length, subject.dataset.tokenizer
        beam, penalty = subject.config.eval.beam_size, subject.config.eval.length_penalty
        search = Beam(beam, penalty) if beam > 1 else GREEDY
        args = (subject.objective, tokenizer, self._sources, length, search)
        found = dict(generate_texts(model, *args))
        hypotheses = [found[i] for i in range(len(self._sources))]
        copied = {f"copy_{name}": value for name, value in self._scores(self._sources).items()}
        bleu, chrf = BLEU(), CHRF()
        bleu.corpus_score(hypotheses, [self._references])
        chrf.corpus_score(hypotheses, [self._references])
        return {
            "split": subject.config.eval.split,
            "items": len(hypotheses),
            "decoding": f"beam {beam}, length penalty {penalty:g}" if beam > 1 else "greedy",
            **self._scores(hypotheses),
            **copied,
            "bleu_signature": str(bleu.get_signature()),
            "chrf_signature": str(chrf.get_signature()),
            "samples": [
                {"source": s, "reference": r, "hypothesis": h}
                for s, r, h in list(zip(self._sources, self._references, hypotheses, strict=True))[
                    :: max(len(hypotheses) // NUM_SAMPLES, 1)
                ][:NUM_SAMPLES]
            ],
        }

    def _scores(self, hypotheses: list[str]) -> dict[str, float]:
        same = [h == r for h, r in zip(hypotheses, self._references, strict=True)]
        return {
            "exact_match": 100 * sum(same) / len(same),
            "bleu": BLEU().corpus_score(hypotheses, [self._references]).score,
            "chrf": CHRF().corpus_score(hypotheses, [self._references]).score,
        }
