"""Translates, or continues, text line by line.

python -m experiments.generate --workdir=DIR --input=FILE|- --output=FILE|- [--max_new=64]
"""

import sys
from pathlib import Path

from absl import flags
from flax import nnx
from tqdm import tqdm

from attn_jax import launch
from attn_jax.data.sources.files import decode, read_text
from attn_jax.decoding.text import generate_texts
from attn_jax.errors import InputError
from attn_jax.files import refuse_unwritable, write_whole
from attn_jax.training.restore import restore_run

WORKDIR = flags.DEFINE_string("workdir", None, "Run directory.")
STEP = flags.DEFINE_integer("step", 0, "Checkpoint; 0 is the newest.")
INPUT = flags.DEFINE_string("input", "-", "Text, one item a line; - is stdin.")
OUTPUT = flags.DEFINE_string("output", "-", "Where to write, one item a line; - is stdout.")
MAX_NEW = flags.DEFINE_integer("max_new", 64, "Most tokens written a line.", 1, 2**20)
flags.mark_flag_as_required("workdir")


def main() -> None:
    """Generates as the flags say."""
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
    found = generate_texts(
        model, run.objective, run.tokenizer, [lines[i] for i in full], MAX_NEW.value
    )
    for i, result in tqdm(found, total=len(full), unit="line", disable=None):
        written[full[i]] = " ".join(result.splitlines())
    result = "".join(f"{line}\n" for line in written)
    if OUTPUT.value == "-":
        sys.stdout.write(result)
    else:
        write_whole(output, result)


if __name__ == "__main__":
    launch.run(main)
