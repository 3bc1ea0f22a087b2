"""Fabricated run directories: every file a real run leaves, with numbers made up by formula."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from attn_jax.comparison.arms import Run, Study, plan
from attn_jax.comparison.collect import collect
from attn_jax.config import Config, to_dict

OWN_BITS = {"causal": 5.1, "prefix": 5.3, "bidirectional": 4.9}
OWN_MASK = {"causal_lm": "causal", "prefix_lm": "prefix", "masked_lm": "bidirectional"}
LOSS_BEARING = {"causal_lm": 1.0, "prefix_lm": 0.5, "masked_lm": 0.3}
EXACT = {"translation": 96.1, "causal_translation": 91.4, "prefix_translation": 94.8}
PIECES = ["In", " the", " beginning", " God", " made", " the", " heaven", " and", " the", " earth"]

CONTEXTS = (
    ("And God said, Let there be ", "light", ": and there was light."),
    ("The Lord is my ", "shepherd", "; I will not be in need."),
    ("Give us this day our daily ", "bread", ", and forgive us our debts."),
)
SENTENCES = (
    ("Tuesday, March 5, 2024", "Dienstag, 5. März 2024", "Dienstag, 5. Mai 2024"),
    ("1.5 kilometers per hour", "1,5 Kilometer pro Stunde", "1,5 Kilometer pro Stunde"),
    ("apples, pears & plums", "Äpfel, Birnen & Pflaumen", "<script>alert('Äpfel')</script>"),
)


def make_masking_study(**changes) -> Study:
    base = Config()
    base.train.steps = 1200
    fields = {
        "name": "masking",
        "question": "What does a model gain by seeing both sides of the token it predicts?",
        "base": base,
        "arms": {
            "decoder": {},
            "encoder": {"model.architecture": "encoder", "objective.name": "masked_lm"},
            "prefix": {"objective.name": "prefix_lm"},
        },
        "declared": ("model.architecture", "objective.name"),
    }
    return Study(**fields | changes)


def make_translation_study(**changes) -> Study:
    base = Config()
    base.train.steps = 1200
    base.data.name = "cldr_phrases"
    fields = {
        "name": "translation",
        "question": "Does a separate encoder translate better than one stack that reads both?",
        "base": base,
        "arms": {
            "encoder-decoder": {
                "model.architecture": "encoder_decoder",
                "objective.name": "translation",
                "model.num_layers": 2,
            },
            "causal": {"objective.name": "causal_translation"},
            "prefix": {"objective.name": "prefix_translation"},
        },
        "declared": ("model.architecture", "objective.name", "model.num_layers"),
    }
    return Study(**fields | changes)


def write_json(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_run(run: Run) -> None:
    """Writes the directory of a finished run."""
    steps = run.config.train.steps
    write_json(
        run.directory / "config.json",
        {
            "config": to_dict(run.config),
            "versions": {"python": "3.11.4", "jax": "0.10.0", "flax": "0.12.0"},
            "git_commit": "0123456789abcdef",
            "command": "python -m experiments.compare --config=configs/compare_masking.py",
        },
    )
    write_json(run.directory / "ledger.json", _ledger(run))
    write_json(run.directory / f"eval/{steps}.items.json", _items(run))
    write_json(run.directory / f"eval/{steps}.json", {"step": steps, "results": _results(run)})
    lines = [*_train_lines(run), *_validation_lines(run)]
    lines.sort(key=lambda line: line["step"])
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run.directory / "metrics.jsonl").write_text(text, encoding="utf-8")


def _ledger(run: Run) -> dict:
    tokens = 2000 * run.config.train.steps
    return {
        "finished": True,
        "step": run.config.train.steps,
        "parameters": 1_049_088,
        "parameters_non_embedding": 793_088,
        "tokens_seen": tokens,
        "loss_bearing_tokens": int(tokens * LOSS_BEARING.get(run.config.objective.name, 0.5)),
        "training_flops": 1.51e13 * (1 + 0.03 * (run.config.model.architecture == "encoder")),
        "seconds": 101.5 + run.seed,
        "device": "cpu (2 cores)",
        "padding_share": 0.024,
        "data_fingerprint": "d4e5f6",
        "tokenizer_fingerprint": "a1b2c3",
        "order_fingerprint": f"order-{run.seed}",
    }


def _bits(run: Run, step: int, final: float) -> float:
    """Falls from 11 bits to `final`; encoders learn more slowly; seeds differ a little."""
    slow = 350 if run.config.model.architecture == "encoder" else 250
    luck = 0.02 * math.sin(7 * run.seed + sum(map(ord, run.arm)))
    return final + (11 - final) * math.exp(-step / slow) + luck


def _train_lines(run: Run):
    for step in range(50, run.config.train.steps + 1, 50):
        noise = 0.05 * math.sin(step + run.seed)
        loss = math.log(2) * _bits(run, step, 4.8) + noise
        yield {"step": step, "split": "train", "loss": loss, "accuracy": 0.2, "tokens": 2000 * step}


def _validation_lines(run: Run):
    objective = run.config.objective.name
    for step in range(200, run.config.train.steps + 1, 200):
        line = {"step": step, "split": "validation", "loss/loss": _bits(run, step, 4.9) * 0.69}
        if objective in OWN_MASK:
            bits = _bits(run, step, OWN_BITS[OWN_MASK[objective]])
            line["shared_positions/own_bits"] = bits
        else:
            line["translation/exact_match"] = EXACT[objective] * (1 - math.exp(-step / 300))
        yield line


def _results(run: Run) -> dict:
    objective = run.config.objective.name
    results = {"loss": _loss(run), "attention": _attention(run)}
    if objective in OWN_MASK:
        return results | {"shared_positions": _shared_positions(run)}
    return results | {"translation": _translation(run)}


def _items(run: Run) -> dict:
    """Scores of 60 items around the run's own; the arms share which items are hard."""
    hard = np.random.default_rng(0).normal(0, 1, 60)
    own = np.random.default_rng([len(run.arm), run.seed]).normal(0, 0.3, 60)
    objective = run.config.objective.name
    if objective in OWN_MASK:
        bits = _bits(run, 1200, OWN_BITS[OWN_MASK[objective]]) + hard + own - (hard + own).mean()
        return {"shared_positions": {"own_bits": bits.round(4).tolist()}}
    right = hard + own < np.quantile(hard + own, EXACT[objective] / 100)
    return {"translation": {"exact_match": (100 * right).tolist()}}


