"""Optimizers and learning-rate schedules, from optax."""

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from attn_jax.config import OptimizerConfig
from attn_jax.models.layers import dense_kernels


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the step, 0 .. steps - 1.

    All rise linearly to the peak in `warmup_steps`. `cosine` falls to `final_share` of the peak at
    the last step; `inverse_sqrt` falls with the square root of the step (Vaswani et al. 2017);
    `wsd` is stable, then falls linearly in the last `decay_share` of the steps (Hu et al. 2024).
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    rest = max(steps - 1 - warmup, 1)  # from the peak to the last step
    decay = min(max(round(config.decay_share * (steps - warmup)), 1), rest)
    after = {
        "constant": lambda: optax.constant_schedule(peak),
        "cosine": lambda: optax.cosine_decay_schedule(peak, rest, config.final_share),
        "inverse_sqrt": lambda: _inverse_sqrt(peak, warmup),
        "wsd": lambda: optax.linear_schedule(
            peak, peak * config.final_share, decay, transition_begin=rest - decay
        ),
    }[config.schedule]()
    if not warmup:
        return after
    # Starts one step up the ramp: a first update with rate 0 would be wasted.
    ramp = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([ramp, after], [warmup])


def _inverse_sqrt(peak: float, warmup: int) -> optax.Schedule:
    timescale = max(warmup, 1)
    # Also called, and then overruled, with steps of the warm-up, which are negative here.
    return lambda step: peak * jnp.sqrt(timescale / jnp.maximum(step + timescale, 1))


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Returns clipping by global norm (if asked for), followed by the named optimizer."""
    rate = make_schedule(config, steps)
    betas = {"b1": config.b1, "b2": config.b2}
    decay = {"weight_decay": config.weight_decay, "mask": dense_kernels}
    optimizer = {
        "adamw": lambda: optax.adamw(rate, eps=config.eps, **betas, **decay),
        "adam": lambda: optax.adam(rate, eps=config.eps, **betas),
        "lion": lambda: optax.lion(rate, **betas, **decay),
        "sgd": lambda: optax.sgd(rate, momentum=config.b1 or None),
        "adafactor": lambda: optax.adafactor(rate),
        "muon": lambda: _muon(rate, config),
    }[config.name]()
    if not config.clip_norm:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)


def _muon(rate: optax.Schedule, config: OptimizerConfig) -> optax.GradientTransformation:
    """Orthogonalized momentum for the matrices (Jordan 2024), Adam for everything else.

    Updates are scaled to Adam's usual size (Liu et al. 2025), so Adam's learning rates fit.
    """
    dimensions = optax.contrib.MuonDimensionNumbers()
    return optax.contrib.muon(
        rate,
        consistent_rms=0.2,
        weight_decay=config.weight_decay,
        adam_b1=config.b1,
        adam_b2=config.b2,
        muon_weight_dimension_numbers=lambda params: jax.tree.map(
            lambda is_kernel: dimensions if is_kernel else None, dense_kernels(params)
        ),
    )
