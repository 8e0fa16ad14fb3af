"""Flows from the command line: on the Prefect server of the environment, or on one of our own while they run.

What an evaluation needs beside the command, a server and what workers load, starts before the command has loaded
itself: only what that takes is imported here at once.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from congruence.flows.cli.options import explaining
from congruence.tasks.dask.workers import load_for_workers
from congruence.tasks.runtime.errors import ClusterError, SettingsError, require_database
from congruence.tasks.runtime.files import tracking_uri, whole_file

if TYPE_CHECKING:
    from congruence.tasks.evaluate.plan import VersionOutcome
    from congruence.tasks.settings.evaluation import EvaluationSettings


def run_evaluation(settings: EvaluationSettings, *, again: bool = False) -> list[VersionOutcome]:
    """The outcomes of an evaluation: of the flow, unless everything that it would do is done already.

    Raises:
        CongruenceError: settings, data or models that cannot be evaluated; what the files' first rows show, and an
            encoder that cannot be loaded, before a server is waited for.
    """
    from congruence.tasks.data.ingest import require_columns
    from congruence.tasks.encoders.loading import asking_encoder
    from congruence.tasks.evaluate.plan import Plan

    plan = Plan(settings, again=again)
    if (found := plan.outcomes()) is not None:
        return found
    with server_on_its_way() as server, explaining():
        load_for_workers_of(plan.settings)
        for split in plan.settings.all_splits:
            require_columns(split)
        if settings.encoder.kind != "identity":  # kept in this process, which asks it for its names
            asking_encoder(settings.encoder)
        _load_flows()
        from congruence.flows.evaluate import OnDemand, evaluate

        with OnDemand(plan.settings) as cluster:
            if server is not None:  # which has seconds to go: the workers start beside it
                cluster()
            with session():
                return evaluate(plan, cluster=cluster)


@contextmanager
def beginning_early(settings: EvaluationSettings) -> Iterator[None]:
    """What an evaluation needs beside the command starts before the command has loaded itself, where it is needed.

    It is for the first evaluation in a home folder; later ones may find that everything is done already.
    """
    store = settings.tracking.uri or tracking_uri(settings.home_folder)
    is_there = not store.startswith("sqlite:///") or Path(store.removeprefix("sqlite:///")).exists()
    if settings.plans_folder.exists() or not is_there:
        yield
        return
    load_for_workers_of(settings)
    with server_on_its_way():
        yield


def load_for_workers_of(settings: EvaluationSettings) -> None:
    """Have what the workers of an evaluation need loaded beside this process, where they are forks."""
    if settings.cluster.kind == "local":
        load_for_workers(pictures=settings.encoder.kind in ("open_clip", "open_clip_text", "timm"))


REFUSED_SECONDS = 10.0
_SAID_AFTER_SECONDS, _START_SECONDS, _END_SECONDS = 20.0, 180.0, 5.0
_DRAIN_SECONDS = 5.0
_API = "PREFECT_API_URL"
_PROGRAM = """
import gc, os, sys, threading
gc.set_threshold(100_000)  # what loading makes stays
# The command holds the other end of standard input: its end, even by SIGKILL, is this process's.
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
import uvicorn
uvicorn.main()
"""
_OPTIONS = ("--factory", "prefect.server.api.server:create_app", "--host", "127.0.0.1", "--log-level", "error")
_ENVIRONMENT = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "0",
}
"""Neither pages nor services, as in Prefect's own servers of this kind, nor reports to its makers."""


