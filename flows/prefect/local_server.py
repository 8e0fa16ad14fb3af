"""The Prefect server of a run that nobody gave one: started for it, and ended with it, however it ends."""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import IO

import psutil

from congruence.flows.cli.console import say
from congruence.flows.prefect.tied import end, start_tied
from congruence.kernels.collector import collector_paused
from congruence.tasks.runtime.errors import ClusterError, SettingsError
from congruence.tasks.runtime.io_errors import SurroundingsError, require_database

LONGEST_STANDSTILL_SECONDS = 300.0
REFUSED_SECONDS = 10.0
_MOST_STARTS = 4
_BACKLOG = 512
_EPHEMERAL = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
_SAID_AFTER_SECONDS = 20.0
_LOOK_SECONDS = 0.1
_DRAIN_SECONDS = 5.0
_API = "PREFECT_API_URL"


@contextmanager
def prefect_server() -> Iterator[None]:
    """Flows inside run on the Prefect server that the environment or Prefect's profile names, else on one of our own.

    Our own listens on loopback alone and keeps its database in PREFECT_HOME. Dask's worker processes share it.

    Raises:
        SettingsError: the server that was named is not there.
        ClusterError: our own server ended while it started, or stood still while it started.
    """
    from prefect.settings import PREFECT_API_URL, temporary_settings

    if given := PREFECT_API_URL.value():
        _require(given)
        yield
        return
    _set_aside_damage()
    with tempfile.TemporaryFile() as output, socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        embedded = _Embedded(listener, output)
        try:
            _load()
            _await(embedded.server, url, output)
            os.environ[_API] = url
            with temporary_settings({PREFECT_API_URL: url}), embedded.kept():
                yield
        finally:
            _send_what_is_queued()
            os.environ.pop(_API, None)
            end(embedded.server)


class _Embedded:
    """A server of our own, which is started again where it ends before it is told to.

    Its database keeps what it knew, and the listening socket is ours: what asks while no server is there waits in the
    socket's queue instead of being refused.
    """

    def __init__(self, listener: socket.socket, output: IO[bytes]) -> None:
        self._listener, self._output = listener, output
        self._stopped = threading.Event()
        self._starts = 0
        self.server = self._start()

    def _start(self) -> Popen[bytes]:
        self._starts += 1
        file = self._listener.fileno()
        # As Prefect itself starts one for a flow without a server.
        application = ["--factory", "prefect.server.api.server:create_app", "--fd", str(file)]
        command = [sys.executable, "-m", "uvicorn", *application, "--log-level", "error", "--lifespan", "on"]
        return start_tied(command, {**os.environ, **_EPHEMERAL}, self._output, files=[file])

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps it alive."""
        keeper = threading.Thread(target=self._keep, name="congruence-prefect-server", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            self._stopped.set()
            keeper.join()

    def _keep(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            if self.server.poll() is None:
                continue
            said = f"the embedded Prefect server ended (status {self.server.returncode}: {_last(self._output)})"
            if self._starts == _MOST_STARTS:
                say(f"{said} for the {self._starts}th time and is given up; {damaged_files()}")
                self._listener.close()  # whoever asks is refused at once
                return
            say(f"{said}; it is started again")
            self.server = self._start()


def _load() -> None:
    """Load what a flow needs while the server starts: each takes seconds.

    What loading makes stays, so the collector need not look through it again and again: that is a sixth of the time.
    """
    with collector_paused():
        import congruence.flows.evaluation.pipeline  # noqa: F401


def _require(url: str) -> None:
    """Refuse, before any work, a Prefect server that is not there: refused is not slow.

    Raises:
        SettingsError: nothing has listened at ``url`` for REFUSED_SECONDS, or there is no such host.
    """
    started = time.monotonic()
    while (why := _refusal(url)) is not None:
        if time.monotonic() - started > REFUSED_SECONDS:
            raise SettingsError(
                f"{_API}: no Prefect server listens at {url} ({why}); start one (`prefect server start`), correct the "
                "address, or unset it: then one of our own is started"
            )
        time.sleep(0.5)


def _refusal(url: str) -> str | None:
    try:
        urllib.request.urlopen(f"{url}/health", timeout=5.0).close()
    except urllib.error.HTTPError:
        return None
    except urllib.error.URLError as error:
        if isinstance(error.reason, (ConnectionRefusedError, socket.gaierror)):
            return str(error.reason.strerror)
    except (OSError, ValueError):  # slow, or spoken to in another way: Prefect's own client says more
        pass
    return None


def _send_what_is_queued() -> None:
    """Logs and events go to the server from threads of their own: it must not end before they are there."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        for handler in logging.getLogger(name).handlers:
            handler.flush()
    from prefect.events.worker import EventsWorker

    EventsWorker.drain_all(timeout=_DRAIN_SECONDS)


def _await(server: Popen[bytes], url: str, output: IO[bytes]) -> None:
    """Return once the server answers: for as long as it lives it is starting, which a busy machine makes slow."""
    started = moved = time.monotonic()
    spent, said = 0.0, False
    while not _answers(url):
        now = time.monotonic()
        if server.poll() is not None:
            raise ClusterError(
                f"the embedded Prefect server ended while it started (status {server.returncode}): {_last(output)}; "
                f"{damaged_files()}"
            )
        if (used := _cpu_seconds(server.pid)) > spent + 0.05:
            moved, spent = now, used
        if now - moved > LONGEST_STANDSTILL_SECONDS:
            raise ClusterError(
                f"the embedded Prefect server has not answered for {now - started:.0f} s, and has done nothing for "
                f"{now - moved:.0f} s; {_last(output)}; {damaged_files()}"
            )
        if now - started > _SAID_AFTER_SECONDS and not said:
            say("the embedded Prefect server is slow to start, the machine is busy; still waiting")
            said = True
        time.sleep(_LOOK_SECONDS)


def _cpu_seconds(pid: int) -> float:
    """What a process and those that it started have computed so far."""
    found = 0.0
    with suppress(psutil.Error):
        for process in (own := psutil.Process(pid), *own.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                found += times.user + times.system
    return found


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _last(output: IO[bytes]) -> str:
    """The last line that the server wrote, which says most."""
    output.seek(0)
    lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it said nothing"


def _set_aside_damage() -> None:
    """Put a damaged database of our own server out of the way: it holds past runs' pages, no results."""
    if any(os.environ.get(f"PREFECT_{kind}_DATABASE_CONNECTION_URL") for kind in ("API", "SERVER")):
        return
    database = _home() / "prefect.db"
    try:
        require_database(database, "the embedded Prefect server's")
    except SurroundingsError as error:
        aside = database.with_name(f"prefect.db.damaged-{time.time():.0f}")
        say(f"{str(error).partition(';')[0]}; moved to {aside.name}, a new one is begun, without past runs' pages")
        for ending in ("-wal", "-shm"):
            database.with_name(f"prefect.db{ending}").unlink(missing_ok=True)
        database.rename(aside)


def damaged_files() -> str:
    """What to do about a server of our own that does not stay."""
    return f"its files are in {_home()}: move them away if they are damaged, or set {_API} to a server of yours"


def _home() -> Path:
    return Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
