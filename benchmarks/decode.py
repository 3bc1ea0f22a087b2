"""Our decoding beside CTranslate2's, in turn; prints a table, then JSON.

python -m benchmarks.decode [--preset=tiny,base] [--beam_size=1] [--batch_size=32]
    [--source_length=20] [--target_length=20] [--rounds=3] [--peer_python=PATH]
"""

from dataclasses import asdict

from absl import flags

from attn_jax import launch
from attn_jax.benchmark.decode import DecodeShape
from attn_jax.benchmark.presets import DECODE, choose, decode_config
from benchmarks.rounds import (
    SECONDS,
    check_peer,
    load_before,
    options,
    report,
    run_in_turn,
    use_cores,
)

PEER = ["-m", "benchmarks.peer_ctranslate2"]
PRESETS = flags.DEFINE_list("preset", list(DECODE), "Which sizes.")
DTYPE = flags.DEFINE_string("dtype", "float32", "float32 or bfloat16.")
SHAPE = {
    name: flags.DEFINE_integer(name, value, "As in experiments.benchmark.", lower_bound=1)
    for name, value in asdict(DecodeShape()).items()
}


def main() -> None:
    """Measures what the flags say."""
    chosen = {preset: choose("preset", preset, DECODE) for preset in PRESETS.value}
    for sizes in chosen.values():
        decode_config(sizes, DTYPE.value)  # refuses a wrong flag before anything is measured
    same = {name: flag.value for name, flag in SHAPE.items()}
    same |= {"dtype": DTYPE.value, "seconds": SECONDS.value}
    check_peer(PEER)
    threads, load = use_cores(), load_before()
    measured = {}
    for preset, sizes in chosen.items():
        ours = ["-m", "experiments.benchmark", "decode", *options(preset=preset, **same)]
        peer = [*PEER, *options(**asdict(sizes), **same)]
        peer += options(threads=threads)
        name = f"{preset} {DTYPE.value} beam {same['beam_size']}"
        measured[name] = run_in_turn(name, ours, peer, threads)
    report("decode", threads, load, measured)


if __name__ == "__main__":
    launch.run(main)
