"""Where a command speaks to the person who runs it: standard error, so that standard output is the result alone."""

from __future__ import annotations

import logging
import sys
import time

from rich.console import Console

from congruence.tasks.runtime.json_logging import LOGGER, is_json

LOG_WIDTH = 160
"""Characters of a line where standard output is no terminal."""

console = Console(stderr=True, highlight=False)


def results() -> Console:
    """Where results are printed: as wide as the terminal, or as a line of a log."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)


_last_said = time.monotonic()


def seconds_of_silence() -> float:
    """Since the last line of ``say``."""
    return time.monotonic() - _last_said


def say(line: str) -> None:
    """Show a line among the stages. (A flow that names the console itself could not be sent to a worker.)"""
    global _last_said
    _last_said = time.monotonic()
    if is_json():
        logging.getLogger(LOGGER).info("%s", line)
    else:
        console.print(line, soft_wrap=True, markup=False)
