"""MLflow's SQLite database on this machine: looked at before it is opened, and where its files go."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

import mlflow

from congruence.tasks.runtime.io_errors import require_database
from congruence.tasks.runtime.moved_home import point_here

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

    One that was copied or moved with its files is made to point at them (``moved_home``).

    Raises:
        SurroundingsError: it is none, or is damaged.
    """
    file = database_file(uri)
    if file is not None and uri not in _looked_at:
        require_database(file)
        point_here(file, file.resolve().parent / ARTIFACTS)
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


def database_to_read(uri: str) -> str:
    """The address of a copy of a database on this machine, for a look at one that cannot be written; others stay.

    SQLite and MLflow both write when they open one. The copy goes with this process.
    """
    file = database_file(uri)
    if file is None or not file.exists():
        return uri
    folder = Path(tempfile.mkdtemp(prefix="congruence-list-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in (file.name, f"{file.name}-wal"):  # what was not yet written back stands beside it
        if file.with_name(name).exists():
            shutil.copyfile(file.with_name(name), folder / name)
    return f"{_SQLITE}{folder / file.name}"


def point_mlflow_at(uri: str) -> None:
    """Set MLflow's tracking address; a database on this machine is made if need be.

    Raises:
        SurroundingsError: the file at that address is no database, or is damaged.
    """
    require_local_store(uri)
    make_local_store(uri)
    mlflow.set_tracking_uri(uri)
