"""Trains the arms of one or several studies and writes one report about them.

python -m experiments.compare --config=configs/compare_masking.py --workdir=DIR
    [--seeds=0,1,2] [--arms=A,B] [--workers=N]

Finished runs are skipped, so it can be stopped and started again, and several processes that are
started on the same directory share the work.
"""

import sys
from pathlib import Path

from absl import flags

from attn_jax import launch
from attn_jax.comparison.arms import only, studies
from attn_jax.comparison.collect import write_comparison
from attn_jax.comparison.commands import command
from attn_jax.comparison.report import write_report
from attn_jax.comparison.stages import Comparison

CONFIG = launch.define_config("A study, or several, of configs/.")
WORKDIR = flags.DEFINE_string("workdir", None, "Comparison directory, made if need be.")
SEEDS = flags.DEFINE_string("seeds", "", "Comma-separated; empty: those of the study.")
ARMS = flags.DEFINE_string("arms", "", "Comma-separated; empty: all.")
WORKERS = flags.DEFINE_integer(
    "workers", 0, "Runs at once; 0: one a core on CPU, one on an accelerator.", lower_bound=0
)
PRINT_COMMANDS = flags.DEFINE_bool(
    "print_commands",
    False,
    "Train nothing; print a command for every run that can begin. Once they are done it prints "
    "those of the next stage: a study's final runs follow its sweep.",
)
flags.mark_flags_as_required(["config", "workdir"])


def main() -> None:
    """Trains what is missing, checks that the runs can be compared, and reports."""
    root = Path(WORKDIR.value)
    chosen = only(studies(launch.config_value(CONFIG)), ARMS.value)
    comparison = Comparison(chosen, SEEDS.value, root)
    if PRINT_COMMANDS.value:
        runs = comparison.open_runs()
        print("".join(f"{command(run)}\n" for run in runs), end="")
        if not runs:
            print("no run is left: without --print_commands it reports", file=sys.stderr)
        return
    comparison.train(WORKERS.value)
    collected = comparison.collect()
    write_comparison(root / "comparison.json", collected)
    write_report(root / "report.html", collected)
    print(f"report: {root / 'report.html'}")


if __name__ == "__main__":
    launch.run(main)
