"""MLflow's SQLite database on this machine: looked at before it is opened, and where its files go."""

from __future__ import annotations

from pathlib import Path

import mlflow

from congruence.tasks.runtime.errors import require_database

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
