"""Trains the arms of one or several studies and writes one report about them.

python -m experiments.compare --config=configs/compare_masking.py --workdir=DIR [--seeds=0,1,2]

Finished runs are skipped, so it can be stopped and started again.
"""

import time
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from attn_jax import launch
from attn_jax.comparison.arms import Run, check_runs, is_finished, plan, studies
from attn_jax.comparison.collect import collect, write_comparison
from attn_jax.comparison.report import write_report
from attn_jax.training.loop import train

CONFIG = config_flags.DEFINE_config_file("config", None, "A study, or several, of configs/.")
WORKDIR = flags.DEFINE_string("workdir", None, "Comparison directory, made if need be.")
SEEDS = flags.DEFINE_string("seeds", "", "Comma-separated; empty: those of the study.")
flags.mark_flags_as_required(["config", "workdir"])


def main() -> None:
    """Trains what is missing, checks that the runs can be compared, and reports."""
    root = Path(WORKDIR.value)
    found = studies(launch.config_value(CONFIG))
    several = len(found) > 1
    plans = {
        name: plan(study, SEEDS.value, root / name if several else root)
        for name, study in found.items()
    }
    _train_all([run for runs in plans.values() for run in runs])
    collected = {}
    for name, runs in plans.items():
        check_runs(runs)
        collected[name] = collect(runs)
    write_comparison(root / "comparison.json", collected)
    write_report(root / "report.html", collected)
    print(f"report: {root / 'report.html'}")


def _train_all(runs: list[Run]) -> None:
    """Trains the unfinished runs; says which comes next and about how long the rest takes."""
    left = [run for run in runs if not is_finished(run)]
    start = time.monotonic()
    for number, run in enumerate(left):
        elapsed = time.monotonic() - start
        rest = (
            f", about {elapsed / number * (len(left) - number) / 60:.0f} min left" if number else ""
        )
        print(f"run {number + 1} of {len(left)}: {run}{rest}", flush=True)
        train(run.config, run.directory)


if __name__ == "__main__":
    launch.run(main)
