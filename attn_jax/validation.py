"""What every field of a config may be, and the one line that says what is wrong."""

import dataclasses
import math
from collections.abc import Iterator

from attn_jax.config import MAX_INT, Config, EvalConfig, check_types, flatten, names_in
from attn_jax.errors import InputError, nearest
from attn_jax.evaluation.methods import METHODS, OWN
from attn_jax.objectives import OBJECTIVES

CHOICES = {
    "model.architecture": ("encoder", "decoder", "encoder_decoder"),
    "model.activation": ("gelu", "relu", "swiglu"),
    "model.norm": ("layer", "rms"),
    "model.norm_position": ("pre", "post"),
    "model.positions": ("rotary", "learned", "sinusoidal", "none"),
    "model.dtype": ("float32", "bfloat16"),
    "model.attention": ("auto", "dense", "blockwise", "cudnn"),
    "model.remat": ("none", "block", "products"),
    "data.document": ("line", "paragraph", "file"),
    "tokenizer.name": ("sentencepiece", "byte", "char", "whitespace"),
    "objective.name": tuple(OBJECTIVES),
    "objective.mask_unit": ("token", "word", "span"),
    "objective.mixture_by": ("batch", "row"),
    "optimizer.name": ("adamw", "adam", "lion", "sgd", "adafactor", "muon"),
    "optimizer.schedule": ("cosine", "inverse_sqrt", "wsd", "constant"),
    "train.parallel": ("jit", "pmap"),
    "eval.split": ("validation", "test"),
}

SCORING = (OWN, *METHODS)
# Evaluators, and the field of the file that each reads.
FILES = {
    "minimal_pairs": "minimal_pairs",
    "cloze": "cloze",
    "probe": "labelled",
    "fine_tuning": "labelled",
}
EVALUATORS = ("loss", "shared_positions", "translation", "attention", *FILES)

# Inclusive bounds of the numbers; without an upper one an int is at most MAX_INT.
BOUNDS: dict[str, tuple[float, float | None]] = {
    "model.num_layers": (1, None),
    "model.d_model": (1, None),
    "model.num_heads": (1, None),
    "model.num_kv_heads": (0, None),
    "model.d_ff": (1, None),
    "model.max_length": (1, None),
    "model.window": (0, None),
    "model.dropout": (0, 0.99),
    "data.length": (4, None),
    "data.batch_tokens": (1, None),
    "tokenizer.vocab_size": (8, 10_000_000),
    "tokenizer.sentinels": (0, 100_000),
    "objective.mask_rate": (0.01, 0.99),
    "objective.final_mask_rate": (0, 0.99),
    "objective.mask_share": (0, 1),
    "objective.random_share": (0, 1),
    "objective.source_loss": (0, 1),
    "objective.span_length": (1, 1000),
    "objective.causal_share": (0, 1),
    "objective.label_smoothing": (0, 0.99),
    "optimizer.learning_rate": (0, None),
    "optimizer.warmup_steps": (0, None),
    "optimizer.decay_share": (0, 1),
    "optimizer.final_share": (0, 1),
    "optimizer.b1": (0, 0.9999999),
    "optimizer.b2": (0, 0.9999999),
    "optimizer.eps": (0, None),
    "optimizer.weight_decay": (0, None),
    "optimizer.clip_norm": (0, None),
    "train.steps": (1, None),
    "train.seed": (0, None),
    "train.accumulate": (1, None),
    "train.log_every": (1, None),
    "train.eval_every": (0, None),
    "train.checkpoint_every": (1, None),
    "train.keep_checkpoints": (0, None),
    "train.init_step": (0, None),
    "eval.max_items": (0, None),
    "eval.shared_positions": (1, None),
    "eval.beam_size": (1, 1000),
    "eval.length_penalty": (0, 5),
    "eval.tune_epochs": (1, None),
    "eval.tune_learning_rate": (1e-8, 1),
}


def validate(config: Config) -> Config:
    """Checks every field, freezes the config and returns it.

    Raises:
      InputError: one line naming the first bad field, its value and what is allowed.
    """
    check_types(config)
    for problem in _problems(config):
        raise InputError(problem)
    sections = (getattr(config, item.name) for item in dataclasses.fields(config))
    for section in (config, *sections):
        object.__setattr__(section, "_frozen", True)
    return config


def _problems(config: Config) -> Iterator[str]:
    flat = flatten(config)
    for name, allowed in CHOICES.items():
        if flat[name] not in allowed:
            hint = nearest(str(flat[name]), allowed)
            yield f"{name} = {flat[name]!r}: expected one of {', '.join(allowed)}{hint}"
    for name, (low, high) in BOUNDS.items():
        value = flat[name]
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{name} = {value!r}: expected a finite number"
        highest = MAX_INT if high is None and isinstance(value, int) else high
        if value < low or (highest is not None and value > highest):
            allowed = f"at least {low}" if highest is None else f"from {low} to {highest}"
            yield f"{name} = {value!r}: expected {allowed}"
    yield from _model_problems(config)
    yield from _training_problems(config)
    yield from _evaluation_problems(config)


