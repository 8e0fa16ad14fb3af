"""The rows whose targets a recalibrated version has seen, as MLflow holds them: looks leave them out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import mlflow
import numpy as np

from congruence.tasks.data.row_identity import row_identities
from congruence.tasks.data.split import Split
from congruence.tasks.mlflow.looks import Rows, kept_rows
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.recalibration.rows import FITTED_ON, halves_of

FITTED_ROWS_FILE = "fitted_rows.npy"


def log_fitted_rows(split: Split, half: bool, parent: Rows) -> None:
    """Log to the active run which rows of ``split`` a correction is fitted on, and those of its parent's correction."""
    rows = row_identities(split)
    seen = rows[~halves_of(split).held_out] if half else rows  # with those beside a cut of time
    with tempfile.TemporaryDirectory(prefix="congruence-") as folder:
        np.save(Path(folder) / FITTED_ROWS_FILE, np.union1d(seen, parent))
        mlflow.log_artifacts(folder)


def fitted_rows(version: ModelVersion, folder: Path, settings: TrackingSettings) -> Rows:
    """The identities of the rows that a version was recalibrated on; ``folder`` keeps a copy. Most have none."""
    if FITTED_ON not in version.tags or version.run_id is None:
        return np.empty(0, dtype=np.uint64)
    return kept_rows(version.run_id, FITTED_ROWS_FILE, folder / f"{version.run_id}.fitted.npy", settings)
