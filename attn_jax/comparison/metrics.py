"""What the metrics of a comparison are called, how they are printed, and which way is better."""

from fnmatch import fnmatchcase
from typing import NamedTuple

from attn_jax.evaluation.methods import METHODS

OWN_BITS = "shared_positions/own_bits"


class Metric(NamedTuple):
    """How one metric is printed and read."""

    words: str  # heading of its column
    digits: int  # after the decimal point
    unit: str  # of a difference
    higher_is_better: bool = True


METRICS = {  # the columns of the key table, in order; a "*" stands for any name
    OWN_BITS: Metric("bits per token, own view", 2, "bits", False),
    "translation/exact_match": Metric("exact match, %", 1, "points"),
    "translation/bleu": Metric("BLEU", 1, "BLEU"),
    "translation/bleu_tokenized": Metric("BLEU, tokenized", 1, "tokenized BLEU"),
    "translation/chrf": Metric("chrF", 1, "chrF"),
    "minimal_pairs/*/accuracy": Metric("minimal pairs, *", 3, "accuracy"),
    "cloze/*/accuracy": Metric("cloze, *", 3, "accuracy"),
    "probe/*/accuracy": Metric("probe, *", 3, "accuracy"),
    "fine_tuning/*/accuracy": Metric("fine-tuning, *", 3, "accuracy"),
    "loss/loss": Metric("loss, nats", 3, "nats", False),
    "loss/perplexity": Metric("perplexity", 2, "perplexity", False),
    "loss/pseudo_perplexity": Metric("pseudo-perplexity", 2, "pseudo-perplexity", False),
}

_PARTS = {  # what the "*" of an evaluator's metrics may be
    "minimal_pairs": tuple(METHODS),
    "cloze": tuple(METHODS),
    "probe": ("causal", "bidirectional"),
    "fine_tuning": ("causal", "bidirectional"),
}
NAMES = tuple(  # every metric that there may be
    pattern.replace("*", part)
    for pattern in METRICS
    for part in _PARTS.get(pattern.partition("/")[0], ("",))
)

# In which metrics arms are compared, and the difference that does not matter: small beside what
# papers report, a convention and nothing more. A study may set its own.
MARGINS = {
    OWN_BITS: 0.02,
    "translation/exact_match": 1.0,
    "translation/bleu": 0.5,
    "translation/chrf": 0.5,
    "minimal_pairs/*/accuracy": 0.01,
    "cloze/*/accuracy": 0.01,
    "probe/*/accuracy": 0.01,
    "fine_tuning/*/accuracy": 0.01,
}


def pattern_of(name: str) -> str | None:
    """Returns the key of METRICS that covers a metric, or None."""
    return next((pattern for pattern in METRICS if fnmatchcase(name, pattern)), None)


def is_known(pattern: str) -> bool:
    """Tells whether a name, or a pattern of names, covers a metric that there may be."""
    return pattern_of(pattern) is not None and bool(matching(pattern, list(NAMES)))


def metric_of(name: str) -> Metric:
    """Returns how a metric is printed; its name must have a pattern."""
    pattern = pattern_of(name)
    head, _, tail = pattern.partition("*")
    found = METRICS[pattern]
    inner = name[len(head) : len(name) - len(tail)]
    return found._replace(words=found.words.replace("*", inner.replace("_", " ")))


def matching(pattern: str, names: list[str]) -> list[str]:
    """Returns the names that a pattern covers."""
    return [name for name in names if fnmatchcase(name, pattern)]
