"""Our training step beside PyTorch's under torch.compile, in turn; prints a table, then JSON.

python -m benchmarks.train [--preset=cpu-char,gpu-char,d512] [--objective=masked_lm]
    [--dtype=bfloat16] [--rounds=3] [--peer_python=PATH]
"""

from dataclasses import asdict

from absl import flags

from attn_jax import launch
from attn_jax.benchmark.presets import MASK_RATE, TRAIN, choose, train_config
from benchmarks.rounds import (
    SECONDS,
    check_peer,
    load_before,
    options,
    report,
    run_in_turn,
    use_cores,
)

PEER = "benchmarks/peer_torch.py"
PRESETS = flags.DEFINE_list("preset", list(TRAIN), "Which sizes.")
OBJECTIVE = flags.DEFINE_string("objective", "causal_lm", "causal_lm or masked_lm.")
DTYPE = flags.DEFINE_string("dtype", "float32", "float32 or bfloat16.")


def main() -> None:
    """Measures what the flags say."""
    chosen = {preset: choose("preset", preset, TRAIN) for preset in PRESETS.value}
    same = {"objective": OBJECTIVE.value, "dtype": DTYPE.value}
    for sizes in chosen.values():
        train_config(sizes, **same)  # refuses wrong flags before anything is measured
    same |= {"seconds": SECONDS.value}
    check_peer([PEER])
    threads, load = use_cores(), load_before()
    measured = {}
    for preset, sizes in chosen.items():
        ours = ["-m", "experiments.benchmark", "train", *options(preset=preset, **same)]
        peer = [PEER, *options(**asdict(sizes), **same)]
        peer += options(mask_rate=MASK_RATE, threads=threads)
        name = f"{preset} {OBJECTIVE.value} {DTYPE.value}"
        measured[name] = run_in_turn(name, ours, peer, threads)
    report("train", threads, load, measured)


if __name__ == "__main__":
    launch.run(main)