def _model_problems(config: Config) -> Iterator[str]:
    m = config.model
    if m.d_model % m.num_heads:
        yield f"model.d_model = {m.d_model}: not divisible by model.num_heads = {m.num_heads}"
    if m.num_kv_heads and m.num_heads % m.num_kv_heads:
        yield f"model.num_heads = {m.num_heads}: not divisible by num_kv_heads = {m.num_kv_heads}"
    if m.positions == "rotary" and (m.d_model // m.num_heads) % 2:
        width = m.d_model // m.num_heads
        yield f"model.d_model = {m.d_model}: rotary positions need an even head width, not {width}"
    if m.positions == "sinusoidal" and m.d_model % 2:
        yield f"model.d_model = {m.d_model}: sinusoidal positions need an even width"
    objective = OBJECTIVES[config.objective.name]
    yield from _side_problems(config)
    if m.architecture not in objective.architectures:
        yield (
            f"model.architecture = {m.architecture!r}: objective.name = "
            f"{config.objective.name!r} trains {' or '.join(map(repr, objective.architectures))}"
        )
    longest = objective.longest(config)
    if m.positions == "learned" and longest > m.max_length:
        joined = longest > config.data.length
        what = "source and target of data.length" if joined else "data.length"
        yield (
            f"{what} = {config.data.length}: sequences of {longest} are longer than the "
            f"learned position table, model.max_length = {m.max_length}"
        )


def _side_problems(config: Config) -> Iterator[str]:
    m, o = config.model, config.objective
    if m.share_sides and m.architecture != "encoder_decoder":
        yield (
            f"model.share_sides = True: expected model.architecture = 'encoder_decoder', "
            f"not {m.architecture!r}, which has one stack anyway"
        )
    joins = OBJECTIVES[o.name].kind == "pair" and m.architecture != "encoder_decoder"
    if m.side_embeddings and not joins:
        yield (
            "model.side_embeddings = True: expected objective.name = 'causal_translation' or "
            f"'prefix_translation', which join both sides, not {o.name!r}"
        )
    if o.source_loss and o.name == "prefix_translation":
        yield (
            f"objective.source_loss = {o.source_loss:g}: expected 0 with 'prefix_translation', "
            "where a source token has seen the next one already"
        )
    elif o.source_loss and o.name != "causal_translation":
        yield (
            f"objective.source_loss = {o.source_loss:g}: expected 0 with objective.name = "
            f"{o.name!r}; only 'causal_translation' predicts source tokens"
        )


def _training_problems(config: Config) -> Iterator[str]:
    o, d, t, k = config.objective, config.data, config.train, config.tokenizer
    if k.name in ("sentencepiece", "whitespace") and k.sentinels > k.vocab_size - 8:
        yield (
            f"tokenizer.sentinels = {k.sentinels}: expected at most {k.vocab_size - 8}, "
            f"8 fewer than tokenizer.vocab_size = {k.vocab_size}"
        )
    yield from OBJECTIVES[o.name].problems(config)
    if t.init_step and not t.init_from:
        yield f"train.init_step = {t.init_step}: expected train.init_from with it"
    if o.mask_share + o.random_share > 1:
        total = o.mask_share + o.random_share
        yield f"objective.mask_share + random_share = {total:g}: expected at most 1"
    if d.batch_tokens < d.length:
        yield f"data.batch_tokens = {d.batch_tokens}: expected at least data.length = {d.length}"
    rows = d.batch_tokens // d.length
    if t.accumulate > rows:
        yield f"train.accumulate = {t.accumulate}: expected at most {rows}, the rows of a batch"
    if config.optimizer.warmup_steps >= t.steps:
        yield (
            f"optimizer.warmup_steps = {config.optimizer.warmup_steps}: "
            f"expected fewer than train.steps = {t.steps}"
        )


def _evaluation_problems(config: Config) -> Iterator[str]:
    e = config.eval
    for name in ("length_penalty", "early_stopping"):
        value = getattr(e, name)
        if e.beam_size == 1 and value != getattr(EvalConfig, name):
            yield f"eval.{name} = {value!r}: expected eval.beam_size > 1 with it"
    for name in ("evaluators", "curve"):
        for evaluator in names_in(getattr(config.eval, name)):
            if evaluator not in EVALUATORS:
                hint = nearest(evaluator, EVALUATORS)
                allowed = ", ".join(EVALUATORS)
                yield f"eval.{name}: unknown evaluator {evaluator!r}, expected {allowed}{hint}"
            field = FILES.get(evaluator)
            if field and not getattr(config.eval, field):
                yield f"eval.{field} is empty: the evaluator {evaluator!r} needs a file"
    for method in names_in(config.eval.scoring):
        if method not in SCORING:
            hint = nearest(method, SCORING)
            allowed = ", ".join(SCORING)
            yield f"eval.scoring: unknown method {method!r}, expected {allowed}{hint}"
