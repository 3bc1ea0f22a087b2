"""Tries the tests of a comparison where there is nothing to find; the last line is one JSON object.

python -m experiments.calibrate --workdir=DIR [--arm=encoder] [--metric=shared_positions/own_bits]
    [--splits=200] [--group=6]

DIR holds one directory a seed for each arm, as experiments.compare leaves it. The runs of one arm
are split at random into two groups, again and again, and each test says how often they differ.
"""

import json
from pathlib import Path

from absl import flags

from attn_jax import launch
from attn_jax.comparison.calibration import LEAST_SEEDS, as_json, calibrate, items_needed, table
from attn_jax.comparison.kept_items import arm_items

WORKDIR = flags.DEFINE_string("workdir", None, "Comparison directory, or that of one study in it.")
ARM = flags.DEFINE_string("arm", "", "Whose runs to split; empty: the first of the directory.")
METRIC = flags.DEFINE_string("metric", "", "Scores to test; empty: the first that were kept.")
SPLITS = flags.DEFINE_integer("splits", 200, "How often to split.", lower_bound=1)
GROUP = flags.DEFINE_integer("group", 6, "Runs a group when items are split.", lower_bound=2)
flags.mark_flag_as_required("workdir")


def main() -> None:
    """Prints the table and the same as JSON."""
    least = items_needed(GROUP.value)
    arm, metric, items = arm_items(Path(WORKDIR.value), ARM.value, METRIC.value, least)
    found = calibrate(items, SPLITS.value, GROUP.value)
    print(f"{arm}, {metric}: {len(items.numbers)} seeds, {items.count} items each\n")
    print(table(found))
    if len(items.numbers) < LEAST_SEEDS:
        print(f"\nseeds are not split: {LEAST_SEEDS} are needed for two groups of two")
    about = {"arm": arm, "metric": metric, "seeds": len(items.numbers), "items": items.count}
    print(json.dumps(about | {"rates": as_json(found)}))


if __name__ == "__main__":
    launch.run(main)
