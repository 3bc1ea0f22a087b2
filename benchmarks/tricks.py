"""What each trick of the training step gives: the step as it is, and with that trick undone.

python -m benchmarks.tricks [--preset=d512] [--tricks=barriers,losses] [--rounds=3]

Both run in turn; prints a table, then JSON. An undone step computes the same, only more slowly.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from flax import nnx

from attn_jax import launch
from attn_jax.benchmark import train
from attn_jax.benchmark.measure import Budget
from attn_jax.benchmark.presets import TRAIN, choose
from attn_jax.config import with_fields
from attn_jax.models import attention, kernels, layers, transformer
from attn_jax.objectives import losses
from attn_jax.training import step
from attn_jax.validation import validate
from benchmarks.rounds import SECONDS, compare, load_before, options, run_in_turn, use_cores

Patch = Callable[[Any, str, Any], None]  # setattr, or what a test undoes again


@dataclass(frozen=True)
class Trick:
    """One trick: what it is, how to do without it, and in which experiment it matters."""

    about: str
    undo: Callable[[Patch], None]
    objective: str = "causal_lm"
    fields: dict[str, Any] = field(default_factory=dict)


def three_axes(patch: Patch) -> None:
    """Dense layers on [B, T, D], as they are usually written."""
    rows, flat = [], nnx.Linear.__call__
    projections = attention.Attention.self_projections

    def with_rows(self, x_ND, batch, rotation):
        rows[:] = [batch]
        return projections(self, x_ND, batch, rotation)

    def linear(self, x_ND):
        x_BTD = x_ND.reshape(rows[0], -1, x_ND.shape[-1])
        return flat(self, x_BTD).reshape(*x_ND.shape[:-1], -1)

    patch(attention.Attention, "self_projections", with_rows)
    patch(nnx.Linear, "__call__", linear)


def no_barriers(patch: Patch) -> None:
    """No `optimization_barrier`: XLA fuses what it likes."""
    for module in (layers, losses):
        patch(module, "materialize", lambda x: x)


def derived_attention(patch: Patch) -> None:
    """The reference attention with the gradient that JAX derives."""
    patch(kernels, "KERNELS", kernels.KERNELS | {"dense": attention.attend})


def derived_losses(patch: Patch) -> None:
    """Cross-entropy of all targets at once, with the gradient that JAX derives."""

    def whole(hidden_ND, table_VD, targets_N, weights_N, smoothing):
        table_VD = table_VD.astype(hidden_ND.dtype)
        (loss, *scores), _ = losses._score(table_VD, hidden_ND, targets_N, smoothing)
        return jnp.sum(loss * weights_N), tuple(scores)

    patch(losses, "cross_entropy", whole)


def one_piece(patch: Patch) -> None:
    """All logits at once, with the gradient by hand."""
    patch(losses, "most_logits", lambda: 2**40)


def all_positions(patch: Patch) -> None:
    """The vocabulary product at every position, also where nothing is predicted."""
    score = losses.token_losses

    def score_all(model, batch, *args):
        rows, shape = jnp.arange(len(batch.at))[:, None], batch.inputs.ids.shape
        # Columns without a target share one place, and weigh nothing.
        weights = jnp.zeros(shape).at[rows, batch.at].add(batch.weights)
        targets = jnp.zeros(shape, jnp.int32)
        targets = targets.at[rows, batch.at].add(batch.targets * (batch.weights > 0))
        return score(model, batch.replace(targets=targets, weights=weights, at=None), *args)

    patch(step, "token_losses", score_all)


def bernoulli(patch: Patch) -> None:
    """Dropout with one random word for each element."""

    def dropout(x_ND, rate, key):
        if key is None or rate == 0:
            return x_ND
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x_ND.shape), x_ND / (1 - rate), 0)

    for module in (layers, transformer):
        patch(module, "dropout", dropout)


TRICKS = {
    "rows": Trick("dense layers on [B * T, D], not [B, T, D]", three_axes),
    "barriers": Trick("barriers before products", no_barriers),
    "attention": Trick("attention with its gradient by hand", derived_attention),
    "losses": Trick("cross-entropy with its gradient by hand", derived_losses),
    "pieces": Trick("logits in pieces that caches hold", one_piece),
    "targets": Trick("vocabulary only at targets (masked LM)", all_positions, "masked_lm"),
    "dropout": Trick("four draws a random word (dropout 0.2)", bernoulli, fields={"dropout": 0.2}),
}

PRESET = flags.DEFINE_string("preset", "d512", ", ".join(TRAIN))
NAMES = flags.DEFINE_list("tricks", list(TRICKS), "Which tricks.")
UNDONE = flags.DEFINE_string("undone", None, "For the processes that this one starts.")


def measure(trick: Trick, preset: str, undone: bool, budget: Budget) -> dict[str, Any]:
    """Returns what `benchmark train` measures, with the trick or without."""
    if undone:
        trick.undo(setattr)
    work = train.synthetic(choose("preset", preset, TRAIN), trick.objective)
    fields = {f"model.{name}": value for name, value in trick.fields.items()}
    config = validate(with_fields(work.config, fields))
    return train.measure(replace(work, config=config), budget, trick.about)


def main() -> None:
    """Measures what the flags say."""
    chosen = {name: choose("tricks", name, TRICKS) for name in NAMES.value}
    choose("preset", PRESET.value, TRAIN)
    if UNDONE.value is not None:
        jax.config.update("jax_enable_compilation_cache", False)
        (trick,) = chosen.values()
        budget = Budget(seconds=SECONDS.value)
        print(json.dumps(measure(trick, PRESET.value, UNDONE.value == "yes", budget)))
        return
    threads, load = use_cores(), load_before()
    rows = []
    for name, trick in chosen.items():
        same = {"preset": PRESET.value, "tricks": name, "seconds": SECONDS.value}
        sides = [["-m", "benchmarks.tricks", *options(**same, undone=x)] for x in ("no", "yes")]
        pairs = run_in_turn(name, *sides, threads)
        memory = [result["temp_mib"] for result in pairs[0]]
        rows.append({"name": name, "about": trick.about, "temp_mib": memory} | compare(pairs))
    print(table(rows))
    about = {"kind": "tricks", "preset": PRESET.value, "threads": threads, "load_before": load}
    print(json.dumps(about | {"rows": rows}))


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a Markdown table, a row for each trick."""
    lines = ["| trick | tokens/s | without it | gain (rounds) | temporary MiB | without it |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        lines.append(
            f"| {row['about']} | {row['ours_tokens_per_s']:,.0f} | {row['peer_tokens_per_s']:,.0f} "
            f"| {row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f}) "
            f"| {row['temp_mib'][0]:,.0f} | {row['temp_mib'][1]:,.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    launch.run(main)
