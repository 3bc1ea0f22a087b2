"""The two kinds of failure a user meets; runners turn them into exit status 2 and 1."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A flag, a config field or an input file is wrong; the message names it in one line."""


class HeldError(InputError):
    """Another process is training in the run directory."""


class WorkError(RuntimeError):
    """The work itself failed; the message says what was saved and how to go on."""


class DivergedError(WorkError):
    """The loss of a run is not finite, and the same run would only come to that again."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` for the valid name closest to `name`, or an empty string."""
    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""
