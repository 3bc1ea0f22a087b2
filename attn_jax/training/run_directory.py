"""The run directory: config.json, and the refusal to mix two configs in one directory."""

import importlib.metadata
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

from attn_jax.config import Config, diff, from_dict, to_dict
from attn_jax.errors import DivergedError, HeldError, InputError
from attn_jax.files import read_json, write_whole
from attn_jax.locks import hold, is_held
from attn_jax.validation import validate

PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "grain", "tensorflow-datasets", "numpy")
LOCK = ".lock"  # held by the process that trains in the directory
DIVERGED = "diverged.json"


def open_run(workdir: Path, config: Config, data: str = "") -> None:
    """Makes the directory and writes config.json, or checks that it holds this very config.

    Args:
      workdir: the run directory.
      config: validated.
      data: fingerprint of what is trained on; without it nothing is written.

    Raises:
      InputError: the directory holds a run of another config, or of other data; names the fields
        that differ.
    """
    path = workdir / "config.json"
    # A kill may have left the lock alone, or with a part of config.json.
    foreign = workdir.exists() and (
        not workdir.is_dir()
        or any(f.name != LOCK and f.suffix != ".partial" for f in workdir.iterdir())
    )
    if path.exists():  # looked for last: another process may just have made it
        refuse_other_config(workdir, config)
        stored = read_json(path).get("data_fingerprint", data)
        if data and data != stored:
            raise InputError(
                f"workdir = {workdir}: was begun on other data (data_fingerprint = {stored!r} "
                f"there, {data!r} here)"
            )
        return
    if foreign:
        raise InputError(f"workdir = {workdir}: exists, and is not a run directory")
    if not data:
        return
    workdir.mkdir(parents=True, exist_ok=True)
    record = {
        "config": to_dict(config),
        "data_fingerprint": data,
        "versions": versions(),
        "git_commit": git_commit(),
        "command": _command(),
    }
    write_whole(path, json.dumps(record, indent=2) + "\n")


@contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Claims a run directory, made if need be, for as long as this process lives at most.

    Raises:
      HeldError: another process is training there.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(hold(workdir / LOCK))
        except BlockingIOError:
            refuse_held(workdir)
        yield


def refuse_held(workdir: Path) -> NoReturn:
    """Raises HeldError."""
    raise HeldError(f"workdir = {workdir}: another process is training there") from None


def is_claimed(workdir: Path) -> bool:
    """Tells whether another process is training in a run directory."""
    return is_held(workdir / LOCK)


def read_config(workdir: Path) -> Config:
    """Returns the config of a run.

    Raises:
      InputError: this is not a run directory, or its config is broken.
    """
    if not (workdir / "config.json").exists():
        raise InputError(f"workdir = {workdir}: not a run directory, config.json is missing")
    path = workdir / "config.json"
    record = read_json(path)
    try:
        return validate(from_dict(record["config"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{path}: holds no config") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def refuse_other_config(workdir: Path, config: Config) -> None:
    """Raises InputError if `workdir` holds a run of another config."""
    stored = read_config(workdir)
    changes = [
        f"{k}: {old!r} there, {new!r} here" for k, (old, new) in diff(stored, config).items()
    ]
    if changes:
        raise InputError(
            f"workdir = {workdir}: holds a run of another config ({'; '.join(changes)})"
        )


def _command() -> str:
    """Returns the command line, the same in a worker process as in its parent."""
    script = Path(sys.argv[0])
    runner = script.parent.name == "experiments"
    start = ["python", "-m", f"experiments.{script.stem}"] if runner else ["python", script.name]
    return shlex.join([*start, *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that results depend on."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **found}


def git_commit() -> str | None:
    """Returns the commit of this checkout, with "+changes" if files differ; None outside of one."""
    head, status = (_git(*words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain")))
    return f"{head}+changes" if head and status else head or None


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def finished_ledger(workdir: Path, steps: int) -> dict[str, Any] | None:
    """Returns the ledger of a run that was trained for `steps` and evaluated there, else None."""
    path = workdir / "ledger.json"
    if not path.exists() or not eval_path(workdir, steps).exists():
        return None
    ledger = read_json(path)
    whole = ledger.get("finished") is True and isinstance(ledger.get("seconds"), int | float)
    return ledger if whole and ledger.get("step") == steps else None


def has_diverged(workdir: Path) -> bool:
    """Tells whether the last start of a run ended with a loss that is not finite."""
    return (workdir / DIVERGED).exists()


def note_divergence(workdir: Path, message: str) -> None:
    """Leaves a note, for those who would start the run again."""
    write_whole(workdir / DIVERGED, json.dumps({"error": message}) + "\n")


def refuse_diverged(workdir: Path) -> None:
    """Raises DivergedError if the last start of the run ended so; says what that one said."""
    if has_diverged(workdir):
        raise DivergedError(read_json(workdir / DIVERGED).get("error"))


def eval_path(workdir: Path, step: int) -> Path:
    """Returns where the evaluation of a step is kept."""
    return workdir / "eval" / f"{step}.json"


def items_path(workdir: Path, step: int) -> Path:
    """Returns where the scores of single items of the evaluation of a step are kept."""
    return workdir / "eval" / f"{step}.items.json"
