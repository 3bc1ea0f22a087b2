"""The kinds of benchmarks, and which flags each of them reads."""

from collections.abc import Collection
from dataclasses import asdict

from attn_jax.benchmark.decode import DecodeShape
from attn_jax.benchmark.presets import choose
from attn_jax.errors import InputError

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
