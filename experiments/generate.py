"""Translates, or continues, text line by line.

python -m experiments.generate --workdir=DIR --input=FILE|- --output=FILE|- [--max_new=64]
    [--beam_size=5 --length_penalty=1]
    [--temperature=1 --top_k=50 --top_p=0.9 --min_p=0.05 --seed=0]
"""

import sys
from pathlib import Path

from absl import flags
from flax import nnx
from tqdm import tqdm

from attn_jax import launch
from attn_jax.data.sources.files import decode, read_text
from attn_jax.decoding.beam import Beam
from attn_jax.decoding.text import generate_texts, make_search
from attn_jax.errors import InputError
from attn_jax.files import refuse_unwritable, write_whole
from attn_jax.training.restore import restore_run

WORKDIR = flags.DEFINE_string("workdir", None, "Run directory.")
STEP = flags.DEFINE_integer("step", 0, "Checkpoint; 0 is the newest.")
INPUT = flags.DEFINE_string("input", "-", "Text, one item a line; - is stdin.")
OUTPUT = flags.DEFINE_string("output", "-", "Where to write, one item a line; - is stdout.")
MAX_NEW = flags.DEFINE_integer("max_new", 64, "Most tokens written a line.", 1, 2**20)
SEARCH = {
    "beam_size": flags.DEFINE_integer("beam_size", 1, "Hypotheses searched at once; 1: greedy."),
    "length_penalty": flags.DEFINE_float(
        "length_penalty", Beam.length_penalty, "Beam: score = log-probability / length^this."
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
    search = make_search(**{name: flag.value for name, flag in SEARCH.items()})
    run = restore_run(Path(WORKDIR.value), STEP.value)
    if run.objective.mask == "bidirectional":
        raise InputError(f"workdir = {WORKDIR.value}: a masked LM fills gaps, it cannot generate")
    output = Path(OUTPUT.value)
    if OUTPUT.value != "-":
        refuse_unwritable("output", output)
    stdin = INPUT.value == "-"
    text = decode(sys.stdin.buffer.read(), "stdin") if stdin else read_text(Path(INPUT.value))
    lines = text.removesuffix("\n").split("\n") if text else []
    written = [""] * len(lines)  # an empty line stays empty
    full = [i for i, line in enumerate(lines) if line.strip()]
    model = nnx.merge(run.graph, run.params)
    texts = [lines[i] for i in full]
    found = generate_texts(model, run.objective, run.tokenizer, texts, MAX_NEW.value, search)
    for i, result in tqdm(found, total=len(full), unit="line", disable=None):
        written[full[i]] = " ".join(result.splitlines())
    result = "".join(f"{line}\n" for line in written)
    if OUTPUT.value == "-":
        sys.stdout.write(result)
    else:
        write_whole(output, result)


if __name__ == "__main__":
    launch.run(main)
