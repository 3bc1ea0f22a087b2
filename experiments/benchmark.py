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
from pathlib import Path

import jax
from absl import flags

from attn_jax import launch
from attn_jax.benchmark import (
    attention,
    decode,
    growth,
    kinds,
    lengths,
    loop,
    presets,
    roofline,
    train,
)
from attn_jax.benchmark import input as pipeline
from attn_jax.benchmark.measure import Budget
from attn_jax.config import Config
from attn_jax.errors import InputError
from attn_jax.files import refuse_unwritable
from attn_jax.validation import validate

launch.define_config("Experiment, a file of configs/.")
flags.DEFINE_string("what", None, "What to time; the first argument says it too.")
flags.DEFINE_string("preset", None, "cpu-char, gpu-char, d512; to decode: tiny, base.")
flags.DEFINE_string("objective", "causal_lm", "causal_lm or masked_lm, of a preset.")
flags.DEFINE_string("dtype", "float32", "float32 or bfloat16.")
flags.DEFINE_integer("steps", 0, "Timed steps; 0: as many as fit.", lower_bound=0)
flags.DEFINE_float("seconds", 15.0, "To spend on timing, if steps is 0.", 0.0, 1e6)
flags.DEFINE_list("T", ["1024", "2048", "4096"], "Sequence lengths.")
flags.DEFINE_list("kernels", ["dense"], ", ".join(attention.KERNELS))
flags.DEFINE_string("picture", None, "growth: an SVG file to draw.")
flags.DEFINE_integer("documents", 0, "Tokens a packed document; 0: all one.", lower_bound=0)
for name, value in kinds.SHAPE.items():
    flags.DEFINE_integer(name, value, "decode, lengths: of what is decoded at once.", lower_bound=1)


def main() -> None:
    """Measures what the flags say."""
    # So that compile_s is that of a first start, and every program can tell its memory.
    jax.config.update("jax_enable_compilation_cache", False)
    f, what = flags.FLAGS, flags.FLAGS.what
    kinds.check_flags(what, [name for name in f if f[name].present])
    print(json.dumps(_measure(f, what, Budget(f.steps, f.seconds))))


def _measure(f: flags.FlagValues, what: str, budget: Budget) -> dict:
    if what == "roofline":
        return roofline.run(f.dtype)
    if what == "attention":
        for name in ("T", "kernels"):
            if not f[name].value:
                raise InputError(f"{name}: expected at least one")
        rows = [presets.whole_number("T", length) for length in f.T]
        return attention.run(f.kernels, rows, f.documents, f.dtype, budget)
    if what in ("decode", "lengths"):
        shape = decode.DecodeShape(*(f[name].value for name in kinds.SHAPE))
        kind = decode if what == "decode" else lengths
        return kind.run(f.preset, shape, budget, f.dtype)
    if what == "growth":
        picture = Path(f.picture) if f.picture else None
        if picture is not None:
            refuse_unwritable("picture", picture)
        return growth.run(f.preset, f.objective, f.dtype, budget, picture)
    if what in ("train", "loop") and f.preset is not None:
        sizes = presets.choose("preset", f.preset, presets.TRAIN)
        if what == "loop":
            return loop.run(loop.prose(sizes), budget, f.preset)
        return train.run(train.synthetic(sizes, f.objective, f.dtype), budget, f.preset)
    if f["config"].value is None:
        raise InputError(f"config: {what} needs a file of configs/ (or, to train, a preset)")
    config, name = validate(launch.config_value(f["config"], Config)), f["config"].config_filename
    if what == "train":
        return train.run(train.real(config), budget, name)
    if what == "loop":
        return loop.run(config, budget, name)
    return pipeline.run(config, budget, name)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        sys.argv[1] = f"--what={sys.argv[1]}"  # launch.run takes flags only
    launch.run(main)
