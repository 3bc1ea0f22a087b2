"""Numbers as readers see them, and a study's findings in sentences computed from its numbers."""

from attn_jax.comparison.metrics import OWN_BITS, metric_of
from attn_jax.comparison.runs import Json, Number

VIEWS = {  # a mask, as what the predicted token sees
    "causal": "left side only",
    "prefix": "left side, read both ways",
    "bidirectional": "both sides",
}

_READING = {
    "causal": "reading only the left side",
    "prefix": "reading the left side both ways",
    "bidirectional": "with both sides in view",
}


def number(value: Number, digits: int = 0) -> str:
    """Returns e.g. "1,234.50" or "−0.20", with a true minus sign."""
    text = f"{value:,.{digits}f}"
    return text.replace("-", "−") if float(text.replace(",", "")) else text.lstrip("-")


def spread(summary: Json, digits: int) -> str:
    """Returns the mean over seeds, with ± the standard deviation where there are several."""
    mean = number(summary["mean"], digits)
    return mean if summary["sd"] is None else f"{mean} ± {number(summary['sd'], digits)}"


def interval(summary: Json, digits: int) -> str:
    """Returns "low to high", or a dash for one seed."""
    if summary["low"] is None:
        return "–"
    return f"{number(summary['low'], digits)} to {number(summary['high'], digits)}"


def p_value(p: float | None) -> str:
    """Returns e.g. "0.004", "< 0.001", or a dash for no test."""
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def p_text(p: float) -> str:
    """Returns e.g. "p = 0.004"."""
    return f"p {p_value(p)}" if p < 0.001 else f"p = {p_value(p)}"


def findings(study: Json) -> list[str]:
    """Says in a few sentences what the numbers of a collected study show, and what they do not."""
    found = [
        _own_bits(study),
        _claim(study, OWN_BITS),
        *(overtake(pair) for pair in _both_sides_against_left(study)),
        _swapped_masks(study),
        _translations(study),
        _claim(study, "translation/exact_match"),
        _claim(study, "translation/bleu"),
        _losses(study),
        _matching(study),
    ]
    return [sentence for sentence in found if sentence]


def notes(study: Json) -> list[str]:
    """Says which numbers one would look for and not find."""
    lost = [
        f"{metric_of(x['metric']).words}: {x['diverged']} of {x['seeds']} seeds of the {x['arm']} "
        "diverged, so it has no number"
        for x in study["diverged"]
    ]
    absent = [
        f"no two arms have a number for {name}, one of the study's margins, so none is compared"
        for name in study["not_compared"]
    ]
    return [_sentence(text) for text in (*lost, *absent)]


def equal(study: Json) -> str:
    """Says in what the arms are equal beside what is declared, as far as it was checked."""
    declared = {name.split(".")[0] for name in study["declared"]}
    tuned = list((study.get("sweep") or {}).get("fields", ()))
    but = f" but for those that they were tuned in ({', '.join(tuned)})" if tuned else ""
    fields = f"in every other field of their configs{but}"
    shared = [f"in their {name}" for name in ("data", "tokenizer") if name not in declared]
    return (
        f"The arms are equal {_listed([fields, *shared])}; this is checked before and after "
        "training."
    )


def overtake(pair: Json) -> str:
    """Says when, in the mean over seeds, the arm with the wider view got ahead of the other."""
    wide, fewer = pair["wide"], f"fewer bits than the {pair['narrow']}"
    if pair["step"] is None:
        return f"At no evaluated step does the {wide} need {fewer}."
    return f"The {wide} first needs {fewer} at step {pair['step']:,}."


def overtakes(study: Json) -> list[str]:
    """Says when arms with a wider view got ahead of those with a narrower one."""
    ahead = [pair for pair in study["overtakes"] if pair["step"] is not None]
    if study["overtakes"] and not ahead:
        return ["At no evaluated step does an arm with a wider view need fewer bits."]
    return [overtake(pair) for pair in ahead]


