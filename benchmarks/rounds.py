"""Two programs in turn, A B A B, each in its own process, and the ratio of their speeds."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from tqdm import tqdm

from attn_jax.errors import InputError, WorkError

ROOT = Path(__file__).parent.parent
ROUNDS = flags.DEFINE_integer("rounds", 3, "Times each side runs; below 3 says little.", 1)
SECONDS = flags.DEFINE_float("seconds", 12.0, "Of timing in each run.", lower_bound=0.0)
THREADS = flags.DEFINE_integer("threads", 0, "Cores for either side; 0: all.", lower_bound=0)
MALLOC = flags.DEFINE_string("malloc", "glibc.malloc.hugetlb=1", "GLIBC_TUNABLES of both sides.")
PEER_PYTHON = flags.DEFINE_string(
    "peer_python", sys.executable, "A Python that has requirements-peers.txt."
)

BUSY = 0.7  # load average above which a ratio says little

Result = dict[str, Any]


def options(**values: Any) -> list[str]:
    """Returns `--name=value` for each value."""
    return [f"--{name}={value}" for name, value in values.items()]


def use_cores() -> int:
    """Keeps this process, and what it starts, on as many cores as the flags say.

    Raises:
      InputError: there are fewer.
    """
    if not hasattr(os, "sched_setaffinity"):
        return THREADS.value or os.cpu_count() or 1
    cores = sorted(os.sched_getaffinity(0))
    count = THREADS.value or len(cores)
    if count > len(cores):
        raise InputError(f"threads = {count}: expected at most {len(cores)}, the cores there are")
    os.sched_setaffinity(0, cores[:count])
    return count


def load_before() -> float:
    """Returns the load average before anything is measured, and warns if other programs run."""
    load = os.getloadavg()[0]
    if load > BUSY:
        print(
            f"warning: load average {load:.1f}: other programs are running. Threads that wait for "
            "each other, as PyTorch's do, then lose a factor of 10 and more: no fair ratio",
            file=sys.stderr,
        )
    return load


def check_peer(command: list[str]) -> None:
    """Raises InputError, before anything is measured, if the peer's packages are missing."""
    _output([PEER_PYTHON.value, *command, "--help"], threads=1)


def run_in_turn(
    name: str, ours: list[str], peer: list[str], threads: int
) -> list[tuple[Result, Result]]:
    """Runs both commands `rounds` times, alternately.

    Args:
      name: of the progress bar.
      ours: arguments of our Python.
      peer: arguments of the peer's.
      threads: cores of either side.

    Returns:
      What the two printed last, for each round.

    Raises:
      InputError, WorkError: one of them failed, with its own line; or they are not the same model.
    """
    commands = ([sys.executable, *ours], [PEER_PYTHON.value, *peer])
    pairs = []
    with tqdm(total=2 * ROUNDS.value, desc=name, unit="run", file=sys.stderr) as bar:
        for _ in range(ROUNDS.value):
            results = []
            for command in commands:
                results.append(json.loads(_output(command, threads).splitlines()[-1]))
                bar.update()
                speeds = [f"{result['tokens_per_s']:,.0f}" for result in results]
                bar.set_postfix_str(" against ".join(speeds) + " tokens/s")
            pairs.append(tuple(results))
            sizes = [result["parameters"] for result in results]
            if sizes[0] != sizes[1]:
                raise WorkError(f"not the same model: {sizes[0]} and {sizes[1]} parameters")
    return pairs


def _output(command: list[str], threads: int) -> str:
    same = {"GLIBC_TUNABLES": MALLOC.value, "OMP_NUM_THREADS": str(threads)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | same, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise InputError(f"peer_python = {command[0]!r}: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        kind = InputError if said.startswith("error: ") else WorkError
        raise kind(said.removeprefix("error: "))
    return done.stdout


def compare(pairs: Sequence[tuple[Result, Result]]) -> Result:
    """Returns both medians, their ratio, and the least and greatest ratio within a round.

    Args:
      pairs: ours and the peer's result of each round, with `tokens_per_s`.
    """
    speeds = [[result["tokens_per_s"] for result in pair] for pair in pairs]
    ours, peer = (statistics.median(side) for side in zip(*speeds, strict=True))
    ratios = [a / b for a, b in speeds]
    return {
        "ours_tokens_per_s": ours,
        "peer_tokens_per_s": peer,
        "ratio": ours / peer,
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "rounds": len(pairs),
    }


def table(rows: Sequence[Result]) -> str:
    """Returns a Markdown table, a row for each result of `compare` with its `name`."""
    lines = ["| | ours, tokens/s | peer, tokens/s | ratio of medians | ratios of rounds |"]
    lines.append("|---|---|---|---|---|")
    for row in rows:
        lines.append(
            f"| {row['name']} | {row['ours_tokens_per_s']:,.0f} | {row['peer_tokens_per_s']:,.0f} "
            f"| {row['ratio']:.2f} | {row['ratio_low']:.2f} to {row['ratio_high']:.2f} |"
        )
    return "\n".join(lines)


def report(
    kind: str, threads: int, load: float, measured: dict[str, list[tuple[Result, Result]]]
) -> None:
    """Prints the table, and last one line of JSON with everything that was measured.

    Args:
      kind: train or decode.
      threads: cores of either side.
      load: of the machine before, see `load_before`.
      measured: pairs of `run_in_turn` by name.
    """
    rows = [{"name": name} | compare(pairs) for name, pairs in measured.items()]
    print(table(rows))
    about = {"kind": kind, "threads": threads, "load_before": load, "rows": rows}
    about["glibc_tunables"] = MALLOC.value
    print(json.dumps(about | {"measured": measured}))
