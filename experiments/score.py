"""Scores text line by line: the log-probability of each line under a named method, in nats.

python -m experiments.score --workdir=DIR --input=FILE|- [--output=FILE|-]
    [--method=own|causal|pll|pll_within_word|pll_whole_word|pll_global|fused|prefix]
    [--per_token] [--step=N] [--average_last=10] [--truncate]

With prefix, the own method of translation models and of prefix_lm, a line is source<TAB>target;
to one stack on text it may also be a text alone, which then scores as with causal.
"""

from pathlib import Path

from absl import flags

from attn_jax import launch
from attn_jax.decoding.lines import write_file
from attn_jax.devices import use_cores
from attn_jax.evaluation.methods import METHODS, OWN
from attn_jax.evaluation.score_lines import LineScorer
from attn_jax.evaluation.scoring import make_scorer
from attn_jax.training.restore import restore_run

WORKDIR = flags.DEFINE_string("workdir", None, "Run directory.")
STEP = flags.DEFINE_integer("step", 0, "Checkpoint; 0 is the newest.")
AVERAGE = flags.DEFINE_integer("average_last", 1, "Checkpoints to average, up to that one.", 1)
INPUT = flags.DEFINE_string("input", "-", "Text, one item a line; - is stdin.")
OUTPUT = flags.DEFINE_string("output", "-", "Where to write, one score a line; - is stdout.")
METHOD = flags.DEFINE_string(
    "method", OWN, f"{', '.join(METHODS)}; own: the one of the objective's mask."
)
PER_TOKEN = flags.DEFINE_bool("per_token", False, "A JSON object a line, token by token.")
TRUNCATE = flags.DEFINE_bool("truncate", False, "Cut too long lines, which else stay empty.")
flags.mark_flag_as_required("workdir")


def main() -> None:
    """Scores as the flags say."""
    use_cores()
    run = restore_run(Path(WORKDIR.value), STEP.value, AVERAGE.value)
    about = (run.graph, run.objective, run.tokenizer, run.config.model)
    scorer = make_scorer(METHOD.value, *about)
    worker = LineScorer(scorer, run.params, run.tokenizer, PER_TOKEN.value)
    settings = {"workdir": str(Path(WORKDIR.value).absolute()), "steps": run.steps}
    settings |= {"parameters": run.fingerprint, "method": scorer.method}
    settings |= {"per_token": PER_TOKEN.value}
    write_file(worker, INPUT.value, OUTPUT.value, TRUNCATE.value, settings)


if __name__ == "__main__":
    launch.run(main)
