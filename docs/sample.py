"""The report of a version whose fault is known, for the documentation: made by the stages of an evaluation.

``python docs/sample.py FOLDER`` writes ``report.html``. Everything runs in this process, on MLflow's own SQLite store
in a temporary folder: no server, no cluster, no network.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd

from congruence.kernels import Normal
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.data.split import open_split
from congruence.tasks.digits.dataset import noise_scale, write_digits
from congruence.tasks.encoders.loading import asking_encoder, warm_encoder
from congruence.tasks.evaluate.pieces import embed_each, rows_of, serve
from congruence.tasks.evaluate.plan import encoder_protocol
from congruence.tasks.mlflow.evaluations import REPORT_FILE, write_artifacts
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.models.registry import resolve
from congruence.tasks.runtime.files import home_store
from congruence.tasks.scores.version import score_version
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import ModelVersion
from congruence.tasks.solving.solve import measure

ROWS = 1500
NAME = "digit-angle"


def write(folder: Path) -> Path:
    """The report in ``folder``."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    before = mlflow.get_tracking_uri()
    with tempfile.TemporaryDirectory(prefix="congruence-sample-") as home:
        try:
            return _write(folder, Path(home))
        finally:
            mlflow.set_tracking_uri(before)


def _write(folder: Path, home: Path) -> Path:
    write_digits(home / "test", "test", rows=ROWS)
    settings = EvaluationSettings.model_validate(
        {
            "models": [NAME],
            "splits": [
                {
                    "name": "digits-test",
                    "uri": str(home / "test"),
                    "key": "key",
                    "input": "image",
                    "target": "target",
                    "model_inputs": ["angle", "digit"],
                    "slices": ["digit"],
                }
            ],
            "encoder": {"kind": "open_clip", "model": "compact", "device": "cpu"},
            "home": str(home),
            "tracking": {"uri": home_store(home)},
        }
    )
    version = _registered(home)
    rows = _evaluated_rows(settings, version)
    protocol = encoder_protocol(settings, asking_encoder(settings.encoder))
    keys = rows.keys()
    law = rows.all_predictive(version.label)
    found = measure(protocol, rows.embeddings(), rows.targets(), {version.label: law}, keys=keys)
    encoder = asking_encoder(settings.encoder)
    evaluation = score_version(rows, encoder, version, protocol, found[version.label])
    with tempfile.TemporaryDirectory() as artifacts:
        write_artifacts(evaluation, Path(artifacts), settings.tracking)
        report = (Path(artifacts) / REPORT_FILE).read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT_FILE).write_bytes(report)
    return folder / REPORT_FILE


def _registered(home: Path) -> ModelVersion:
    """A version that knows the angle, but not that the noise grows with the digit."""

    def one_scale(table: pd.DataFrame) -> Normal:
        scale = float(np.sqrt(np.mean(noise_scale(np.arange(10)) ** 2)))
        return Normal(table["angle"].to_numpy(), np.full(len(table), scale))

    mlflow.set_tracking_uri(home_store(home))
    experiment = mlflow.create_experiment("sample", artifact_location=(home / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment):
        info = log_predictive_model(
            one_scale,
            name="one-scale",
            input_example=pd.DataFrame({"angle": [0.0, 10.0], "digit": [2.0, 4.0]}),
            registered_model_name=NAME,
        )
    return resolve(f"models:/{NAME}/{info.registered_model_version}")


def _evaluated_rows(settings: EvaluationSettings, version: ModelVersion) -> EvaluatedRows:
    rows = rows_of(settings, open_split(settings.splits[0], settings.plans_folder))
    embed_each(rows.split, rows.split.shards, warm_encoder(settings.encoder), rows.store)
    rows.served[version.label] = serve(settings, version)
    rows.predict(version.label, rows.split.shards)
    return rows


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
