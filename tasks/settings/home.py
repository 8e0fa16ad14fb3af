"""The folder that holds everything a run leaves on disk, and MLflow's database in it, where nobody names others."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "CONGRUENCE_HOME"
DEFAULT = ".congruence"
SERVED = "CONGRUENCE_SERVED_HOME"
"""What `congruence serve` chose, for its runs, which are processes of their own: before ``home:`` of the file."""


def default_home() -> Path:
    """$CONGRUENCE_HOME, else .congruence in the working folder."""
    return Path(os.environ.get(VARIABLE) or DEFAULT).resolve()


def home_store(home: Path) -> str:
    """The address of MLflow's database in a home folder."""
    return f"sqlite:///{home / 'mlflow.db'}"


def tracking_uri(home: Path) -> str:
    """The user's MLFLOW_TRACKING_URI, else MLflow on SQLite in ``home``."""
    return os.environ.get("MLFLOW_TRACKING_URI") or home_store(home)