def _loss(run: Run) -> dict:
    loss = 3.3 + 0.01 * run.seed
    name = "pseudo_perplexity" if run.config.objective.name == "masked_lm" else "perplexity"
    return {
        "split": "validation",
        "mask": OWN_MASK.get(run.config.objective.name, "causal"),
        "items": 1000,
        "loss": loss,
        "loss_stderr": 0.02,
        name: math.exp(loss),
        "bits_per_byte": 1.4,
        "accuracy": 0.31,
    }


def _shared_positions(run: Run) -> dict:
    own = OWN_MASK[run.config.objective.name]
    final = {mask: _bits(run, 1200, OWN_BITS[own] + 2.1 * (mask != own)) for mask in OWN_BITS}
    return {
        "split": "validation",
        "items": 1024,
        "fingerprint": "0f1e2d",
        "own_mask": own,
        "unigram_bits": 8.62,
        "trigram_bits": 4.85,
        "own_bits": final[own],
        **{mask: {"bits": x, "stderr": 0.1, "accuracy": 0.3} for mask, x in final.items()},
        "samples": [_prediction(run, *context) for context in CONTEXTS],
    }


def _prediction(run: Run, left: str, target: str, right: str) -> dict:
    sure = [[target, 0.61 - 0.1 * run.seed], ["water", 0.12], ["peace", 0.05]]
    unsure = [["the", 0.22], [target, 0.11], ["a", 0.07]]
    encoder = run.config.model.architecture == "encoder"
    return {
        "left": left,
        "target": target,
        "right": right,
        "own": sure,
        "causal": unsure if encoder else sure,
        "bidirectional": sure if encoder else unsure,
    }


