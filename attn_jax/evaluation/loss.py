"""Loss, perplexity, bits per byte and accuracy of the run's own objective."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from attn_jax.devices import in_order, over_rows, replicate
from attn_jax.evaluation.evaluator import Evaluator, Subject
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.objectives import Objective
from attn_jax.objectives.batch import Batch
from attn_jax.objectives.losses import token_losses


class Loss(Evaluator):
    """Mean negative log-likelihood over the targets of a held-out split.

    Of pairs only the target side is scored, whatever the training loss covers, so that all ways of
    translating are measured on the same tokens.

    That of hidden tokens or spans is not a likelihood of the text, so what follows from it is named
    `pseudo_perplexity` and `pseudo_bits_per_byte`. The parts of a mixture are measured one by one,
    and their results named apart, e.g. `causal/perplexity`. Where the rate of masking changes in
    training, it is that of the last step.
    """

    kinds = ("text", "pair")

    def __init__(self, subject: Subject):
        self._subject = subject
        self._token_bytes = jnp.asarray(subject.dataset.tokenizer.token_bytes())

    def run(self, params: dict) -> dict[str, Any]:
        """Returns loss (nats a target) with its standard error, and what follows from it."""
        params = replicate(params)
        objective, split = self._subject.objective.scored(), self._subject.config.eval.split
        told = {"split": split, "mask": objective.mask}
        if objective.kind == "pair":
            told["scored"] = "target side"
        parts = objective.parts()
        if parts:
            return told | {name: self._measure(params, part) for name, (_, part) in parts.items()}
        return told | self._measure(params, objective)

    def _measure(self, params: dict, objective: Objective) -> dict[str, Any]:
        subject = self._subject
        rows: list[tuple[dict[str, Array], int]] = []
        items = 0
        batches = subject.dataset.eval_batches(
            subject.config.eval.split, subject.config.eval.max_items
        )
        for number, (found, text) in enumerate(batches):
            # Masks are keyed by the row's number, so the size of a batch does not matter.
            first_row = jnp.int32(number * len(found))
            args = (params, text, first_row, self._token_bytes)
            rows.append((_row_sums(subject.graph, objective, *args), len(found)))
            items += int(np.count_nonzero(np.asarray(found) >= 0))
        # Fetched at the end, so that no batch waits for another.
        rows = [jax.device_get(in_order(row, count)) for row, count in rows]
        sums = {name: np.concatenate([row[name] for row in rows]).astype(float) for name in rows[0]}
        found = {"mask": objective.mask, "items": items}
        return found | _means(sums, "pseudo_" if objective.pseudo else "")


def _means(sums: dict[str, np.ndarray], pseudo: str) -> dict[str, float]:
    nll, weight = sums["nll"].sum(), sums["weight"].sum()
    loss = nll / weight
    # Of a ratio of sums over rows, since the targets of one row are not independent.
    spread = np.sqrt(np.sum((sums["nll"] - loss * sums["weight"]) ** 2)) / weight
    return {
        "loss": float(loss),
        "loss_stderr": float(spread),
        f"{pseudo}perplexity": math.exp(min(loss, 700)),
        f"{pseudo}bits_per_byte": float(nll / math.log(2) / sums["bytes"].sum()),
        "accuracy": float(sums["correct"].sum() / weight),
    }


@partial(jax.jit, static_argnums=(0, 1))
def _row_sums(
    graph: nnx.GraphDef,
    objective: Objective,
    params: dict,
    text: Tokens | Pair,
    first_row: Array,
    token_bytes: Array,
) -> dict[str, Array]:
    def sums(shared: tuple[dict, Array], batch: Batch) -> dict[str, Array]:
        params, token_bytes = shared
        losses = token_losses(nnx.merge(graph, params), batch)
        values = {
            "nll": losses.nll,
            "correct": losses.correct,
            "bytes": token_bytes[batch.targets],
            "weight": jnp.ones_like(losses.nll),
        }
        return {name: jnp.sum(value * losses.weights, axis=1) for name, value in values.items()}

    # Its masks are drawn before the rows are dealt, by their numbers.
    batch = objective(text, jax.random.key(0), first_row, 1.0)
    return over_rows(sums, (params, token_bytes), batch)
