"""Processes that end with the one that started them, however that one ends (Linux).

`python tether.py PARENT SIGNAL USER COMMAND ...` becomes the command: it runs as the user ("-": as who starts it) and
is sent the signal by the kernel as soon as the thread that started it is gone, which a SIGKILL brings about as well
(prctl(2), PR_SET_PDEATHSIG). What such a process leaves behind falls to whoever called ``adopt_orphans`` above it.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

_PDEATHSIG, _CHILD_SUBREAPER = 1, 36
_LOOK_SECONDS = 0.05


def tethered(command: Sequence[str], number: signal.Signals, user: str | None = None) -> list[str]:
    """The command to start in place of ``command`` so that it gets ``number`` when the calling thread ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(number)), user or "-", *command]


def tie_to(parent: int, number: int) -> None:
    """Have the kernel send this process ``number`` when its parent ends; at once where ``parent`` has ended already."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """From now on, processes below this one whose parent ends become its children, not those of process 1."""
    if ctypes.CDLL(None, use_errno=True).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def descendants(pid: int) -> list[int]:
    """Every living process below ``pid``."""
    import psutil

    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process.pid for process in found if is_alive(process.pid)]


def adopted(warden: int, supervisor: int) -> list[int]:
    """The processes that ``warden`` has taken over from parents that ended, with what they started."""
    import psutil

    try:
        children = psutil.Process(warden).children()
    except psutil.NoSuchProcess:
        return []
    taken = [child.pid for child in children if child.pid != supervisor and is_alive(child.pid)]
    return [*taken, *(pid for each in taken for pid in descendants(each))]


def is_alive(pid: int) -> bool:
    """Whether the process is there and not only waited for."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def end_processes(pids: Iterable[int], grace: float) -> None:
    """Ask processes to end, and kill those that live after ``grace`` seconds."""
    left = [pid for pid in pids if is_alive(pid)]
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        limit = time.monotonic() + seconds
        while left and time.monotonic() < limit:
            left = [pid for pid in left if is_alive(pid)]
            time.sleep(_LOOK_SECONDS if left else 0.0)


def _become(parent: str, number: str, user: str, *command: str) -> None:
    if user != "-":
        account = pwd.getpwnam(user)
        os.initgroups(user, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    for ignored in (signal.SIGINT, signal.SIGHUP):  # by who starts it, which would be inherited
        signal.signal(ignored, signal.SIG_DFL)
    tie_to(int(parent), int(number))  # after the change of user, which takes the signal off
    os.execvp(command[0], command)


if __name__ == "__main__":
    _become(*sys.argv[1:])
