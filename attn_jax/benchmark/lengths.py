"""What one more token costs in short and in long generations, with and without its attention."""

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Float

from attn_jax.benchmark.decode import DecodeShape, generate, random_model
from attn_jax.benchmark.measure import Budget, finish, peak_mib, time_in_turn
from attn_jax.decoding.prompts import prepare
from attn_jax.models.kernels import KERNELS, attend_dense
from attn_jax.models.tokens import Tokens

LENGTHS = (32, 128, 512)  # tokens generated a row
FIRST = 16  # slots; fewer than the shortest has, so that all lengths cut
FIRST_SLOTS = "first_slots"  # no config may name this kernel: its results are wrong


def attend_first_slots(
    q_BHTK: Float[Array, "B H T K"],
    k_BGSK: Float[Array, "B G S K"],
    v_BGSK: Float[Array, "B G S K"],
    queries: Tokens,
    keys: Tokens,
    window: int = 0,
) -> Float[Array, "B H T K"]:
    """Attends to the first 16 keys only: the same work, however many there are."""
    first = jax.tree.map(lambda x: x[..., :FIRST], keys)
    k_BGFK, v_BGFK = k_BGSK[:, :, :FIRST], v_BGSK[:, :, :FIRST]
    return attend_dense(q_BHTK, k_BGFK, v_BGFK, queries, first, window)


KERNELS[FIRST_SLOTS] = attend_first_slots


def per_token(whole: list[float], one: float, lengths: tuple[int, ...]) -> list[float]:
    """Returns the seconds of each further token: of whole generations, less one of one token."""
    return [(seconds - one) / (n - 1) for seconds, n in zip(whole, lengths, strict=True)]


def run(preset: str, shape: DecodeShape, budget: Budget, dtype: str = "float32") -> dict[str, Any]:
    """Times whole generations of 32, 128 and 512 tokens, and the same without most attention.

    A step of the loop attends to all slots of its cache, as many as there will be tokens, so the
    attention of a token grows with the length. The rest should not. It is measured as a generation
    that does all the same, writes its whole cache too, but attends to 16 slots of it only.

    Args:
      preset: a name in DECODE, of the model's sizes.
      shape: of the batch; its target length is not read.
      budget: of all together; a step is one round of all generations.
      dtype: of activations.

    Returns:
      The report. `results` has, for each length, milliseconds of one more token of every row, of
      them its attention (beyond 16 slots), and the rest; `growth` is how much more each is at the
      last length than at the first.

    Raises:
      InputError: there is no such preset, dtype or beam size.
    """
    works = {}
    for name, kernel in {"whole": "auto", "rest": FIRST_SLOTS}.items():
        model, prompt, source = random_model(preset, shape, dtype, kernel)
        ready = prepare(model)
        for length in (1, *LENGTHS):
            of_length = replace(shape, target_length=length)
            once = partial(generate, ready, prompt, source, of_length)
            works[name, length] = partial(_generations, once, _count(length))
    times = time_in_turn(works, budget, "lengths")
    seconds = {key: statistics.median(found) / _count(key[1]) for key, found in times.items()}
    rows = {}
    for name in ("whole", "rest"):
        generations = [seconds[name, length] for length in LENGTHS]
        rows[name] = per_token(generations, seconds[name, 1], LENGTHS)
    differences = [a - b for a, b in zip(rows["whole"], rows["rest"], strict=True)]
    rows = {"whole": rows["whole"], "attention": differences, "rest": rows["rest"]}
    milliseconds = {name: [1e3 * x for x in row] for name, row in rows.items()}
    growth = {name: rows[name][-1] / rows[name][0] for name in ("whole", "rest")}
    print(table(milliseconds, growth))
    report = {"kind": "lengths", "name": preset, "dtype": dtype, "beam_size": shape.beam_size}
    report |= {"batch_size": shape.batch_size, "source_length": shape.source_length}
    results = {"lengths": list(LENGTHS)} | {f"{k}_ms": v for k, v in milliseconds.items()}
    return finish(report | {"results": results, "growth": growth, "peak_mib": peak_mib()})


def _count(length: int) -> int:
    """Returns how many generations are timed as one, so that none meets only the best moments."""
    return max(LENGTHS) // max(length, min(LENGTHS))


def _generations(once: Callable[[], Array], count: int) -> None:
    for _ in range(count):
        once().block_until_ready()


def table(milliseconds: dict[str, list[float]], growth: dict[str, float]) -> str:
    """Returns a Markdown table, a line for the whole, its attention and the rest."""
    names = " | ".join(f"{length} tokens" for length in LENGTHS)
    lines = [f"| ms a token of every row | {names} | last / first |"]
    lines.append("|---" * (len(LENGTHS) + 2) + "|")
    for name, row in milliseconds.items():
        values = " | ".join(f"{x:.3f}" for x in row)
        times = f"{growth[name]:.2f}" if name in growth else ""
        lines.append(f"| {name} | {values} | {times} |")
    return "\n".join(lines)
