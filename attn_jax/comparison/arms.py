"""Studies: arms that may differ only in declared fields, planned as runs and checked afterwards.

An arm is the study's base config with a few fields changed. `plan` refuses arms that differ in
more than the study declares or tunes on its grid; `check_runs` refuses finished runs that did not
see the same data, were not scored on the same tokens, or are not the runs that were planned.
"""

import dataclasses
import re
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from attn_jax.comparison.grid import Point, point_name
from attn_jax.comparison.metrics import MARGINS, METRICS, NAMES, is_known
from attn_jax.comparison.runs import read_results
from attn_jax.config import Config, Section, check_types, diff, flatten, names_in, with_fields
from attn_jax.errors import InputError, nearest
from attn_jax.files import read_json
from attn_jax.training.run_directory import finished_ledger, read_config, refuse_other_config
from attn_jax.validation import validate

RESERVED = ("report.html", "comparison.json")  # files that stand beside the folders of arms
LONGEST_NAME = 100  # of an arm, whose folder has its name


@dataclass
class Study(Section):
    """One question, the arms that answer it, and the fields in which these may differ."""

    name: str = "study"  # heading of the report
    question: str = ""  # one sentence, printed in the report
    base: Config = field(default_factory=Config)  # what all arms have in common
    # arm -> the dotted config fields it changes
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    declared: tuple[str, ...] = ()  # the dotted config fields in which arms may differ
    seeds: str = "0,1"  # comma-separated; arms are paired by seed
    # metric in which arms are compared -> difference within which they are on par; 0: never
    margins: dict[str, float] = field(default_factory=MARGINS.copy)
    # dotted config field -> its values; every arm is tuned on all of their combinations
    grid: dict[str, tuple] = field(default_factory=dict)
    grid_seeds: str = "100"  # comma-separated, none of `seeds`: those of the runs to tune by
    grid_metric: str = "loss/loss"  # EVALUATOR/NUMBER: the validation result to tune by

    def arm_config(self, arm: str) -> Config:
        """Returns the config of one arm, not yet validated, as an experiment of its own."""
        return with_fields(self.base, self.arms[arm])


@dataclass(frozen=True)
class Run:
    """One arm with one seed: its validated config and the directory it lives in.

    point: the values of the study's grid; empty without one.
    """

    study: Study
    arm: str
    seed: int
    config: Config
    directory: Path
    point: Point = field(default_factory=dict)

    def __str__(self) -> str:
        return str(place(self.arm, self.seed, self.point))


def place(arm: str, seed: int, point: Point) -> Path:
    """Returns where a run lies in the directory of its study: `ARM[/POINT]/seed-N`."""
    return Path(arm, point_name(point), f"seed-{seed}")  # an empty part vanishes


def studies(config: Any) -> dict[str, Study]:
    """Returns `{name: study}` of a Study, or of a dataclass whose fields are all studies."""
    if isinstance(config, Study):
        return {config.name: config}
    fields = dataclasses.fields(config) if dataclasses.is_dataclass(config) else ()
    found = {item.name: getattr(config, item.name) for item in fields}
    if not found or not all(isinstance(study, Study) for study in found.values()):
        hint = "; experiments.train trains one experiment" if isinstance(config, Config) else ""
        kind = type(config).__name__
        raise InputError(f"config: {kind} is neither a Study nor a dataclass of studies{hint}")
    return found


def only(studies: dict[str, Study], arms: str) -> dict[str, Study]:
    """Returns the studies with only the named arms, those that have any.

    Args:
      studies: by name.
      arms: comma-separated; empty means all.

    Raises:
      InputError: no study has such an arm, or a study's fields are of wrong types.
    """
    if not arms:
        return studies
    names = names_in(arms)
    for study in studies.values():
        _check_types(study)
    there = {arm for study in studies.values() for arm in study.arms}
    for name in names:
        if name not in there:
            hint = nearest(name, there)
            raise InputError(f"arms = {name!r}: expected some of {', '.join(sorted(there))}{hint}")
    kept = {
        key: replace(study, arms={arm: study.arms[arm] for arm in study.arms if arm in names})
        for key, study in studies.items()
    }
    return {key: study for key, study in kept.items() if study.arms}


def plan(study: Study, seeds: str, root: Path, chosen: dict[str, Point] | None = None) -> list[Run]:
    """Returns the runs of a study, in `root/ARM[/POINT]/seed-N`, seed by seed.

    Args:
      study: what is compared.
      seeds: comma-separated, e.g. "0,1,2"; empty means the study's own.
      root: directory of the comparison.
      chosen: arm -> the point of the grid that it was tuned to.

    Raises:
      InputError: one line naming the study and what is wrong with its arms, fields or seeds.
    """
    _check_types(study)
    _check_margins(study)
    numbers = parse_seeds(seeds or study.seeds)
    _check_names(study)
    tuned = chosen or {arm: {} for arm in study.arms}
    runs = []
    for seed in numbers:
        same_seed = [plan_run(study, arm, seed, root, tuned[arm]) for arm in study.arms]
        _refuse_undeclared(study, {run.arm: run.config for run in same_seed})
        runs += same_seed
    return runs


