"""The rows whose targets a recalibrated version has seen, as MLflow holds them: looks leave them out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import mlflow
import numpy as np

from congruence.tasks.data.row_identity import row_identities
from congruence.tasks.data.split import Split
from congruence.tasks.mlflow.connection import fetched_artifact
from congruence.tasks.mlflow.looks import Rows
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.recalibration.rows import FITTED_ON, halves_of
from congruence.tasks.runtime.atomic_files import whole_file

FITTED_ROWS_FILE = "fitted_rows.npy"
_NONE: Rows = np.empty(0, dtype=np.uint64)


def log_fitted_rows(split: Split, half: bool, parent: Rows) -> None:
    """Log to the active run which rows of ``split`` a correction is fitted on, and those of its parent's correction."""
    rows = row_identities(split)
    seen = rows[~halves_of(split).held_out] if half else rows  # with those beside a cut of time
    with tempfile.TemporaryDirectory(prefix="congruence-") as folder:
        np.save(Path(folder) / FITTED_ROWS_FILE, np.union1d(seen, parent))
        mlflow.log_artifacts(folder)


def fitted_rows(version: ModelVersion, folder: Path, settings: TrackingSettings) -> Rows:
    """The identities of the rows that a version was recalibrated on; ``folder`` keeps a copy. Most have none."""
    run_id = version.run_id
    if FITTED_ON not in version.tags or run_id is None:
        return _NONE
    path = folder / f"{run_id}.fitted.npy"
    if not path.exists():
        found = _fetched(run_id, settings)
        with whole_file(path) as stream:
            np.save(stream, found)
    rows: Rows = np.load(path)
    return rows


def _fetched(run_id: str, settings: TrackingSettings) -> Rows:
    with tempfile.TemporaryDirectory(prefix="congruence-") as place:
        rows: Rows = np.load(fetched_artifact(run_id, FITTED_ROWS_FILE, place, settings))
        return rows
