"""Exact match, BLEU, chrF and TER of translations, greedy or by beam search."""

import json
from typing import Any

from flax import nnx
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.bleu import BLEUScore

from attn_jax.data.batches import spread
from attn_jax.data.sources.source import digest
from attn_jax.decoding.beam import Beam
from attn_jax.decoding.text import Search, Writer, make_search
from attn_jax.evaluation.evaluator import Evaluator, Subject

NUM_SAMPLES = 8  # translations shown in the report
RESAMPLES = 1000  # of the sentences, for the interval of BLEU


class TranslationQuality(Evaluator):
    """Translates held-out sentences and scores them against the references.

    Copying the source is scored beside it: between similar languages that is not zero.
    """

    kinds = ("pair",)

    def __init__(self, subject: Subject):
        self._subject = subject
        config = subject.config
        # All of them, also those that are too long to be trained on.
        texts = subject.dataset.texts(config.eval.split)
        pairs = [texts[int(i)] for i in spread(len(texts), config.eval.max_items)]
        self._sources = [source for source, _ in pairs]
        whole = subject.dataset.tokenizer.whole
        self._references = [whole(reference) for _, reference in pairs]
        self._fingerprint = digest(*map(whole, self._sources), *self._references)

    def run(self, params: dict) -> dict[str, Any]:
        """Returns scores in per cent (exact match) and points (BLEU, chrF, TER), and samples.

        `bleu` and `chrf` are of the text as it is read; `bleu_tokenized` is of lower-cased words
        between spaces, for files that are tokenized already.
        """
        subject = self._subject
        model = nnx.merge(subject.graph, params)
        length, tokenizer = subject.config.data.length, subject.dataset.tokenizer
        e = subject.config.eval
        search = make_search(e.beam_size, e.length_penalty, e.early_stopping)
        writer = Writer(model, subject.objective, tokenizer, length, search)
        hypotheses = writer.write_texts(self._sources)
        cut = sum(writer.cut(ids) != ids for ids in map(writer.read, self._sources))
        copies = [tokenizer.whole(source) for source in self._sources]
        copied = {f"copy_{name}": value for name, value in self._scores(copies).items()}
        return {
            "split": subject.config.eval.split,
            "items": len(hypotheses),
            "fingerprint": self._fingerprint,
            "cut": cut,
            "decoding": _name(search),
            **self._scores(hypotheses),
            **self._details(hypotheses),
            **copied,
            "per_item": self._per_sentence(hypotheses),
            "samples": [
                {"source": s, "reference": r, "hypothesis": h}
                for s, r, h in list(zip(self._sources, self._references, hypotheses, strict=True))[
                    :: max(len(hypotheses) // NUM_SAMPLES, 1)
                ][:NUM_SAMPLES]
            ],
        }

    def _details(self, hypotheses: list[str]) -> dict[str, Any]:
        metrics = {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}
        # force: sacrebleu takes tokenized text for a mistake.
        metrics["bleu_tokenized"] = BLEU(lowercase=True, tokenize="none", force=True)
        found = {
            name: metric.corpus_score(hypotheses, [self._references])
            for name, metric in metrics.items()
        }
        return {
            "ter": found["ter"].score,
            "bleu_tokenized": found["bleu_tokenized"].score,
            "bleu_interval": self._interval(hypotheses),
            **{f"{name}_details": _explain(found[name]) for name in ("bleu", "bleu_tokenized")},
            **{f"{name}_signature": str(metrics[name].get_signature()) for name in metrics},
        }

    def _interval(self, hypotheses: list[str]) -> list[float]:
        """Returns sacrebleu's 95 % interval of BLEU over sentences (Koehn 2004).

        The mean of the resamples, and half the width of their percentiles to either side.
        """
        bleu = BLEU()
        score = bleu.corpus_score(hypotheses, [self._references], n_bootstrap=RESAMPLES)
        found = json.loads(score.format(signature=str(bleu.get_signature()), is_json=True))
        # sacrebleu leaves them out where all resamples score 0.
        mean, margin = (found.get(f"confidence_{name}", 0.0) for name in ("mean", "var"))
        return [mean - margin, mean + margin]

    def _per_sentence(self, hypotheses: list[str]) -> dict[str, list]:
        """Returns what sums to exact match (0 or 100) and to BLEU: lengths, matches, n-grams."""
        bleu = BLEU(effective_order=True)  # else it warns that a sentence's own BLEU means little
        pairs = list(zip(hypotheses, self._references, strict=True))
        found = [bleu.sentence_score(h, [r]) for h, r in pairs]
        return {
            "exact_match": [100 * (h == r) for h, r in pairs],
            "bleu": [[x.sys_len, x.ref_len, *x.counts, *x.totals] for x in found],
        }

    def _scores(self, hypotheses: list[str]) -> dict[str, float]:
        same = [h == r for h, r in zip(hypotheses, self._references, strict=True)]
        return {
            "exact_match": 100 * sum(same) / len(same),
            "bleu": BLEU().corpus_score(hypotheses, [self._references]).score,
            "chrf": CHRF().corpus_score(hypotheses, [self._references]).score,
        }


def _name(search: Search) -> str:
    if not isinstance(search, Beam):
        return "greedy"
    stops = ", early stopping" if search.early_stopping else ""
    return f"beam {search.size}, length penalty {search.length_penalty:g}{stops}"


def _explain(bleu: BLEUScore) -> dict[str, Any]:
    """Returns what a BLEU score is made of: precisions of 1- to 4-grams in per cent, lengths."""
    return {
        "precisions": list(bleu.precisions),
        "brevity_penalty": bleu.bp,
        "length": bleu.sys_len,
        "reference_length": bleu.ref_len,
    }
