"""Servers whose life is tied to the process that started them, however that one ends.

`python tied.py COMMAND ...` runs the command in a group of its own and ends the whole group when it is told to, or when
its standard input closes: the other end is held by the process that started it, and a SIGKILL closes that as well. A
server that starts processes of its own (MLflow's does) leaves none behind.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

_LOOK_SECONDS = 0.2
_GRACE_SECONDS = 5.0


def start_tied(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    *,
    files: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start ``command``; it ends with this process, or with ``end`` of what is returned.

    Args:
        command: the program and its arguments.
        environment: by default this process's.
        output: where both of its streams go; by default where this process's go.
        files: open file descriptors that it is handed, under the same numbers.
    """
    return subprocess.Popen(
        [sys.executable, "-I", __file__, *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        env=dict(environment) if environment is not None else None,
        pass_fds=files,
    )


def end(server: subprocess.Popen[bytes]) -> int:
    """End a server that ``start_tied`` started, and everything that it started; returns its exit status."""
    if server.stdin is not None:
        server.stdin.close()
    server.terminate()
    return server.wait()


def main(command: Sequence[str]) -> int:
    """Run ``command`` until it ends, this process is told to end, or standard input closes."""
    told: list[int] = []
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda number, _frame: told.append(number))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, close_fds=False)
    watched: list[int] = [sys.stdin.fileno()]
    while child.poll() is None and not told:
        readable, _, _ = select.select(watched, [], [], _LOOK_SECONDS)
        if readable and not os.read(watched[0], 1024):
            break
    status = child.poll()
    _end_group(child)
    return status if status is not None else 128 + (told[0] if told else signal.SIGTERM)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Ask the group to end, and end what has not after a while."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(_GRACE_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
