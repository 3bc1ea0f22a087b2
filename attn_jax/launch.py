"""What all runners share: flags, one-line errors, exit status 0, 1 or 2."""

import dataclasses
import glob
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable
from textwrap import shorten
from typing import Any, NoReturn

import jax
from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from attn_jax.compilation_cache import use_compilation_cache
from attn_jax.config import Config, Section, check_types, flatten
from attn_jax.errors import InputError, WorkError, nearest

ALONE = " "  # the value of a flag given as `--name`, which only a bool may be


def run(main: Callable[[], None]) -> None:
    """Parses the flags of a runner and calls its `main`.

    Exit status: 0 on success; 2, with one line on stderr, for wrong flags, config or input; 1, with
    a line that says what was saved, when the work itself fails.
    """
    absl_logging.set_verbosity(absl_logging.ERROR)
    logging.getLogger().setLevel(logging.ERROR)
    app.run(lambda _: _guard(main), flags_parser=_parse_flags)


def config_value(flag: flags.FlagHolder, kind: type[Section] = Section) -> Any:
    """Returns the config of a `config_flags` flag.

    Raises:
      InputError: the file is missing, or does not return a config of this kind.
    """
    if isinstance(flag.value, kind):
        return flag.value
    path = flags.FLAGS["config"].config_filename
    config, problem = _load(path)
    found = f"get_config() returns a {type(config).__name__}, expected a {kind.__name__}"
    hint = "; experiments.compare runs studies" if type(config).__name__ == "Study" else ""
    raise InputError(f"config = {path!r}: {problem or found + hint}")


def define_config(help_text: str) -> flags.FlagHolder:
    """Defines `--config=FILE` and `--config.section.field=value`."""
    try:
        flag = config_flags.DEFINE_config_file("config", None, help_text)
    except Exception as error:  # it looks at the command line at once
        _exit(2, _explain(sys.argv, error))
    # So that --help lists it with the flags of the runner.
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS["config"])
    return flag


def define_changes(help_text: str) -> None:
    """Defines `--config.section.field=value` for a config that does not come from a file."""
    try:
        config_flags.DEFINE_config_dataclass("config", Config(), help_text)
    except Exception as error:
        _exit(2, _explain(sys.argv, error))


def _guard(main: Callable[[], None]) -> None:
    use_compilation_cache()
    try:
        main()
    except InputError as error:
        _exit(2, error)
    except WorkError as error:
        _exit(1, error)
    except KeyboardInterrupt:
        _exit(1, "interrupted; files already written are whole, and the same command goes on")
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        _exit(2, f"{error.filename}: in the way ({error.strerror})")
    except OSError as error:
        _exit(1, f"{error}; files already written are whole, and the same command goes on")
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        full = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
        if not full and "Out of memory" not in str(error):
            raise
        advice = "make the model or batches smaller, in another workdir"
        _exit(1, f"out of memory ({shorten(str(error), 120)}); {advice}")


def _exit(status: int, message: object) -> NoReturn:
    print(f"error: {' '.join(str(message).splitlines())}", file=sys.stderr)
    sys.exit(status)


def _parse_flags(argv: list[str]) -> list[str]:
    try:
        rest = flags.FLAGS(argv)
    except Exception as error:  # whatever a config file raises, too
        _exit(2, _explain(argv, error))
    except SystemExit as error:  # of a config file, or of --help
        path = _given(argv).get("config")
        if path is None or not _load(path)[1]:
            sys.exit(0)
        _exit(2, _explain(argv, error))
    if len(rest) > 1:
        _exit(2, f"{rest[1]!r} is not a flag; flags look like --name=value")
    return rest


def _explain(argv: list[str], error: Exception) -> str:
    """Returns one line that says which flag is wrong, what it is, and what is allowed."""
    given = _given(argv)
    config, problem = _load(given["config"]) if "config" in given else (Config(), "")
    if problem:
        return f"config = {given['config']!r}: {problem}"
    fields = flatten(config)
    for flag, value in given.items():
        section, dot, name = flag.partition(".")
        if section != "config" or not dot:
            continue
        if any(field.startswith(f"{name}.") for field in fields):
            return f"{flag}: is a section; its fields are set one by one, as --{flag}.FIELD=VALUE"
        if name not in fields:
            return f"unknown config field {name!r}{nearest(name, fields)}"
        kind = type(fields[name])
        if not _parses(kind, value):
            return f"{name} = {value!r}: expected {kind.__name__}"
    if isinstance(error, dataclasses.FrozenInstanceError):
        return (
            f"config = {given['config']!r}: get_config() returns a validated config, "
            "which flags cannot change"
        )
    line = str(error).splitlines()[0]
    required = re.match(r"flag --(\w+)=None: .* must have a value other than None", line)
    return f"--{required[1]}=... is required" if required else line


def _given(argv: list[str]) -> dict[str, str]:
    """Returns the flags of `--name=value` and `--name value`."""
    given = {}
    for arg, following in zip(argv[1:], [*argv[2:], ""], strict=True):
        name, equals, value = arg.lstrip("-").partition("=")
        if arg.startswith("-"):
            alone = not following or following.startswith("-")
            given[name] = value if equals else ALONE if alone else following
    return given


def _parses(kind: type, value: str) -> bool:
    if kind is bool:
        return value.lower() in ("true", "false", "1", "0", "t", "f", ALONE)
    try:
        kind(value)
    except (TypeError, ValueError):
        return False
    return True


def _load(path: str) -> tuple[Any, str]:
    """Returns the config of a file and an empty string, or None and what is wrong."""
    if not os.path.isfile(path):
        there = [os.path.basename(found) for found in glob.glob("configs/[!_]*.py")]
        return None, f"no such file{nearest(os.path.basename(path), there)}"
    if not path.endswith(".py"):
        return None, "expected a .py file with a function get_config()"
    try:
        spec = importlib.util.spec_from_file_location("config", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        config = module.get_config()
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    if not isinstance(config, Section):
        return None, "get_config() does not return a config"
    try:
        check_types(config) if isinstance(config, Config) else None
    except InputError as error:
        return None, str(error)
    return config, ""