def plan_run(
    study: Study, arm: str, seed: int, root: Path, point: Point, split: str | None = None
) -> Run:
    """Returns the run of an arm at a point of the grid; evaluated on `split` if there is one."""
    changes = {**point, "train.seed": seed} | ({"eval.split": split} if split else {})
    config = _arm_config(study, arm, changes)
    return Run(study, arm, seed, config, root / place(arm, seed, point), point)


def is_finished(run: Run) -> bool:
    """Tells whether the run has been trained to its last step and evaluated there.

    Raises:
      InputError: its directory holds a run of another config; lists the fields that differ.
    """
    if not (run.directory / "config.json").exists():
        return False
    refuse_other_config(run.directory, run.config)
    return finished_ledger(run.directory, run.config.train.steps) is not None


def check_runs(runs: list[Run]) -> None:
    """Refuses the runs of a study, as far as they are finished, unless they can be compared.

    Raises:
      InputError: one line naming the runs, the field that differs and both values.
    """
    finished = [run for run in runs if is_finished(run)]
    _refuse_unequal_seeds(runs[0].study, finished)
    for seed in {run.seed for run in finished}:
        stored = {str(r): read_config(r.directory) for r in finished if r.seed == seed}
        _refuse_undeclared(runs[0].study, stored)
    refuse_unequal_facts(finished)


def parse_seeds(text: str) -> list[int]:
    """Returns the seeds of a comma-separated list; raises InputError for anything else."""
    parts = names_in(text)
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"seeds = {text!r}: expected comma-separated numbers such as 0,1,2")
    numbers = [int(part) for part in parts]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"seeds = {text!r}: a seed is given twice")
    return numbers


def _check_types(study: Study) -> None:
    """Refuses what a study's file may have set by mistake, such as declared=("one.field")."""
    for name, default in vars(Study()).items():
        value = getattr(study, name)
        if type(value) is not type(default):
            kind = type(default).__name__
            raise InputError(f"study {study.name!r}: {name} = {value!r}: expected {kind}")
    check_types(study.base)
    for name in study.declared:
        if not isinstance(name, str):
            raise InputError(f"study {study.name!r}: declared: {name!r}: expected a field's name")
    for arm, changes in study.arms.items():
        named = isinstance(changes, dict) and all(isinstance(name, str) for name in changes)
        if not isinstance(arm, str) or not named:
            raise InputError(
                f"study {study.name!r}: arm {arm!r} = {changes!r}: expected a name and a dict of "
                "the config fields that it changes"
            )


def _check_margins(study: Study) -> None:
    for name, margin in study.margins.items():
        where = f"study {study.name!r}: margins: {name!r}"
        if not isinstance(name, str) or not is_known(name):
            raise InputError(f"{where}: no such metric{nearest(str(name), (*METRICS, *NAMES))}")
        if type(margin) not in (int, float) or not 0 <= margin <= 1e9:
            raise InputError(f"{where} = {margin!r}: expected a number from 0 to 1e9")
    own = [name for name in (*study.declared, *study.grid) if changes_loss(str(name))]
    if own and _compares_losses(study):
        raise InputError(
            f"study {study.name!r}: margins: losses cannot be compared between arms that differ in "
            f"{own[0]}: they are over other tokens, and a pseudo-perplexity is no perplexity"
        )


def changes_loss(name: str) -> bool:
    """Tells whether losses under different values of a config field are over other tokens."""
    section = name.split(".")[0]
    # Not label smoothing: the loss is evaluated without it.
    return section in ("objective", "data", "tokenizer") and name != "objective.label_smoothing"


def _compares_losses(study: Study) -> bool:
    return any(name.startswith("loss/") for name in study.margins)


def _check_names(study: Study) -> None:
    if not study.arms:
        raise InputError(f"study {study.name!r}: no arms")
    for arm in study.arms:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", arm):
            allowed = "letters, digits, '.', '_' and '-', beginning with a letter or digit"
            raise InputError(f"study {study.name!r}, arm {arm!r}: a name consists of {allowed}")
        if arm in RESERVED or len(arm) > LONGEST_NAME:
            raise InputError(
                f"study {study.name!r}, arm {arm!r}: expected at most {LONGEST_NAME} characters, "
                f"and none of {', '.join(RESERVED)}"
            )
    known = flatten(study.base)
    for name in study.declared:
        if name not in known:
            hint = nearest(name, known)
            raise InputError(f"study {study.name!r}: declares unknown field {name!r}{hint}")


