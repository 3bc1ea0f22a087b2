"""The kinds of benchmarks, and which options each of them reads."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attn_jax.benchmark import attention, decode, growth, lengths, loop, presets, roofline, train
from attn_jax.benchmark import input as pipeline
from attn_jax.benchmark.decode import DecodeShape
from attn_jax.benchmark.measure import Budget
from attn_jax.benchmark.presets import choose
from attn_jax.config import Config
from attn_jax.errors import InputError
from attn_jax.files import refuse_unwritable

SHAPE = asdict(DecodeShape())  # flags of decode, with their defaults
TIMING = ("steps", "seconds")
READ = {
    "train": ("preset", "objective", "dtype", *TIMING),
    "decode": ("preset", "dtype", *SHAPE, *TIMING),
    "lengths": ("preset", "dtype", *(n for n in SHAPE if n != "target_length"), *TIMING),
    "loop": ("preset", *TIMING),
    "growth": ("preset", "objective", "dtype", "picture", *TIMING),
    "attention": ("T", "kernels", "documents", "dtype", *TIMING),
    "input": ("config", *TIMING),
    "roofline": ("dtype",),
}


def check_flags(what: str | None, given: Collection[str]) -> None:
    """Refuses what would be ignored.

    Args:
      what: the kind.
      given: names of the flags on the command line; those of no kind are left alone.

    Raises:
      InputError: there is no such kind, or it does not read one of the flags.
    """
    read = choose("what", what, READ)
    if what in ("train", "loop") and "preset" not in given:
        read = READ["input"]  # all else is in the config
    known = [name for names in READ.values() for name in names]
    for name in given:
        if name in known and name not in read:
            raise InputError(f"{name}: not read here; {what} reads {', '.join(read)}")


@dataclass(frozen=True)
class Options:
    """The values of the flags of a benchmark; each kind reads some."""

    preset: str | None
    objective: str
    dtype: str
    lengths: list[str]
    kernels: list[str]
    documents: int
    picture: str | None
    shape: DecodeShape
    config: Config | None
    config_name: str
    budget: Budget


def measure(what: str, options: Options) -> dict[str, Any]:
    """Measures; returns the report.

    Args:
      what: the kind, whose flags were checked.
      options: of them.

    Raises:
      InputError: one of them is wrong, or missing.
    """
    o = options
    if what == "roofline":
        return roofline.run(o.dtype)
    if what == "attention":
        for name, values in (("T", o.lengths), ("kernels", o.kernels)):
            if not values:
                raise InputError(f"{name}: expected at least one")
        rows = [presets.whole_number("T", length) for length in o.lengths]
        return attention.run(o.kernels, rows, o.documents, o.dtype, o.budget)
    if what in ("decode", "lengths"):
        kind = decode if what == "decode" else lengths
        return kind.run(o.preset, o.shape, o.budget, o.dtype)
    if what == "growth":
        picture = Path(o.picture) if o.picture else None
        if picture is not None:
            refuse_unwritable("picture", picture)
        return growth.run(o.preset, o.objective, o.dtype, o.budget, picture)
    if what in ("train", "loop") and o.preset is not None:
        sizes = choose("preset", o.preset, presets.TRAIN)
        if what == "loop":
            return loop.run(loop.prose(sizes), o.budget, o.preset)
        return train.run(train.synthetic(sizes, o.objective, o.dtype), o.budget, o.preset)
    if o.config is None:
        raise InputError(f"config: {what} needs a file of configs/ (or, to train, a preset)")
    if what == "train":
        return train.run(train.real(o.config), o.budget, o.config_name)
    return (loop if what == "loop" else pipeline).run(o.config, o.budget, o.config_name)
