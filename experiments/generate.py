"""Translates, or continues, text line by line.

python -m experiments.generate --workdir=DIR --input=FILE|- --output=FILE|- [--max_new=64]
    [--average_last=10] [--truncate]
    [--beam_size=5 --length_penalty=1 --noearly_stopping]
    [--temperature=1 --top_k=50 --top_p=0.9 --min_p=0.05 --seed=0]
"""

from pathlib import Path

from absl import flags
from flax import nnx

from attn_jax import launch
from attn_jax.decoding.beam import Beam
from attn_jax.decoding.lines import write_file
from attn_jax.decoding.text import Writer, make_search
from attn_jax.devices import use_cores
from attn_jax.errors import InputError
from attn_jax.training.restore import restore_run

WORKDIR = flags.DEFINE_string("workdir", None, "Run directory.")
STEP = flags.DEFINE_integer("step", 0, "Checkpoint; 0 is the newest.")
AVERAGE = flags.DEFINE_integer("average_last", 1, "Checkpoints to average, up to that one.", 1)
INPUT = flags.DEFINE_string("input", "-", "Text, one item a line; - is stdin.")
OUTPUT = flags.DEFINE_string("output", "-", "Where to write, one item a line; - is stdout.")
MAX_NEW = flags.DEFINE_integer("max_new", 64, "Most tokens written a line.", 1, 2**20)
TRUNCATE = flags.DEFINE_bool("truncate", False, "Cut too long lines, which else stay empty.")
SEARCH = {
    "beam_size": flags.DEFINE_integer("beam_size", 1, "Hypotheses searched at once; 1: greedy."),
    "length_penalty": flags.DEFINE_float(
        "length_penalty", Beam.length_penalty, "Beam: score = log-probability / length^this."
    ),
    "early_stopping": flags.DEFINE_bool(
        "early_stopping", Beam.early_stopping, "Beam: a line ends with beam_size finished texts."
    ),
    "temperature": flags.DEFINE_float("temperature", 0.0, "Of sampling; 0: greedy."),
    "top_k": flags.DEFINE_integer("top_k", 0, "Sample of the k likeliest tokens; 0: of all."),
    "top_p": flags.DEFINE_float("top_p", 1.0, "Sample of the likeliest that hold this share."),
    "min_p": flags.DEFINE_float("min_p", 0.0, "Sample of those this likely beside the likeliest."),
    "seed": flags.DEFINE_integer("seed", 0, "What is drawn follows from it and the line."),
}
flags.mark_flag_as_required("workdir")


def main() -> None:
    """Generates as the flags say."""
    use_cores()
    search = make_search(**{name: flag.value for name, flag in SEARCH.items()})
    run = restore_run(Path(WORKDIR.value), STEP.value, AVERAGE.value)
    if not hasattr(run.objective, "prompt"):
        name = run.config.objective.name
        raise InputError(f"workdir = {WORKDIR.value}: {name} fills gaps, it cannot generate")
    model = nnx.merge(run.graph, run.params)
    writer = Writer(model, run.objective, run.tokenizer, MAX_NEW.value, search)
    settings = {"workdir": str(Path(WORKDIR.value).absolute()), "steps": run.steps}
    settings |= {"parameters": run.fingerprint, "max_new": MAX_NEW.value, "search": str(search)}
    write_file(writer, INPUT.value, OUTPUT.value, TRUNCATE.value, settings)


if __name__ == "__main__":
    launch.run(main)
