"""Two processes watch over a stack: whichever of them is killed, nothing of it is left.

The warden is a few lines and adopts what loses its parent; the supervisor, its child, keeps the parts. Where the
supervisor ends, however it does, the warden ends everything below itself. Where the warden is killed, the kernel tells
the supervisor, which ends the parts in order. Where both are killed at once, the kernel tells each part.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType

from congruence.tasks.stack.tether import adopt_orphans, descendants, end_processes, tie_to

_GRACE_SECONDS = 10.0


def under_a_warden(supervise: Callable[[], None]) -> int:
    """Run ``supervise`` in a forked process, which SIGTERM asks to end, and leave nothing of it; its exit status.

    Ctrl-C and SIGTERM to this process are passed on as SIGTERM, once each.
    """
    adopt_orphans()
    here = os.getpid()
    child = os.fork()
    if child == 0:
        _run_and_leave(supervise, here)

    def pass_on(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        os.kill(child, signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        while True:
            ended, status = os.waitpid(-1, 0)  # adopted ones, too
            if ended == child:
                return os.waitstatus_to_exitcode(status)
    finally:
        for _ in range(2):  # what was started meanwhile is found by the second look
            end_processes(descendants(here), _GRACE_SECONDS)
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_and_leave(supervise: Callable[[], None], warden: int) -> None:
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both; the warden passes it on
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        tie_to(warden, signal.SIGTERM)
        supervise()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