def _arm_config(study: Study, arm: str, changes: dict[str, Any]) -> Config:
    try:
        if "train.seed" in study.arms[arm]:
            raise InputError("train.seed: arms share their seeds; set the study's instead")
        return validate(with_fields(study.arm_config(arm), changes))
    except InputError as error:
        raise InputError(f"study {study.name!r}, arm {arm!r}: {error}") from error


def _refuse_undeclared(study: Study, configs: dict[str, Config]) -> None:
    for (name_a, a), (name_b, b) in combinations(configs.items(), 2):
        for dotted, (in_a, in_b) in diff(a, b).items():
            if dotted not in (*study.declared, *study.grid):
                raise InputError(
                    f"study {study.name!r}: {name_a!r} and {name_b!r} differ in {dotted}, "
                    f"{in_a!r} against {in_b!r}, which is not declared (in `declared` of the study)"
                )


def _refuse_unequal_seeds(study: Study, finished: list[Run]) -> None:
    seeds: dict[str, list[int]] = {arm: [] for arm in study.arms}
    for run in finished:
        seeds[run.arm].append(run.seed)
    for (arm_a, a), (arm_b, b) in combinations(seeds.items(), 2):
        if sorted(a) != sorted(b):
            raise InputError(
                f"arms {arm_a!r} and {arm_b!r} have different finished seeds: "
                f"{_listed(a)} against {_listed(b)}"
            )


def _listed(seeds: list[int]) -> str:
    return ",".join(map(str, sorted(seeds))) or "none"


def refuse_unequal_facts(runs: list[Run]) -> None:
    """Raises InputError unless finished runs saw the same data and were scored on the same."""
    _refuse_unequal({str(run): _facts(run) for run in runs})
    for seed in {run.seed for run in runs}:
        same_seed = [run for run in runs if run.seed == seed]
        _refuse_unequal({str(run): _order(run) | _start(run) for run in same_seed})


def _refuse_unequal(facts: dict[str, dict[str, Any]]) -> None:
    for (run_a, a), (run_b, b) in combinations(facts.items(), 2):
        for name in [name for name in a if name in b]:
            if a[name] != b[name]:
                raise InputError(
                    f"runs {run_a} and {run_b} differ in {name}: {a[name]!r} against {b[name]!r}"
                )


def _facts(run: Run) -> dict[str, Any]:
    """What must be equal in all runs: the data, its tokens, and what was scored."""
    path = run.directory / "ledger.json"
    ledger = read_json(path)
    facts = {}
    for name in _fingerprints(run.study):
        if not ledger.get(name):
            raise InputError(f"{path}: has no {name}, so nothing shows that the runs are equal")
        facts[name] = ledger[name]
    results = read_results(run.directory, run.config)
    for evaluator, found in results.items():
        # That of the loss is of one objective's own targets.
        if evaluator != "loss":
            shared = ("split", "items", "train_items", "fingerprint")
            facts |= {f"{evaluator}.{name}": found[name] for name in shared if name in found}
    if _compares_losses(run.study):
        facts |= _loss_facts(results.get("loss", {}))
    return facts


def _loss_facts(loss: dict[str, Any]) -> dict[str, Any]:
    """What makes two losses comparable: the same tokens, of the same kind of likelihood."""
    kinds = [name for name in ("perplexity", "pseudo_perplexity") if name in loss]
    shared = {f"loss.{name}": loss[name] for name in ("split", "items", "mask") if name in loss}
    return {"kind of perplexity": " and ".join(kinds), **shared}


def _order(run: Run) -> dict[str, Any]:
    """What must be equal in the arms of one seed."""
    if {"data", "tokenizer"} & {name.split(".")[0] for name in run.study.declared}:
        return {}
    return {"order_fingerprint": read_json(run.directory / "ledger.json").get("order_fingerprint")}


def _start(run: Run) -> dict[str, Any]:
    """The checkpoint that the arms of one seed start from; the newest may be another by now."""
    declared = {"train.init_from", "train.init_step"} & set(run.study.declared)
    if declared or not run.config.train.init_from:
        return {}
    path = run.directory / "init.json"
    stored = read_json(path) if path.exists() else {}
    for name in ("run", "step", "parameters"):
        if name not in stored:
            raise InputError(f"{path}: has no {name}, so nothing shows that the arms began alike")
    return {f"{name} in init.json": value for name, value in stored.items()}


def _fingerprints(study: Study) -> list[str]:
    """The fingerprints to compare; a study that declares other data asks for other data."""
    sections = {name.split(".")[0] for name in study.declared}
    return [
        f"{section}_fingerprint" for section in ("data", "tokenizer") if section not in sections
    ]
