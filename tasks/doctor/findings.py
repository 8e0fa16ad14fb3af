"""Checks side by side, each within its time; whatever one of them meets becomes a line for people."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from congruence.kernels.errors import CongruenceError
from congruence.kernels.masking import mask_text
from congruence.tasks.runtime.io_errors import trouble

Level = Literal["ok", "warning", "wrong"]
_DEFECT = "if the message does not say what to fix, run again with --debug for the traceback"
_LONGEST = 400


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, what was found, and how to fix it; without secrets.

    Attributes:
        place: what was looked at.
        level: ``ok``; ``warning`` where evaluations run but may fail, or not as well; ``wrong`` where they cannot.
        said: what was found.
        remedy: how to fix it; empty where nothing needs fixing.
    """

    place: str
    level: Level
    said: str
    remedy: str = ""

    def __post_init__(self) -> None:
        for name in ("place", "said", "remedy"):
            object.__setattr__(self, name, " ".join(mask_text(getattr(self, name)).split()))


def fine(place: str, said: str) -> Finding:
    """Nothing needs fixing."""
    return Finding(place, "ok", said)


def warning(place: str, said: str, remedy: str) -> Finding:
    """Evaluations run, but may fail later or not be as good."""
    return Finding(place, "warning", said, remedy)


def wrong(place: str, said: str, remedy: str) -> Finding:
    """Evaluations cannot run like this."""
    return Finding(place, "wrong", said, remedy)


@dataclass(frozen=True)
class Step:
    """What a check does next, and what to do where that fails or never ends."""

    doing: str
    remedy: str


Look = Callable[[], Iterator[Finding | Step]]


@dataclass(frozen=True)
class Check:
    """A place to look at; ``look`` gives what it finds, and before what may fail or last, the ``Step`` that it is."""

    place: str
    look: Look = field(repr=False)
    seconds: float = 15.0


def examine(checks: Sequence[Check], *, debug: bool = False) -> Iterator[Finding]:
    """What the checks find, in their order, as soon as it is known; they run side by side.

    A check that raises, or is not ready after its ``seconds``, ends with a line that is ``wrong`` and names its step;
    what it found before stands.

    Args:
        checks: what to look at.
        debug: show the tracebacks of checks that raise on standard error.
    """
    running = [_Running(check, debug) for check in checks]
    for each in running:
        yield from each.findings()


class _Running:
    def __init__(self, check: Check, debug: bool) -> None:
        self._check, self._debug = check, debug
        self._found: list[Finding] = []
        self._step = Step("looking", _DEFECT)
        self._ready = threading.Event()
        self._until = time.monotonic() + check.seconds
        # A thread that hangs must not hold the process at its end.
        threading.Thread(target=self._run, name=f"doctor {check.place}", daemon=True).start()

    def findings(self) -> list[Finding]:
        """Everything found in time."""
        in_time = self._ready.wait(max(0.0, self._until - time.monotonic()))
        found = list(self._found)
        if not in_time:
            said = f"{self._step.doing}: nothing came within {self._check.seconds:.0f} s"
            found.append(wrong(self._check.place, said, self._step.remedy))
        return found

    def _run(self) -> None:
        try:
            for item in self._check.look():
                if isinstance(item, Step):
                    self._step = item
                else:
                    self._found.append(item)
        except Exception as error:
            if self._debug:
                print(mask_text("".join(traceback.format_exception(error))), file=sys.stderr)
            self._found.append(self._told(error))
        self._ready.set()

    def _told(self, error: Exception) -> Finding:
        message = str(error) if isinstance(error, CongruenceError) else trouble(error)
        if message is not None:  # our own messages have the remedy in them
            return Finding(self._check.place, "wrong", f"{self._step.doing}: {message}")
        text = str(error).strip()
        first = f"{type(error).__name__}: {text.splitlines()[0][:_LONGEST]}" if text else type(error).__name__
        return wrong(self._check.place, f"{self._step.doing}: {first}", self._step.remedy)
