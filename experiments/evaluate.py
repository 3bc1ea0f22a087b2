"""Evaluates a checkpoint: a line a number, and in the last line one JSON object.

python -m experiments.evaluate --workdir=DIR [--step=N] [--average_last=10] [--evaluators=a,b]
    [--config.eval.KEY=VALUE]
"""

import json
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from attn_jax import launch
from attn_jax.config import with_fields
from attn_jax.data.pipeline import open_dataset
from attn_jax.devices import use_cores
from attn_jax.errors import InputError
from attn_jax.evaluation.evaluators import Evaluation, split_items
from attn_jax.evaluation.results import flat_numbers
from attn_jax.training.restore import restore_run
from attn_jax.validation import validate

launch.define_changes("Changes to eval and data.")
WORKDIR = flags.DEFINE_string("workdir", None, "Run directory.")
STEP = flags.DEFINE_integer("step", 0, "Checkpoint; 0 is the newest.")
AVERAGE = flags.DEFINE_integer("average_last", 1, "Checkpoints to average, up to that one.", 1)
EVALUATORS = flags.DEFINE_string("evaluators", "", "Comma-separated; empty: those of the run.")
flags.mark_flag_as_required("workdir")


def main() -> None:
    """Evaluates as the flags say."""
    use_cores()
    run = restore_run(Path(WORKDIR.value), STEP.value, AVERAGE.value)
    changes = config_flags.get_override_values(flags.FLAGS["config"])
    for name in changes:
        if name.split(".")[0] not in ("eval", "data"):
            raise InputError(f"{name}: fixed by the run; only eval and data fields can change")
        if name == "eval.curve":
            raise InputError("eval.curve: is measured in training; here --evaluators=... chooses")
    if EVALUATORS.value:
        changes |= {"eval.evaluators": EVALUATORS.value}
    config = validate(with_fields(run.config, changes | {"eval.curve": "loss"}))
    dataset = open_dataset(config, run.tokenizer)
    results, _ = split_items(Evaluation(config, dataset, run.objective, run.graph).run(run.params))
    for name, value in flat_numbers(results).items():
        print(f"{name:48} {value:.6g}")
    which = {"workdir": WORKDIR.value, "step": run.step, "averaged": run.steps}
    print(json.dumps(which | {"results": results}))


if __name__ == "__main__":
    launch.run(main)
