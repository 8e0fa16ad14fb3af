"""MLflow's databases for tests: made once for a run, then copied, since making one takes more than a second."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import mlflow
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.store.db import utils
from sqlalchemy import event
from sqlalchemy.engine import Engine

_EMPTY = Path(tempfile.gettempdir()) / f"mlflow-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}.db"
"""In the run's folder for temporary files, which its processes share."""

# Which migration is the last one, MLflow reads from seventy files whenever it opens a database.
utils._get_latest_schema_revision = cache(utils._get_latest_schema_revision)


@event.listens_for(Engine, "connect")
def _waits_for_no_disk(connection: Any, _: object) -> None:
    """No test asks what is left when the power fails: a tenth of the time of those that log."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA journal_mode=MEMORY")


def mlflow_database(folder: Path) -> str:
    """The address of an empty database of its own, ``mlflow.db`` in ``folder``."""
    path = folder.resolve() / "mlflow.db"
    shutil.copyfile(_empty(), path)
    return f"sqlite:///{path}"


@contextmanager
def mlflow_at(uri: str) -> Iterator[str]:
    """MLflow points there meanwhile."""
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        yield uri
    finally:
        mlflow.set_tracking_uri(before)


@cache
def _empty() -> Path:
    with FileLock(f"{_EMPTY}.lock"):
        if not _EMPTY.exists():
            made = f"sqlite:///{_EMPTY}.new"
            MlflowClient(made, made).search_experiments()
            os.replace(f"{_EMPTY}.new", _EMPTY)
    return _EMPTY
