"""Times the project's own code; the last line of stdout is one JSON object.

python -m experiments.benchmark train --preset=d512 [--objective=masked_lm] [--dtype=bfloat16]
python -m experiments.benchmark train|input --config=configs/lm_decoder.py [--config.KEY=VALUE ...]
python -m experiments.benchmark decode --preset=base [--batch_size=32] [--source_length=20] ...
python -m experiments.benchmark lengths --preset=tiny [--batch_size=1] ...
python -m experiments.benchmark attention --T=1024,4096 --kernels=dense,blockwise [--documents=512]
python -m experiments.benchmark loop --preset=d512 (or --config=...)
python -m experiments.benchmark growth --preset=cpu-char [--picture=growth.svg]
python -m experiments.benchmark roofline [--dtype=bfloat16]
"""

import json
import sys

import jax
from absl import flags

from attn_jax import launch
from attn_jax.benchmark import kinds
from attn_jax.benchmark.attention import KERNELS
from attn_jax.benchmark.decode import DecodeShape
from attn_jax.benchmark.measure import Budget
from attn_jax.config import Config
from attn_jax.devices import use_cores
from attn_jax.validation import validate

CONFIG = launch.define_config("Experiment, a file of configs/.")
WHAT = flags.DEFINE_string("what", None, "What to time; the first argument says it too.")
PRESET = flags.DEFINE_string("preset", None, "cpu-char, gpu-char, d512; to decode: tiny, base.")
OBJECTIVE = flags.DEFINE_string("objective", "causal_lm", "causal_lm or masked_lm, of a preset.")
DTYPE = flags.DEFINE_string("dtype", "float32", "float32 or bfloat16.")
STEPS = flags.DEFINE_integer("steps", 0, "Timed steps; 0: as many as fit.", lower_bound=0)
SECONDS = flags.DEFINE_float("seconds", 15.0, "To spend on timing, if steps is 0.", 0.0, 1e6)
LENGTHS = flags.DEFINE_list("T", ["1024", "2048", "4096"], "Sequence lengths.")
NAMES = flags.DEFINE_list("kernels", ["dense"], ", ".join(KERNELS))
PICTURE = flags.DEFINE_string("picture", None, "growth: an SVG file to draw.")
DOCUMENTS = flags.DEFINE_integer("documents", 0, "Tokens a packed document; 0: all one.", 0)
SHAPE = {
    name: flags.DEFINE_integer(name, value, "decode, lengths: of what is decoded at once.", 1)
    for name, value in kinds.SHAPE.items()
}


def main() -> None:
    """Measures what the flags say."""
    # So that compile_s is that of a first start, and every program can tell its memory.
    jax.config.update("jax_enable_compilation_cache", False)
    kinds.check_flags(WHAT.value, [name for name in flags.FLAGS if flags.FLAGS[name].present])
    if WHAT.value in ("decode", "lengths"):
        use_cores()  # as generate does
    given = CONFIG.value is not None
    options = kinds.Options(
        preset=PRESET.value,
        objective=OBJECTIVE.value,
        dtype=DTYPE.value,
        lengths=LENGTHS.value,
        kernels=NAMES.value,
        documents=DOCUMENTS.value,
        picture=PICTURE.value,
        shape=DecodeShape(**{name: flag.value for name, flag in SHAPE.items()}),
        config=validate(launch.config_value(CONFIG, Config)) if given else None,
        config_name=flags.FLAGS["config"].config_filename if given else "",
        budget=Budget(STEPS.value, SECONDS.value),
    )
    print(json.dumps(kinds.measure(WHAT.value, options)))


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        sys.argv[1] = f"--what={sys.argv[1]}"  # launch.run takes flags only
    launch.run(main)
