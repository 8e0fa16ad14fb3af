"""MLflow's databases for tests: made once for a process, then copied, since making one takes more than a second."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

from mlflow import MlflowClient

_FOLDER = tempfile.TemporaryDirectory(prefix="congruence-mlflow-")


def mlflow_database(folder: Path) -> str:
    """The address of an empty database of its own, ``mlflow.db`` in ``folder``."""
    path = folder.resolve() / "mlflow.db"
    shutil.copyfile(_empty(), path)
    return f"sqlite:///{path}"


@cache
def _empty() -> Path:
    path = Path(_FOLDER.name) / "empty.db"
    MlflowClient(f"sqlite:///{path}", f"sqlite:///{path}").search_experiments()
    return path
