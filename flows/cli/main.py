"""Where the `congruence` command starts: what is missing is said before anything is loaded, and signals end it."""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from types import FrameType

END_SECONDS = 4.0
"""How long ``finally`` and ``except`` may take: marking runs as failed in an MLflow that hangs would last minutes."""


_once = threading.Lock()


class Stopped(KeyboardInterrupt):
    """A signal that asks the command to end; raised in the main thread, once."""


@contextmanager
def ended_by_signals(said: str) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the body by ``Stopped``, and the process with status 128 + the signal's number.

    A thread is told of a signal at once, also where the main thread computes, or where a library has put a handler of
    its own in place of ours. It says that the command was stopped, gives the body ``END_SECONDS`` (or until a second
    signal), kills what this process started and ends it.

    Args:
        said: follows "Stopped by SIGTERM." and the like, for the person who stopped the command.
    """
    # What nohup, or a shell that starts a job in the background, has switched off stays off.
    stops = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        for each in stops:
            if signal.getsignal(each) is interrupt:  # a second one must not cut off the first one's ``finally``
                signal.signal(each, lambda *_: None)
        _say(number, said)
        raise Stopped(f"Stopped by {signal.Signals(number).name}.")

    for number in stops:
        signal.signal(number, interrupt)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reader, stops, said), name="signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.write(writer, b"\0")  # the watcher returns, or ends this process
        watcher.join()
        for number in stops:
            signal.signal(number, signal.SIG_DFL)


def _watch(reader: int, stops: list[signal.Signals], said: str) -> None:
    while (number := os.read(reader, 1)[0]) not in stops:
        if number == 0:
            return
    _say(number, said)
    select.select([reader], [], [], END_SECONDS)
    _kill_children()
    os._exit(128 + number)


def _say(number: int, said: str) -> None:
    """The last line on standard error: what the end of Dask, Prefect and MLflow has libraries say goes nowhere."""
    if not _once.acquire(blocking=False):
        return
    line = sentence = f"Stopped by {signal.Signals(number).name}. {said}".rstrip()
    if os.environ.get("CONGRUENCE_LOG") == "json":
        now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        line = json.dumps({"time": now, "level": "error", "logger": "congruence", "message": sentence})
    elif os.isatty(2):
        line = f"\x1b[?25h\r\n{sentence}"  # a progress bar hides the cursor, and ends in no new line
    with suppress(OSError):  # nobody reads it any more
        os.write(2, f"{line}\n".encode())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _kill_children() -> None:
    import psutil  # a command that nobody stops does without

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()


NEEDED = ("typer", "prefect", "dask", "distributed", "mlflow", "zarr")
RESUME = "Finished work is saved; run the same command to resume."
_SERVERS = {"ui": "", "receive": "", "serve": "Runs that were under way are resumed by the next one."}


def main() -> None:
    """Run the command line, or say in one sentence what is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(
            f"congruence: the command needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed; run: pip install 'congruence[pipeline]' (congruence.kernels works without)"
        )
    # What is loaded stays: looking through it again and again, and at the end, is a fifth of a short command.
    gc.set_threshold(50_000)
    atexit.register(gc.disable)
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    with ended_by_signals(_SERVERS.get(command, RESUME)):
        from congruence.flows.cli.app import app

        app()


if __name__ == "__main__":
    main()
