"""The progress bar of long work: training, several trainings, files of lines."""

import sys
from typing import Any

from tqdm import tqdm

LOG_SECONDS = 30  # between two states of a bar where stderr is no terminal


def progress_bar(total: int, done: int, unit: str, **options: Any) -> tqdm:
    """Returns a bar on stderr that begins at `done`.

    The time left follows the speed of about the last hundred units, not of the last few. In a log
    the bar is written seldom.
    """
    if not sys.stderr.isatty():
        options = {"mininterval": LOG_SECONDS, "maxinterval": LOG_SECONDS, "miniters": 1} | options
    return tqdm(total=total, initial=done, unit=unit, smoothing=0.02, **options)
