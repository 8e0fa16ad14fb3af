"""The Prefect server of a run that nobody gave one: Prefect's own for such runs, started while the flow is loaded."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from congruence.flows.cli.console import say
from congruence.flows.prefect.journal import note_embedded
from congruence.flows.prefect.new_database import new_database
from congruence.tasks.runtime.collector import collector_paused
from congruence.tasks.runtime.errors import ClusterError, SettingsError
from congruence.tasks.runtime.io_errors import require_database
from congruence.tasks.runtime.run_journal import EMBEDDED, journal_folder

REFUSED_SECONDS = 10.0
_SAID_AFTER_SECONDS = 20.0
_DRAIN_SECONDS = 5.0
_API = "PREFECT_API_URL"


@contextmanager
def prefect_server() -> Iterator[None]:
    """Flows inside run on the Prefect server that the environment or Prefect's profile names, else on one of our own.

    Our own listens on loopback alone and keeps its database in PREFECT_HOME. Dask's worker processes share it.

    Raises:
        SettingsError: the server that was named is not there.
        SurroundingsError: the database of our own is damaged.
        ClusterError: our own server did not start.
    """
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_API_URL, temporary_settings

    if given := PREFECT_API_URL.value():
        _require(given)
        yield
        return
    server = SubprocessASGIServer()
    try:
        with _database():
            _start(server.start)
        url = server.api_url
        note_embedded(url)
        os.environ[_API] = url
        with temporary_settings({PREFECT_API_URL: url}):
            _mark_earlier_runs(url)
            yield
            _send_what_is_queued()
    finally:
        os.environ.pop(_API, None)
        server.stop()


def _start(start: Callable[[], None]) -> None:
    """Start the server in a thread while this one loads the flow: each takes seconds.

    What loading makes stays, so the collector need not look through it again and again: that is a sixth of the time.
    """
    failures: list[Exception] = []

    def run() -> None:
        try:
            start()
        except Exception as error:
            failures.append(error)

    starting = threading.Thread(target=run, name="prefect-server", daemon=True)
    starting.start()
    with collector_paused():
        import congruence.flows.evaluation.pipeline  # noqa: F401
    starting.join(_SAID_AFTER_SECONDS)
    if starting.is_alive():
        say("The embedded Prefect server is slow to start because the machine is busy; still waiting.")
        starting.join()
    for error in failures:
        raise ClusterError(
            f"the embedded Prefect server did not start ({error}); its files are in {_home()}: move them away if they "
            f"are damaged, or set {_API} to a server of yours"
        ) from error


def _mark_earlier_runs(url: str) -> None:
    """Killed commands could not mark their flow runs: their server died with them, and this one has its database."""
    folder = journal_folder()
    if folder is not None and any(folder.glob("*.jsonl")):
        from congruence.tasks.runtime.journal_sweep import sweep

        sweep(folder, addresses={EMBEDDED: url})


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


@contextmanager
def _database() -> Iterator[None]:
    """The server starts inside, on a database that is sound or new; one that the environment names is Prefect's alone.

    Raises:
        SurroundingsError: it is damaged.
    """
    if any(os.environ.get(f"PREFECT_{kind}_DATABASE_CONNECTION_URL") for kind in ("API", "SERVER")):
        yield
        return
    database = _home() / "prefect.db"
    require_database(database, "the embedded Prefect server's")
    with new_database(database):
        yield


def _home() -> Path:
    return Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
