"""The Prefect server of a run that nobody gave one: started for it, and ended with it, however it ends."""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import IO

from congruence.flows.console import say
from congruence.flows.tied import end, start_tied
from congruence.tasks.errors import ClusterError

LONGEST_START_SECONDS = 600.0
_SAID_AFTER_SECONDS = 20.0
_LOOK_SECONDS = 0.1
_DRAIN_SECONDS = 5.0
_API = "PREFECT_API_URL"


@contextmanager
def prefect_server() -> Iterator[None]:
    """Flows inside run on the Prefect server that the environment or Prefect's profile names, else on one of our own.

    Our own listens on loopback alone and keeps its database in PREFECT_HOME. Dask's worker processes share it.

    Raises:
        ClusterError: our own server ended while it started, or did not answer for ten minutes.
    """
    from prefect.settings import PREFECT_API_URL, temporary_settings

    if PREFECT_API_URL.value():
        yield
        return
    port = _free_port()
    url = f"http://127.0.0.1:{port}/api"
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        server = start_tied([*command, "--no-ui"], os.environ, output)
        try:
            # What a flow needs is loaded while the server starts: each takes seconds.
            import congruence.flows.evaluate  # noqa: F401

            _await(server, url, output)
            os.environ[_API] = url
            with temporary_settings({PREFECT_API_URL: url}):
                yield
        finally:
            _send_what_is_queued()
            os.environ.pop(_API, None)
            end(server)


def _send_what_is_queued() -> None:
    """Logs and events go to the server from threads of their own: it must not end before they are there."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        for handler in logging.getLogger(name).handlers:
            handler.flush()
    from prefect.events.worker import EventsWorker

    EventsWorker.drain_all(timeout=_DRAIN_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await(server: Popen[bytes], url: str, output: IO[bytes]) -> None:
    """Return once the server answers: for as long as it lives it is starting, which a busy machine makes slow."""
    started, said = time.monotonic(), False
    while not _answers(url):
        waited = time.monotonic() - started
        if server.poll() is not None:
            raise ClusterError(
                f"the embedded Prefect server ended while it started (status {server.returncode}): {_last(output)}; "
                f"its files are in {_home()}: move them away if they are damaged, or set {_API} to a server of yours"
            )
        if waited > LONGEST_START_SECONDS:
            raise ClusterError(
                f"the embedded Prefect server has not answered for {waited:.0f} s; run again on a machine that is less "
                f"busy, or set {_API} to a server of yours"
            )
        if waited > _SAID_AFTER_SECONDS and not said:
            say("the embedded Prefect server is slow to start, the machine is busy; still waiting")
            said = True
        time.sleep(_LOOK_SECONDS)


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


def _home() -> Path:
    return Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
