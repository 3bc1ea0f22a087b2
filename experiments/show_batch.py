"""Prints one row of a training batch: inputs, targets, and who sees whom.

python -m experiments.show_batch --config=configs/lm_encoder.py [--step=0] [--row=0] [--columns=24]
"""

from itertools import islice

import jax
import jax.numpy as jnp
from absl import flags

from attn_jax import launch
from attn_jax.analysis.batches import describe_row
from attn_jax.config import Config
from attn_jax.data.pipeline import open_dataset
from attn_jax.errors import InputError
from attn_jax.objectives import make_objective
from attn_jax.training.step import step_keys, training_progress
from attn_jax.validation import validate

CONFIG = launch.define_config("Experiment, a file of configs/.")
STEP = flags.DEFINE_integer("step", 0, "Of training, from 0.", lower_bound=0)
ROW = flags.DEFINE_integer("row", 0, "Of the batch, from 0.", lower_bound=0)
COLUMNS = flags.DEFINE_integer("columns", 24, "Most positions shown.", lower_bound=1)
flags.mark_flag_as_required("config")


def main() -> None:
    """Prints what the flags say."""
    config = validate(launch.config_value(CONFIG, Config))
    dataset = open_dataset(config)
    text = next(islice(dataset.train_batches(config.train.seed), STEP.value, None))
    objective = make_objective(config.objective, dataset.tokenizer.vocabulary)
    mask_key, _ = step_keys(config.train.seed, STEP.value)
    progress = training_progress(STEP.value, config.train.steps)
    batch = objective(jax.tree.map(jnp.asarray, text), mask_key, progress=progress)
    rows = batch.inputs.ids.shape[0]
    if ROW.value >= rows:
        raise InputError(f"row = {ROW.value}: expected at most {rows - 1}, the last of the batch")
    print(f"{config.objective.name}, step {STEP.value}, row {ROW.value} of {rows}\n")
    print(describe_row(batch, dataset.tokenizer, ROW.value, COLUMNS.value, config.model.window))


if __name__ == "__main__":
    launch.run(main)
