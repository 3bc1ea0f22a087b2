"""Renders collected studies as one self-contained HTML page."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from attn_jax.comparison import figures, sensitivity, wording
from attn_jax.comparison.budgets import BUDGETS
from attn_jax.comparison.metrics import METRICS, OWN_BITS, matching, metric_of
from attn_jax.comparison.runs import Json, Number
from attn_jax.evaluation.results import MASKS
from attn_jax.files import write_whole


def write_report(path: Path, studies: dict[str, Json]) -> None:
    """Writes the report of one or several studies; nothing is fetched from elsewhere.

    Args:
      path: the HTML file; written whole or not at all.
      studies: name -> what `collect` returned.
    """
    palette = figures.colors([arm for study in studies.values() for arm in study["arms"]])
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": wording.number,
        "spread": wording.spread,
        "interval": wording.interval,
        "p_value": wording.p_value,
    }
    template = environment.from_string(_read("report.html.j2"))
    html = template.render(
        studies=[_view(name, study, palette) for name, study in studies.items()],
        style=Markup(_read("report.css")),  # our own files, not data
        script=Markup(_read("report.js")),
        palette=palette,
        metric=metric_of,
        views=wording.VIEWS,
        masks=MASKS,
        budgets=BUDGETS,
    )
    write_whole(path, html)


def _read(name: str) -> str:
    return files("attn_jax.comparison").joinpath(name).read_text(encoding="utf-8")


def _view(name: str, study: Json, palette: dict[str, str]) -> Json:
    """What the template shows of one study beside its numbers."""
    columns = _columns(study)
    return study | {
        "key": name,
        "findings": wording.findings(study),
        "notes": wording.notes(study),
        "equal": wording.equal(study),
        "compares_losses": any(x["metric"].startswith("loss/") for x in study["differences"]),
        "overtaken": wording.overtakes(study),
        "columns": columns,
        "verdicts": _verdicts(study["differences"]),
        "curves": _curves(study, palette),
        "against": _against_budgets(study, columns, palette),
        "phenomena": _phenomena(study["metrics"], palette),
        "shades": _shades(study["masks"]),
        "shown": _shown_masks(study["masks"]),
        "attention": _attention(study["examples"]["attention"]),
        "machine": _machine(study["provenance"]),
        "sweep": sensitivity.view(study.get("sweep"), palette),
    }


def _columns(study: Json) -> list[str]:
    measured = list(dict.fromkeys(name for own in study["metrics"].values() for name in own))
    return [name for pattern in METRICS for name in matching(pattern, measured)]


def _verdicts(differences: list[Json]) -> dict[str, list[Json]]:
    """Returns the comparisons of several seeds by metric."""
    found: dict[str, list[Json]] = {}
    for row in differences:
        if row["n"] > 1:
            found.setdefault(row["metric"], []).append(row)
    return found


def _against_budgets(study: Json, columns: list[str], palette: dict[str, str]) -> list[Json]:
    """Returns one figure a budget: the first metric that arms can be compared in, against it."""
    names = [name for name in columns if not name.startswith("loss/")]
    if not names:
        return []
    name, label = names[0], metric_of(names[0]).words
    ends = {arm: own[name] for arm, own in study["metrics"].items() if name in own}
    logged = study["curves"]["evaluation"].get(name, {})
    found = []
    for budget in ("parameters", "training_flops", "tokens_seen", "loss_bearing_tokens"):
        spent = {arm: own[budget]["mean"] for arm, own in study["budgets"].items()}
        by_arm = {
            # Parameters are not spent step by step.
            arm: _spent(spent[arm], end, None if budget == "parameters" else logged.get(arm))
            for arm, end in ends.items()
        }
        svg = figures.curves(by_arm, palette, label, against=BUDGETS[budget])
        found.append({"title": f"Against {BUDGETS[budget]}", "svg": Markup(svg)})
    return found


def _spent(total: Number, end: Json, curve: Json | None) -> figures.Curve:
    """Returns the curve of one arm over what it had spent at each step, else its end point."""
    if not curve or len(curve["steps"]) < 2:
        return {"steps": [total], **{key: [end[key]] for key in ("mean", "min", "max")}}
    return curve | {"steps": [total * step / curve["steps"][-1] for step in curve["steps"]]}


def _phenomena(metrics: dict[str, Json], palette: dict[str, str]) -> dict[str, Markup]:
    """Returns, by method of scoring, the accuracy in minimal pairs of every phenomenon."""
    found: dict[str, dict[str, dict[str, Number]]] = {}
    for arm, own in metrics.items():
        for name, summary in own.items():
            group, _, phenomenon = name.partition("/phenomena/")
            if phenomenon and group.startswith("minimal_pairs/"):
                method = group.removeprefix("minimal_pairs/").replace("_", " ")
                row = found.setdefault(method, {}).setdefault(phenomenon.replace("_", " "), {})
                row[arm] = summary["mean"]
    return {
        method: Markup(figures.bars(rows, palette, f"accuracy, {method}"))
        for method, rows in found.items()
    }


def _curves(study: Json, palette: dict[str, str]) -> Json:
    """Returns the learning curves by what they show; one that was not logged is left out."""
    evaluation, baselines = study["curves"]["evaluation"], study["baselines"]
    counted = {
        name: baselines[f"{name}_bits"]
        for name in ("unigram", "trigram")
        if f"{name}_bits" in baselines
    }
    asked = {
        "training": (study["curves"]["train"].get("loss"), "training loss, nats", {}),
        "bits": (evaluation.get(OWN_BITS), "bits per token", counted),
        "exact": (evaluation.get("translation/exact_match"), "exact match, %", {}),
    }
    drawn = {}
    for name, (by_arm, label, lines) in asked.items():
        logged = {arm: curve for arm, curve in (by_arm or {}).items() if curve["steps"]}
        if logged:
            drawn[name] = Markup(figures.curves(logged, palette, label, lines))
    return drawn


def _shown_masks(masks: Json) -> list[str]:
    return [mask for mask in MASKS if any(mask in own for own in masks.values())]


def _shades(masks: Json) -> dict[str, dict[str, str]]:
    """Returns arm -> mask -> background: the fewer bits, the deeper the green."""
    bits = {arm: {m: own[m]["mean"] for m in MASKS if m in own} for arm, own in masks.items()}
    every = [value for own in bits.values() for value in own.values()]
    if not every:
        return {}
    low, high = min(every), max(every)
    return {
        arm: {m: _shade((high - value) / ((high - low) or 1)) for m, value in own.items()}
        for arm, own in bits.items()
    }


def _shade(share: Number) -> str:
    """Mixes white with a green light enough for dark text."""
    return "#" + "".join(f"{round(255 + share * (end - 255)):02x}" for end in (0xA6, 0xD8, 0xB5))


def _attention(by_arm: Json) -> list[Json]:
    return [
        {
            "arm": arm,
            "mask": found["mask"],
            "text": found["text"],
            "svg": Markup(figures.attention(found, f"attention of {arm}, layer by layer")),
        }
        for arm, found in by_arm.items()
    ]


def _machine(provenance: list[Json]) -> dict[str, list[Any]]:
    """Returns what the runs ran on, each value once."""
    versions = [
        ", ".join(f"{name} {version}" for name, version in (run["versions"] or {}).items())
        for run in provenance
    ]
    seen = {
        "device": [run["device"] for run in provenance],
        "commit": [run["git_commit"] for run in provenance],
        "versions": versions,
        "command": [run["command"] for run in provenance],
    }
    return {name: [x for x in dict.fromkeys(values) if x] for name, values in seen.items()}
