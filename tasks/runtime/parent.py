"""The small parent of every command: it waits for signals and ends the whole tree, so that the work handles none.

A command is two parents and the work. Each parent blocks its signals and waits in ``sigwait``: no handler runs, and no
exception comes between two instructions. On a signal, or when the work is killed, it kills every process below it,
says one sentence, and has the runs of the journal marked as ended. There are two of them so that a SIGKILL of any one
process leaves nothing behind: the first ends with its terminal, and the second outlives it to clear up.

The standard library alone, so that it waits within milliseconds; also as process 1 of a container.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

MARK_SECONDS = 10.0
END_SECONDS = 5.0
RESUME = "Finished work is saved; run the same command to resume."
_LACKS_MEMORY = "most often the machine or the container ran out of memory"
_PDEATHSIG, _SUBREAPER = 1, 36
_LOOK_SECONDS = 0.01

Marking = Callable[[Path, str], object]

_shared: mmap.mmap | None = None


def run_under_parent(mark: Marking, said: str = RESUME) -> None:
    """Return in a child that is to do the work; the calling process waits for that, and exits with its status.

    The child has a session of its own, so that Ctrl-C reaches the parent alone; its streams are the terminal's. To be
    called before any thread is started.

    Args:
        mark: marks what the journals in a folder say is open, with the reason; called in a process of its own where the
            command was stopped or killed, for ten seconds at most.
        said: follows "Stopped by SIGTERM." and the like, for the person who stopped the command.
    """
    global _shared
    _shared = mmap.mmap(-1, 4096)
    # What nohup, or a shell that starts a job in the background, has switched off stays off.
    stops = {n for n in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN} | {signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops | {signal.SIGCHLD})
    first = os.getpid()
    for last_word in (signal.SIGTERM, signal.SIGKILL):
        parent = os.getpid()
        _prctl(_SUBREAPER, 1)
        child = os.fork()
        if child:
            _wait(child, stops, said, mark, above=None if parent == first else first)
        os.setsid()
        end_with(parent, last_word)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have this process, and not those that it starts, be sent a signal when its parent ends."""
    _prctl(_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def mark_from(folder: Path) -> None:
    """Tell the parents, if there are any, in which folder the journal is."""
    if _shared is not None:
        _shared[:] = str(folder).encode().ljust(len(_shared), b"\0")


def _wait(child: int, stops: set[signal.Signals], said: str, mark: Marking, *, above: int | None) -> NoReturn:
    """Until ``child`` ends, a signal comes or the parent ``above`` has ended; then end this process."""
    while True:
        number = signal.sigwait(stops | {signal.SIGCHLD})
        if number != signal.SIGCHLD:
            break
        status = _reap(child)
        if status is not None and status >= 0:
            _end_tree()
            os._exit(status)
        if status is not None:
            number = signal.Signals(-status)
            break
    is_above = above is None or os.getppid() == above
    _end_tree()
    reason = f"Stopped by {signal.Signals(number).name}. {said}"
    if number not in stops or not is_above:
        name = signal.Signals(number).name if is_above else "SIGKILL"
        reason = f"The command was killed ({name}); {_LACKS_MEMORY}. {RESUME}"
    if is_above:  # else the first parent was killed, and the terminal has moved on
        _say(reason)
    _mark(reason, stops, mark)
    os._exit(128 + number)


def _reap(child: int) -> int | None:
    """Take leave of all that has ended; the status of ``child`` if it is among them, negative for a signal."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = os.waitstatus_to_exitcode(status)


def _end_tree() -> None:
    """Kill every process below this one: what an ended one leaves comes to this process, which is asked for."""
    limit = time.monotonic() + END_SECONDS
    while time.monotonic() < limit:
        for pid in _below(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(_LOOK_SECONDS)


def _below(root: int) -> Iterator[int]:
    """The processes that ``root`` started, theirs, and so on; parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:
        yield pid
        found += children.get(pid, ())


def _processes() -> Iterator[tuple[int, int]]:
    """Every process with its parent."""
    if not os.path.exists("/proc/self/stat"):
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
        yield from ((int(pid), int(parent)) for pid, parent in map(str.split, listed.splitlines()))
        return
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    yield int(name), int(file.read().rpartition(b")")[2].split()[1])
            except OSError:  # it has ended meanwhile
                continue


def _mark(reason: str, stops: set[signal.Signals], mark: Marking) -> None:
    """Mark what is open in MLflow and Prefect, for ten seconds at most, or until a second signal."""
    assert _shared is not None
    folder = bytes(_shared).rstrip(b"\0").decode()
    if not folder:
        return
    marking = os.fork()
    if marking == 0:
        try:
            mark(Path(folder), reason)
        finally:
            os._exit(0)
    limit = time.monotonic() + MARK_SECONDS
    while os.waitpid(marking, os.WNOHANG)[0] == 0:
        if time.monotonic() > limit or signal.sigpending() & stops:
            _end_tree()
            return
        time.sleep(_LOOK_SECONDS)


def _say(sentence: str) -> None:
    line = sentence
    if os.environ.get("CONGRUENCE_LOG") == "json":
        now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        line = json.dumps({"time": now, "level": "error", "logger": "congruence", "message": sentence})
    elif os.isatty(2):
        line = f"\x1b[?25h\r\n{sentence}"  # a progress bar hides the cursor, and ends in no new line
    try:
        os.write(2, f"{line}\n".encode())
    except OSError:  # nobody reads it any more
        return


def _prctl(option: int, value: int) -> None:
    """Linux's; other systems have no counterpart, and do without."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
