"""`congruence doctor`: everything around an evaluation, looked at in seconds, and how to fix what is wrong."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from congruence.flows.cli.environment import embed_servers, tracking_uri
from congruence.flows.cli.options import FAILED, home_folder
from congruence.tasks.doctor.findings import Check, Finding, Step, examine, fine, wrong
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings, load_settings

if TYPE_CHECKING:
    from congruence.tasks.doctor.prefect_server import PrefectAddress
    from congruence.tasks.mlflow.settings import TrackingSettings

_COLOURS = {"ok": typer.colors.GREEN, "warning": typer.colors.YELLOW, "wrong": typer.colors.RED}
_AT_ONCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "8"}
"""The doctor reports what does not answer; an evaluation waits for it."""
_FILE, _HOME = "evaluation file", "home"


def diagnose(file: Path | None, home: Path | None, pool: str | None, *, debug: bool = False) -> Iterator[Finding]:
    """What is found around an evaluation of ``file``, or around one of this folder where none is given.

    Args:
        file: the evaluation file.
        home: the home folder, in place of the file's or the environment's.
        pool: the Prefect work pool that is to carry out runs; by default PREFECT_DEFAULT_WORK_POOL_NAME.
        debug: show the tracebacks of checks that raise.
    """
    for name, value in _AT_ONCE.items():
        os.environ.setdefault(name, value)
    settings = None
    if file is not None:
        try:
            settings = load_settings(file)
            yield fine(_FILE, f"{file} can be read")
        except SettingsError as error:
            yield from (Finding(_FILE, "wrong", line) for line in str(error).splitlines())
    chosen = home_folder(home, file, settings.home if settings is not None else None)
    try:
        embed_servers(chosen.folder)
    except SettingsError as error:
        yield Finding(_HOME, "wrong", str(error))
    if settings is not None:
        settings = settings.model_copy(update={"home": chosen.folder})
    yield from examine(list(_checks(settings, chosen.folder, pool)), debug=debug)


def _checks(settings: EvaluationSettings | None, home: Path, pool: str | None) -> Iterator[Check]:
    """What a command would use: the file's settings, where there is a file, the home folder, the work pool."""
    # Loaded here, one after the other: threads that import the same libraries wait for each other.
    from congruence.tasks.doctor.cards import judged, own_cards
    from congruence.tasks.doctor.dask_cluster import Reach, dask_cluster
    from congruence.tasks.doctor.disks import writable_home
    from congruence.tasks.doctor.mlflow_servers import registry, tracking_server
    from congruence.tasks.doctor.packages import package_pairs
    from congruence.tasks.doctor.plan import data
    from congruence.tasks.doctor.stores import store
    from congruence.tasks.mlflow.settings import TrackingSettings
    from congruence.tasks.settings.cluster import ClusterSettings

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    tracking = settings.tracking if settings is not None else TrackingSettings()
    tracking = tracking.model_copy(update={"uri": tracking.uri or tracking_uri(home)})
    cluster = settings.cluster if settings is not None else ClusterSettings()
    uri, options = str(home / "embeddings"), dict[str, Any]()
    if settings is not None:
        uri, options = settings.store.uri or uri, settings.store.storage_options
    splits = tuple(settings.all_splits) if settings is not None else ()
    yield Check("packages", package_pairs)
    if tracking.performance_report:
        yield Check("packages", lambda: _drawable(tracking))
    yield Check("home", lambda: writable_home(home))
    yield Check("disk", lambda: _disks(settings, home, uri))
    yield Check("cards", lambda: judged(own_cards(), "here", wanted=cluster.kind == "cuda"))
    if settings is not None:
        yield Check("data", lambda: data(settings))
    yield Check("store", lambda: store(uri, options))
    yield Check("MLflow", lambda: tracking_server(tracking), seconds=20)
    yield Check("MLflow's registry", lambda: registry(tracking, settings.models if settings is not None else []))
    yield _prefect(pool)
    yield Check("Dask", lambda: dask_cluster(cluster, Reach(home, uri, options, splits)), seconds=20)


def _disks(settings: EvaluationSettings | None, home: Path, uri: str) -> Iterator[Finding | Step]:
    from congruence.tasks.doctor.disks import disks
    from congruence.tasks.doctor.plan import written

    folder = uri.removeprefix("file://")
    plan = {} if "://" in folder else {Path(folder): 0}
    if settings is not None and (found := written(settings, home)) is not None:
        plan = dict.fromkeys(plan, found.store) | {home: found.home}
    return disks(home, plan)


def _drawable(tracking: TrackingSettings) -> Iterator[Finding | Step]:
    from congruence.tasks.mlflow.performance_report import require_drawable

    yield Step("looking for Bokeh", "pip install -c constraints.txt bokeh")
    require_drawable(tracking)


def _prefect(pool: str | None) -> Check:
    from prefect.settings import PREFECT_API_URL, PREFECT_DEFAULT_WORK_POOL_NAME

    from congruence.tasks.doctor.prefect_server import PLACE, POOL, prefect_server

    pool = pool or PREFECT_DEFAULT_WORK_POOL_NAME.value()
    if api := PREFECT_API_URL.value():
        address = _address(api)
        return Check(PLACE, lambda: prefect_server(address, pool))

    def none_named() -> Iterator[Finding | Step]:
        yield Step(
            "looking at the database of the embedded server", "move it away: it holds past runs' pages, no results"
        )
        from congruence.tasks.runtime.io_errors import require_database

        require_database(Path(os.environ["PREFECT_HOME"]) / "prefect.db", "the embedded Prefect server's")
        yield fine(PLACE, "PREFECT_API_URL names no server: each command starts one of its own")
        if pool is not None:
            yield wrong(POOL, f"'{pool}' needs a server", "set PREFECT_API_URL to the one that has it")

    return Check(PLACE, none_named)


def _address(api: str) -> PrefectAddress:
    """The server as Prefect's own client would ask it."""
    import prefect
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_KEY,
        PREFECT_API_SSL_CERT_FILE,
        PREFECT_API_TLS_INSECURE_SKIP_VERIFY,
    )

    from congruence.tasks.doctor.prefect_server import PrefectAddress

    login = {}
    if (key := PREFECT_API_KEY.value()) is not None:
        login["Authorization"] = f"Bearer {_secret(key)}"
    elif (given := PREFECT_API_AUTH_STRING.value()) is not None:
        login["Authorization"] = f"Basic {base64.b64encode(_secret(given).encode()).decode()}"
    verify: bool | str = not PREFECT_API_TLS_INSECURE_SKIP_VERIFY.value()
    if verify and (file := PREFECT_API_SSL_CERT_FILE.value()):
        verify = str(file)
    return PrefectAddress(api, prefect.__version__, login, verify)


def _secret(value: Any) -> str:
    return str(value.get_secret_value() if hasattr(value, "get_secret_value") else value)


def print_finding(finding: Finding) -> None:
    """One line: how it is, where, what was found, and how to fix it."""
    level = typer.style(f"{finding.level:<8}", fg=_COLOURS[finding.level])
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    typer.echo(f"{level}{finding.place}: {finding.said}{remedy}")


def exit_status(findings: list[Finding]) -> int:
    """1 where something is wrong, 0 otherwise."""
    return FAILED if any(finding.level == "wrong" for finding in findings) else 0


def findings_json(findings: list[Finding]) -> dict[str, Any]:
    """The findings as JSON."""
    return {"findings": [asdict(finding) for finding in findings], "exit_status": exit_status(findings)}
