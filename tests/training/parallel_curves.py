"""Prints losses of the same training under jit on one device, jit on all, and pmap, as JSON.

Run by test_parallel.py in a process with several simulated devices.
"""

import functools
import importlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax.config import Config, with_fields
from attn_jax.data.tokenizers import Specials, Vocabulary
from attn_jax.models.transformer import build_model
from attn_jax.objectives import OBJECTIVES, make_objective
from attn_jax.training.optimizers import make_optimizer
from attn_jax.training.parallel import make_parallel, pad_rows
from attn_jax.training.state import new_state, split_model
from attn_jax.training.step import StepSpec, make_step

sys.path.insert(0, str(Path(__file__).parent))
unequal = importlib.import_module("unequal")
SPECIALS = Specials(pad=6, bos=1, eos=3, mask=0, sep=5, unk=2)
STEPS = 20
SMALL = {"d_model": 8, "num_heads": 2, "d_ff": 12}


@functools.cache
def make_spec(objective, dropout=0.0):
    model = SMALL | unequal.SIMPLE | {"dropout": dropout}
    fields = {f"model.{name}": value for name, value in model.items()}
    architecture = OBJECTIVES[objective].architectures[-1]
    fields |= {"objective.name": objective, "model.architecture": architecture}
    fields |= {
        "optimizer.name": "sgd",
        "optimizer.learning_rate": 0.3,
        "optimizer.b1": 0.0,
        "train.log_every": 1,
    }
    config = with_fields(Config(), fields | {"optimizer.warmup_steps": 3})
    graph, shapes = split_model(nnx.eval_shape(lambda: build_model(config.model, 80)))
    rng = np.random.default_rng(0)  # the initializers would be compiled one by one
    params = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)
    optimizer = make_optimizer(config.optimizer, STEPS)
    spec = StepSpec(
        graph, make_objective(config.objective, Vocabulary(80, SPECIALS)), optimizer, config
    )
    return spec, lambda: new_state(jax.tree.map(jnp.asarray, params), optimizer, 0)


def text_of(objective, step):
    """8 rows, two a device; every third batch lacks two, so that it must be padded."""
    make = unequal.packed_pairs if objective == "translation" else unequal.packed_rows
    text = make(SPECIALS, seed=10 * step)
    return jax.tree.map(lambda x: x[:6], text) if step % 3 == 2 else text


def on_one_device(objective):
    """Returns the losses, and the mean of the means of each device's rows for the first batch."""
    spec, start = make_spec(objective)
    step, state = jax.jit(make_step(spec)), start()
    # Each device's rows in an otherwise empty batch: one shape, one compilation.
    alone = [pad_rows(only(text_of(objective, 0), row, row + 2), 8) for row in range(0, 8, 2)]
    means = [loss_of(step(state, text)[1]) for text in alone]
    curve = []
    for i in range(STEPS):
        state, sums = step(state, pad_rows(text_of(objective, i), 8))
        curve.append(loss_of(sums))
    return curve, float(np.mean(means))


def only(text, start, stop):
    """Empties all other rows."""
    inside = ((np.arange(8) >= start) & (np.arange(8) < stop))[:, None]
    return jax.tree.map(lambda x: np.where(inside, x, 0), text)


def loss_of(sums):
    return float(sums["nll"]) / max(float(sums["weight"]), 1.0)


def on_all(objective, name):
    spec, start = make_spec(objective)
    parallel = make_parallel(name)
    step, state = parallel.compile(spec), parallel.put_state(start())
    curve = []
    for i in range(STEPS):
        if i == STEPS // 2:  # what a checkpoint does
            state = parallel.put_state(jax.device_get(parallel.get(state)))
        state, sums = step(state, parallel.put_batch(text_of(objective, i)))
        curve.append(loss_of(parallel.get(sums)))
    return curve


def dropout_losses():
    """Losses under pmap where all devices hold the same rows, and where only the first does."""
    spec, start = make_spec("causal_lm", dropout=0.5)
    parallel = make_parallel("pmap")
    step = parallel.compile(spec)
    text = jax.tree.map(lambda x: np.concatenate([x[:2]] * 4), text_of("causal_lm", 0))
    texts = (text, only(text, 0, 2))
    return [
        loss_of(parallel.get(step(parallel.put_state(start()), parallel.put_batch(text))[1]))
        for text in texts
    ]


def main():
    curves = {}
    for objective in ("causal_lm", "masked_lm", "translation"):
        one, of_means = on_one_device(objective)
        curves[objective] = {
            "one": one,
            "mean_of_means": of_means,
            "jit": on_all(objective, "jit"),
            "pmap": on_all(objective, "pmap"),
        }
    found = {
        "devices": jax.device_count(),
        "curves": curves,
        "dropout": dropout_losses(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
