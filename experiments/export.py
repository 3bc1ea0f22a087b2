"""Writes a trained encoder-decoder as a folder for CTranslate2.

python -m experiments.export --workdir=DIR --output=FOLDER [--step=N] [--average_last=10]
"""

from pathlib import Path

from absl import flags

from attn_jax import launch
from attn_jax.export.ctranslate2 import export_run

WORKDIR = flags.DEFINE_string("workdir", None, "Run directory.")
STEP = flags.DEFINE_integer("step", 0, "Checkpoint; 0 is the newest.")
AVERAGE = flags.DEFINE_integer("average_last", 1, "Checkpoints to average, up to that one.", 1)
OUTPUT = flags.DEFINE_string("output", None, "Folder to make.")
flags.mark_flags_as_required(["workdir", "output"])


def main() -> None:
    """Exports what the flags say."""
    output = Path(OUTPUT.value)
    export_run(Path(WORKDIR.value), output, STEP.value, AVERAGE.value)
    print(
        f"{output}: ctranslate2.Translator({str(output)!r}).translate_batch([tokens], beam_size=5) "
        "takes and gives tokens of shared_vocabulary.json; docs/decoding.md shows how"
    )


if __name__ == "__main__":
    launch.run(main)