@contextmanager
def session() -> Iterator[None]:
    """Flows inside run on the Prefect server that the environment or Prefect's profile names, else on one of our own.

    Our own listens on loopback alone, keeps its database and its log in PREFECT_HOME, and ends with this process.

    Raises:
        SettingsError: the server that was named is not there.
        SurroundingsError: the database of our own is damaged.
        ClusterError: our own server did not start, or was lost.
    """
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    # Explained inside as well: the server's address is known there, and how it ended.
    with explaining(), server_on_its_way() as started:
        if started is None:
            require_server(PREFECT_API_URL.value())
        _load_flows()
        from congruence.flows.evaluate import alone, explain_in_logs

        explain_in_logs(told_by_a_command=True)
        if started is None:
            yield
            return
        server, url = started
        _await(server, url)
        # A run that ends with its server needs no heartbeats, whose thread would be waited for at its end: a second.
        ours = {PREFECT_API_URL: url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
        with temporary_settings(ours), alone(), explaining():
            try:
                yield
            except Exception:  # also what the flow said of its failure; a signal is not held up by it
                _send_what_is_queued()
                raise
            _send_what_is_queued()


def _load_flows() -> None:
    """What loading makes stays, so the collector need not look through it again and again: a sixth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        import congruence.flows.evaluate  # noqa: F401
    finally:
        if collects:
            gc.enable()


_Started = tuple[subprocess.Popen[bytes], str]
_started: ContextVar[_Started | None] = ContextVar("_started", default=None)


@contextmanager
def server_on_its_way() -> Iterator[_Started | None]:
    """A server of our own and its address, which starts beside what is done inside; flows inside wait for it.

    None where the environment or Prefect's profile names a server.

    Raises:
        SurroundingsError: the database of our own is damaged.
    """
    if _started.get() is not None or _is_server_named():
        yield _started.get()
        return
    _prepare_database()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with _process(port) as server:
        token = _started.set((server, f"http://127.0.0.1:{port}/api"))
        try:
            yield _started.get()
        finally:
            _started.reset(token)


def _is_server_named() -> bool:
    """Whether Prefect knows a server: it is asked, which takes a second, where anything says something to it.

    Where it is loaded it is asked at once: a flow of somebody's own has its settings in a context, too.
    """
    said = any(os.environ.get(f"PREFECT_{name}") for name in ("API_URL", "PROFILE", "PROFILES_PATH"))
    said = said or "prefect.settings" in sys.modules
    files = {_home() / "profiles.toml": b"", Path("prefect.toml"): b"", Path(".env"): b"PREFECT_"}
    files[Path("pyproject.toml")] = b"[tool.prefect"
    if not said and not any(path.is_file() and word in path.read_bytes() for path, word in files.items()):
        return False
    from prefect.settings import PREFECT_API_URL

    return bool(PREFECT_API_URL.value())


@contextmanager
def _process(port: int) -> Iterator[subprocess.Popen[bytes]]:
    _home().mkdir(parents=True, exist_ok=True)
    with _log().open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *_OPTIONS, "--port", str(port)],
            env=os.environ | _ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    try:
        yield server
    finally:
        server.terminate()
        try:
            server.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


def _await(server: subprocess.Popen[bytes], url: str) -> None:
    started, is_said = time.monotonic(), False
    while _refusal(url) is not None:
        waited = time.monotonic() - started
        if server.poll() is not None or waited > _START_SECONDS:
            raise ClusterError(
                f"the embedded Prefect server did not start; see {_log()}; its files are in {_home()}: move them away "
                f"if they are damaged, or set {_API} to a server of yours"
            )
        if waited > _SAID_AFTER_SECONDS and not is_said:
            from congruence.flows.cli.console import say

            say("The embedded Prefect server is slow to start because the machine is busy; still waiting.")
            is_said = True
        time.sleep(0.05)


def require_server(url: str) -> None:
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
    except urllib.error.HTTPError as error:
        return "404 Not Found; its address ends in /api" if error.code == 404 else None
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


def _prepare_database() -> None:
    """Make the database of a server of our own, where there is none yet; one that the environment names is Prefect's.

    Raises:
        SurroundingsError: says what is wrong with the one that is there.
    """
    if not any(os.environ.get(f"PREFECT_{kind}_DATABASE_CONNECTION_URL") for kind in ("API", "SERVER")):
        require_database(_home() / "prefect.db", "the embedded Prefect server's")
        make_database(_home() / "prefect.db")


def make_database(path: Path) -> None:
    """Make Prefect's tables in a file that is not there yet: its 180 migrations, one after the other, take 15 s.

    They are those of ``infra/prefect_tables.py``. A newer Prefect adds what it has beside them, as to any older
    database; an older one, which does not know them, is left to make its own.
    """
    tables = Path(__file__).with_name("prefect_tables.sql").read_text()
    newest = tables.partition('INSERT INTO "alembic_version" VALUES(\'')[2].partition("'")[0]
    prefect = find_spec("prefect")  # which takes a second to import
    migrations = Path(str(prefect and prefect.origin)).parent / "server/database/_migrations/versions/sqlite"
    if path.exists() or not any(migrations.glob(f"*_{newest}_*.py")):
        return
    with closing(sqlite3.connect(":memory:")) as database, whole_file(path, replace=False) as stream:
        database.executescript(tables)
        stream.write(database.serialize())


def _home() -> Path:
    return Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()


def _log() -> Path:
    return _home() / "server.log"
