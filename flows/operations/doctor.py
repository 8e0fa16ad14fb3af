"""`congruence doctor`: whether versions, servers, store and disks are as an evaluation needs them."""

from __future__ import annotations

import logging
import os
import platform
import secrets
import shutil
import socket
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import requests
import typer

from congruence.flows.cli.options import embed_servers, home_folder
from congruence.kernels.errors import CongruenceError
from congruence.tasks.runtime.errors import SettingsError, mask_text
from congruence.tasks.runtime.files import tracking_uri
from congruence.tasks.settings.evaluation import EvaluationSettings, load_settings
from congruence.tasks.settings.sections import TrackingSettings

Level = Literal["ok", "warning", "wrong"]
_SECONDS, _LONGEST = 20.0, 400
_ON_WORKERS = ["congruence", "mlflow", "pyarrow", "scipy", "zarr"]  # beside those that Dask compares by itself
_LEAST_BYTES, _FEW_BYTES = 64 * 2**20, 2**30
_REMEDIES = {
    "loopback": "add 127.0.0.1,localhost to NO_PROXY",
    "store": "see whether store.uri is right and this user may write, read and delete there",
    "MLflow": "see its log, and correct tracking.uri of the file or MLFLOW_TRACKING_URI",
    "Prefect": "start it (`prefect server start`), correct PREFECT_API_URL, or set PREFECT_API_AUTH_STRING",
    "Dask": "start it (`dask scheduler`), or correct cluster.address and cluster.tls",
}
"""What to do where a check raises or hangs."""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, what was found, and how to fix it; without secrets.

    ``warning`` means that evaluations run but may fail later, ``wrong`` that they cannot run.
    """

    place: str
    level: Level
    said: str
    remedy: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "said", " ".join(mask_text(self.said).split())[:_LONGEST])

    def __str__(self) -> str:
        return f"{self.place}: {self.said}" + (f"; {self.remedy}" if self.remedy else "")


Check = Callable[[], Iterator[Finding]]


def diagnose(file: Path | None, home: Path | None, *, debug: bool = False) -> Iterator[Finding]:
    """Yields what is found around an evaluation of ``file``, or of what the environment names where none is given.

    Args:
        file: the evaluation file.
        home: the home folder, in place of the file's or the environment's.
        debug: show the tracebacks of checks that raise.
    """
    # The doctor reports what does not answer; an evaluation waits for it.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "8")
    settings = None
    if file is not None:
        try:
            settings = load_settings(file)
            yield Finding("evaluation file", "ok", f"{file} can be read")
        except SettingsError as error:
            yield from (Finding("evaluation file", "wrong", line) for line in str(error).splitlines())
    folder, _ = home_folder(home, file, settings.home if settings is not None else None)
    try:
        embed_servers(folder)
    except SettingsError as error:
        yield Finding("home", "wrong", str(error).removeprefix("home: "))
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    store = (settings.store.uri if settings is not None else None) or str(folder / "embeddings")
    checks: dict[str, Check] = {
        "versions": _versions,
        "disk": lambda: disks(folder, store),
        "loopback": loopback,
        "store": lambda: object_store(store, settings.store.storage_options if settings is not None else {}),
        "MLflow": lambda: mlflow_servers(settings.tracking if settings is not None else TrackingSettings(), folder),
        "Prefect": prefect_server,
    }
    if settings is not None and settings.cluster.kind == "address":
        checks["Dask"] = lambda: dask_cluster(settings)
    for place, check in checks.items():
        yield from _within(_SECONDS, place, check, debug)


def _within(seconds: float, place: str, check: Check, debug: bool) -> list[Finding]:
    """Returns what a check finds within its time; one that raises or hangs is a finding itself."""
    found, remedy = list[Finding](), _REMEDIES.get(place, "")

    def run() -> None:
        try:
            found.extend(check())
        except Exception as error:
            if debug:
                typer.echo(mask_text(traceback.format_exc()), err=True)
            ours = isinstance(error, CongruenceError)  # the remedy is in its message
            said = str(error) if ours else f"{type(error).__name__}: {error}"
            found.append(Finding(place, "wrong", said, "" if ours else remedy))

    thread = threading.Thread(target=run, name=f"doctor {place}", daemon=True)  # hanging must not hold the process
    thread.start()
    thread.join(seconds)
    late = Finding(place, "wrong", f"no answer within {seconds:.0f} s", remedy)
    return [*found, late] if thread.is_alive() else found


def _versions() -> Iterator[Finding]:
    names = ("congruence", "mlflow", "prefect", "dask", "distributed")
    listed = ", ".join(f"{name} {version(name)}" for name in names)
    yield Finding("versions", "ok", f"Python {platform.python_version()}, {listed}")


def disks(home: Path, store: str) -> Iterator[Finding]:
    """Free space of every file system on which a run writes."""
    local = [] if "://" in store.removeprefix("file://") else [Path(store.removeprefix("file://"))]
    places: dict[int, Path] = {}  # one line for each file system
    for path in [home, *local, Path(tempfile.gettempdir())]:
        there = next(part for part in (path, *path.parents) if part.exists())
        places.setdefault(there.stat().st_dev, there)
    for place in places.values():
        free = shutil.disk_usage(place).free
        level: Level = "wrong" if free < _LEAST_BYTES else "warning" if free < _FEW_BYTES else "ok"
        remedy = "" if level == "ok" else "make room, or name folders on another disk (--home, store.uri, TMPDIR)"
        yield Finding("disk", level, f"{free / 2**30:.1f} GiB are free for {place}", remedy)


def loopback() -> Iterator[Finding]:
    """Whether this machine reaches its own servers: a proxy that takes requests to loopback hides them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError), listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.0 204 No Content\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        requests.get(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=5).raise_for_status()
    yield Finding("loopback", "ok", "servers of this machine answer at 127.0.0.1")