def _both_sides_against_left(study: Json) -> list[Json]:
    """Returns the overtakes of a left view by one of both sides, where seeds tell them apart."""
    views = {arm: masks["own_mask"] for arm, masks in study["masks"].items()}
    told_apart = [
        {x["a"], x["b"]}
        for x in study["differences"]
        if x["metric"] == OWN_BITS and x["outcome"] == "ahead"
    ]
    return [
        x
        for x in study["overtakes"]
        if (views[x["wide"]], views[x["narrow"]]) == ("bidirectional", "causal")
        and {x["wide"], x["narrow"]} in told_apart
    ]


def _own_bits(study: Json) -> str:
    parts = []
    for arm, masks in study["masks"].items():
        bits = number(study["metrics"][arm][OWN_BITS]["mean"], 2)
        parts.append(f"{_READING[masks['own_mask']]} the {arm} needs {bits}")
    if not parts:
        return ""
    parts[0] += " bits per held-out token"
    return _sentence("; ".join([*parts, *_counted(study["baselines"])]))


def _counted(baselines: Json) -> list[str]:
    return [
        f"a {name} model needs {number(baselines[f'{name}_bits'], 2)}"
        for name in ("trigram", "unigram")
        if f"{name}_bits" in baselines
    ]


def _swapped_masks(study: Json) -> str:
    other = {"causal": "bidirectional", "bidirectional": "causal"}
    parts = [
        f"the {arm} {number(masks[mask]['mean'], 2)} ({VIEWS[mask]})"
        for arm, masks in study["masks"].items()
        if (mask := other.get(masks["own_mask"])) in masks
    ]
    return f"Under the opposite mask the bits are: {_listed(parts)}." if parts else ""


def _translations(study: Json) -> str:
    parts = [
        f"{spread(own['translation/exact_match'], 1)} % for the {arm} "
        f"(BLEU {spread(own['translation/bleu'], 1)})"
        for arm, own in study["metrics"].items()
        if "translation/exact_match" in own
    ]
    if not parts:
        return ""
    copied = study["baselines"].get("copy_bleu")
    copying = "" if copied is None else f"; copying the source would score BLEU {number(copied, 1)}"
    return _sentence(f"the share of sentences translated exactly is {_listed(parts)}{copying}")


def _claim(study: Json, name: str) -> str:
    """Compares the best arm with the next best."""
    means = {arm: own[name]["mean"] for arm, own in study["metrics"].items() if name in own}
    rows = {frozenset((x["a"], x["b"])): x for x in study["differences"] if x["metric"] == name}
    higher = metric_of(name).higher_is_better
    best, second = (*sorted(means, key=means.__getitem__, reverse=higher), None, None)[:2]
    row = rows.get(frozenset((best, second)))
    if row is None:
        return ""
    if row["n"] == 1:
        words = metric_of(name).words
        ahead = f"the {best} is ahead of the {second} in {words}"
        return f"That is one seed, no claim: {ahead}{_caveat(study, row)}."
    return _sentence(f"{metric_of(name).words}: {row['verdict']}{_caveat(study, row)}")


def _caveat(study: Json, row: Json) -> str:
    """Only of bits, where one of two arms is told more than the other."""
    if row["metric"] != OWN_BITS:
        return ""
    a, b = (study["masks"][row[x]]["own_mask"] == "bidirectional" for x in "ab")
    told = "; one of them sees both sides, so fewer bits do not make a better model of the text"
    return told if a != b else ""


def _losses(study: Json) -> str:
    """Only for a study that measures nothing else."""
    if study["differences"] or study["masks"]:
        return ""
    losses = {arm: own.get("loss/loss") for arm, own in study["metrics"].items()}
    parts = [f"{number(loss['mean'], 3)} for the {arm}" for arm, loss in losses.items() if loss]
    return f"The loss in nats, of each arm's own objective, is {_listed(parts)}." if parts else ""


def _matching(study: Json) -> str:
    if len(study["arms"]) < 2:
        return ""
    matched = f"matched in {_listed(study['matched'])}" if study["matched"] else ""
    differ = f"not in {_listed(study['differ'])}" if study["differ"] else ""
    return _sentence(f"the arms are {', '.join(part for part in (matched, differ) if part)}")


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