def _translation(run: Run) -> dict:
    exact = EXACT[run.config.objective.name] + 0.1 * run.seed * (len(run.arm) - 4)
    good = run.config.objective.name == "translation"
    return {
        "split": "validation",
        "items": 1000,
        "exact_match": exact,
        "bleu": exact + 1.7,
        "bleu_signature": "nrefs:1|case:mixed|tok:13a",
        "bleu_tokenized": exact + 1.2,
        "bleu_tokenized_signature": "nrefs:1|case:lc|tok:none",
        "chrf": exact + 2.2,
        "chrf_signature": "nrefs:1|nc:6",
        "copy_exact_match": 3.1,
        "copy_bleu": 12.4,
        "copy_chrf": 33.0,
        "samples": [
            {"source": source, "reference": reference, "hypothesis": reference if good else other}
            for source, reference, other in SENTENCES
        ],
    }


def _attention(run: Run) -> dict:
    mask = OWN_MASK.get(run.config.objective.name, "causal")
    size = len(PIECES)
    distance = np.abs(np.arange(size)[:, None] - np.arange(size)[None, :])
    layers = []
    for layer in range(4):
        weights = np.exp(-distance / (0.5 + layer))
        if mask == "causal":
            weights = np.tril(weights)
        layers.append((weights / weights.sum(axis=1, keepdims=True)).round(4).tolist())
    return {"text": "".join(PIECES), "pieces": PIECES, "mask": mask, "layers": layers}


@pytest.fixture(name="masking_study")
def _masking_study():
    """A function that makes the study, with some of its fields changed."""
    return make_masking_study


@pytest.fixture(name="edit_json")
def _edit_json():
    """A function that changes top-level fields of a JSON file."""
    return lambda path, **changes: write_json(path, json.loads(path.read_text()) | changes)


@pytest.fixture(name="write_study")
def _write_study(tmp_path_factory):
    """A function that writes the finished runs of a study."""
    return lambda study: write_runs(study, tmp_path_factory.mktemp("study"))


@pytest.fixture(name="finish")
def _finish():
    """A function that writes the directory of a finished run, with results of its own."""

    def finish(run, **results):
        write_run(run)
        path = run.directory / f"eval/{run.config.train.steps}.json"
        stored = json.loads(path.read_text())
        for evaluator, changes in results.items():
            stored["results"][evaluator] |= changes
        write_json(path, stored)

    return finish


@pytest.fixture
def masking_runs(tmp_path) -> list[Run]:
    """The finished runs of three arms with two seeds."""
    return write_runs(make_masking_study(), tmp_path / "masking")


@pytest.fixture(scope="session")
def four_seeds(tmp_path_factory) -> Path:
    """A comparison of three arms with four seeds; shared, so tests must not change it."""
    root = tmp_path_factory.mktemp("four_seeds")
    write_runs(make_masking_study(seeds="0,1,2,3"), root)
    return root


@pytest.fixture(scope="session")
def collected(tmp_path_factory):
    """Both studies as collected; shared, so tests must not change it."""
    root = tmp_path_factory.mktemp("studies")
    studies = (make_masking_study(), make_translation_study())
    return {study.name: collect(write_runs(study, root / study.name)) for study in studies}


@pytest.fixture(scope="session")
def three_seeds(tmp_path_factory):
    """A study of three seeds as collected, without what is slow to draw; shared."""
    study = make_masking_study(seeds="0,1,2")
    found = collect(write_runs(study, tmp_path_factory.mktemp("three_seeds")))
    found["examples"]["attention"] = {}
    return found


@pytest.fixture
def translation_runs(tmp_path) -> list[Run]:
    """The finished runs of three arms with two seeds."""
    return write_runs(make_translation_study(), tmp_path / "translation")


def write_runs(study: Study, root: Path) -> list[Run]:
    runs = plan(study, "", root)
    for run in runs:
        write_run(run)
    return runs
