"""Trains the arms of one or several studies and writes one report about them.

python -m experiments.compare --config=configs/compare_masking.py --workdir=DIR [--seeds=0,1,2]

Finished runs are skipped, so it can be stopped and started again.
"""

from pathlib import Path

from absl import flags

from attn_jax import launch
from attn_jax.comparison.arms import check_runs, is_finished, plan, studies
from attn_jax.comparison.collect import collect, write_comparison
from attn_jax.comparison.report import write_report
from attn_jax.training.many import train_all

CONFIG = launch.define_config("A study, or several, of configs/.")
WORKDIR = flags.DEFINE_string("workdir", None, "Comparison directory, made if need be.")
SEEDS = flags.DEFINE_string("seeds", "", "Comma-separated; empty: those of the study.")
WORKERS = flags.DEFINE_integer(
    "workers", 0, "Runs at once; 0: one a core on CPU, one on an accelerator.", lower_bound=0
)
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
    runs = [run for planned in plans.values() for run in planned if not is_finished(run)]
    train_all([(run.config, run.directory) for run in runs], WORKERS.value)
    collected = {}
    for name, runs in plans.items():
        check_runs(runs)
        collected[name] = collect(runs)
    write_comparison(root / "comparison.json", collected)
    write_report(root / "report.html", collected)
    print(f"report: {root / 'report.html'}")


if __name__ == "__main__":
    launch.run(main)