def object_store(uri: str, options: dict[str, Any]) -> Iterator[Finding]:
    """Whether the store takes a file and gives it back; it is deleted again."""
    from congruence.tasks.store.objects import ObjectStore

    key, content = f".doctor/{secrets.token_hex(8)}", secrets.token_bytes(16)
    store = ObjectStore(uri, options)
    try:
        store.put(key, content)
        same = store.get(key) == content
    finally:
        store.remove(key)
        store.remove_empty_folders([key])
    said = f"{uri} takes a file and gives {'it' if same else 'another one'} back"
    yield Finding("store", "ok" if same else "wrong", said, "" if same else _REMEDIES["store"])


def mlflow_servers(settings: TrackingSettings, home: Path) -> Iterator[Finding]:
    """Whether tracking server and registry answer and know the login, and which version that is."""
    import mlflow
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    from congruence.tasks.mlflow.connection import connect, server, use_tracking, with_retries

    tracking = settings.model_copy(update={"uri": settings.uri or tracking_uri(home), "patience": 0.0})
    use_tracking(tracking)
    client = connect(tracking)
    with_retries("listing experiments", lambda: client.search_experiments(max_results=1), tracking)
    with_retries("listing registered models", lambda: client.search_registered_models(max_results=1), tracking)
    if str(tracking.uri).startswith(("http://", "https://")):
        login = get_default_host_creds(tracking.uri)  # type: ignore[no-untyped-call]
        ask: Any = http_request
        theirs = ask(login, "/version", "GET", max_retries=0, raise_on_status=False).text.strip()
        yield _of_versions("MLflow", server(tracking), theirs, mlflow.__version__)
    else:
        yield Finding("MLflow", "ok", f"the database {server(tracking)} can be read")


def prefect_server() -> Iterator[Finding]:
    """Whether the server that PREFECT_API_URL names answers and knows the login, and which version it is."""
    import prefect
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL

    api = PREFECT_API_URL.value()
    if not api:
        yield Finding("Prefect", "ok", "PREFECT_API_URL names no server: each command starts one of its own")
        return
    with get_client(sync_client=True) as client:
        theirs = client.api_version()
    yield _of_versions("Prefect", api, theirs, prefect.__version__)


def _of_versions(place: str, address: str, theirs: str, ours: str) -> Finding:
    """What the versions of a server and of its client mean for each other."""
    said = f"{theirs[:40]} answers at {address}"
    if theirs.split(".")[:2] == ours.split(".")[:2]:
        return Finding(place, "ok", said)
    level: Level = "warning" if theirs.split(".")[0] == ours.split(".")[0] else "wrong"
    return Finding(place, level, f"{said}, and this client is {ours}", "install the same version on both")


def dask_cluster(settings: EvaluationSettings) -> Iterator[Finding]:
    """Whether the scheduler answers, has workers, and all of them have this machine's versions."""
    import dask
    from distributed import Client

    from congruence.tasks.dask.clusters import dask_configuration, quiet_dask

    address = str(settings.cluster.address)
    with (
        quiet_dask(),
        dask.config.set(dask_configuration(settings.cluster)),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        with Client(address, timeout=5, set_as_default=False) as client:
            workers = client.scheduler_info(n_workers=-1)["workers"]
            said.clear()
            client.get_versions(check=True, packages=_ON_WORKERS)
    table = [line.strip("| ") for warned in said for line in str(warned.message).splitlines() if line.startswith("|")]
    if table:
        remedy = "install the same everywhere (pip install -c constraints.txt 'congruence[pipeline]', or one image)"
        yield Finding("Dask", "wrong", f"versions differ: {'; '.join(table)}", remedy)
    elif workers:
        yield Finding("Dask", "ok", f"{len(workers)} workers at {address} have this machine's versions")
    else:
        yield Finding("Dask", "wrong", f"{address} has no workers", f"start some: dask worker {address}")
