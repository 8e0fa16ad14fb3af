"""MLflow, whoever asks it: its database on this machine, all pages of a list, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import requests
from mlflow.exceptions import MlflowException

from congruence.tasks.runtime.errors import chain, require_database, trouble

_CODES = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "RESOURCE_EXHAUSTED", "REQUEST_LIMIT_EXCEEDED", "ABORTED"}


def all_pages(search: Callable[[str | None], Any]) -> Iterator[Any]:
    """Yields the items of every page; ``search`` is given the token of the page that it is to ask for."""
    token: str | None = None
    while True:
        page = search(token)
        yield from page
        token = page.token
        if not token:
            return


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    if "database is locked" in str(error):  # another process writes
        return True
    if trouble(error) is not None:
        return False
    if isinstance(error, MlflowException):
        text = str(error).lower()
        # Two writers, such as two commands on one split, insert the same dataset: the second finds it at its next try.
        is_race = error.error_code == "BAD_REQUEST" and ("unique" in text or "duplicate" in text)
        return error.error_code in _CODES or is_race
    response = getattr(error, "response", None)
    if response is not None:
        return bool(response.status_code >= 500 or response.status_code == 429)
    # Two writers that put the same folder of artifacts in place: it is there at the next try.
    return isinstance(
        error, (requests.ConnectionError, requests.Timeout, ConnectionError, TimeoutError, FileExistsError)
    )


def is_refusal(error: BaseException) -> bool:
    """Whether connections were refused: nothing listens at that address, which waiting seldom changes."""
    refused = any(isinstance(cause, ConnectionRefusedError) for cause in chain(error))
    return refused or "Connection refused" in str(error)  # MLflow tells its cause as text


def is_unknown_login(error: BaseException) -> bool:
    """Whether the server rejected the credentials."""
    if isinstance(error, MlflowException):
        return error.error_code in ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED")
    return getattr(getattr(error, "response", None), "status_code", None) == 401


ARTIFACTS = "mlartifacts"
_SQLITE = "sqlite:///"

_looked_at: set[str] = set()


def database_file(uri: str) -> Path | None:
    """The file of an SQLite address, None of another."""
    return Path(uri.removeprefix(_SQLITE).partition("?")[0]).absolute() if uri.startswith(_SQLITE) else None


def artifacts_folder(uri: str) -> Path | None:
    """Where the runs and models of a database on this machine keep their files: beside it."""
    file = database_file(uri)
    return None if file is None else file.resolve().parent / ARTIFACTS


def require_local_store(uri: str) -> None:
    """Look once at a database file before MLflow opens it: MLflow tries a damaged one for two minutes.

    Raises:
        SurroundingsError: it is none, or is damaged.
    """
    file = database_file(uri)
    if file is not None and uri not in _looked_at:
        require_database(file)
        _looked_at.add(uri)


def make_local_store(uri: str) -> None:
    """Make an SQLite database that is not there yet, so that what names no experiment keeps its files beside it.

    MLflow decides that when it makes a database, and takes ``mlruns`` in the working folder of the first process.
    """
    file = database_file(uri)
    if file is None or file.exists() or not file.parent.is_dir():
        return
    # Loaded here: it brings sqlalchemy and alembic, which an MLflow server's clients need not wait for.
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(uri, str(artifacts_folder(uri)))  # type: ignore[no-untyped-call]


def point_mlflow_at(uri: str) -> None:
    """Set MLflow's tracking address; a database on this machine is made if need be.

    Raises:
        SurroundingsError: the file at that address is no database, or is damaged.
    """
    require_local_store(uri)
    make_local_store(uri)
    mlflow.set_tracking_uri(uri)
