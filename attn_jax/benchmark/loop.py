"""The whole training loop beside its bare step: what data, logs and checkpoints cost."""

import tempfile
from pathlib import Path
from typing import Any

from attn_jax.benchmark.measure import Budget, finish, peak_mib
from attn_jax.benchmark.presets import TrainSizes, train_config
from attn_jax.benchmark.train import measure, real
from attn_jax.config import Config, with_fields
from attn_jax.training.loop import train
from attn_jax.training.metrics import read_metrics
from attn_jax.validation import validate

LOGS = 6  # lines of a run, the first of which ends the warm-up
SAVES = 2


def prose(sizes: TrainSizes) -> Config:
    """Returns a preset's experiment on embedded prose, in characters if its vocabulary is small."""
    tokenizer = "char" if sizes.vocab < 256 else "sentencepiece"
    fields = {"data.name": "web_bible", "tokenizer.name": tokenizer}
    return with_fields(train_config(sizes), fields | {"tokenizer.vocab_size": sizes.vocab})


def run(config: Config, budget: Budget, name: str) -> dict[str, Any]:
    """Times the bare step, then the loop, on the same data; returns the report.

    The loop writes 6 log lines and 2 checkpoints into a temporary run directory. What is timed
    lies between the first and the last line, with one of the checkpoints; evaluations are left
    out, for how many there are is up to the config.

    Args:
      config: of the experiment.
      budget: of the bare step; the loop makes as many steps.
      name: in the report and the progress bar.
    """
    step = measure(real(validate(config)), budget, name)
    every = max(step["steps"] // LOGS, 2)
    fields = {"train.steps": LOGS * every, "train.log_every": every, "train.eval_every": 0}
    fields |= {"train.checkpoint_every": LOGS * every // SAVES, "eval.max_items": 1}
    fields["optimizer.warmup_steps"] = 0  # of the config's it may be more than so few steps
    with tempfile.TemporaryDirectory() as folder:
        train(validate(with_fields(config, fields)), Path(folder) / "run")
        lines = read_metrics(Path(folder) / "run")
    first, *_, last = (line for line in lines if line["split"] == "train")
    tokens, seconds = (last[key] - first[key] for key in ("tokens", "seconds"))
    result = {
        "kind": "loop",
        "name": name,
        "tokens_per_s": tokens / seconds,
        "step_ms": 1e3 * seconds / (last["step"] - first["step"]),
        "steps": last["step"] - first["step"],
        "share_of_step": tokens / seconds / step["tokens_per_s"],
        "step": step,
        "peak_mib": peak_mib(),
    }
    return finish(result)
