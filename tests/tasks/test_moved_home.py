"""A home folder that was copied or moved with its files: nothing in it points at the old place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from databases import mlflow_database
from mlflow import MlflowClient

from congruence.tasks.mlflow.connection import experiment_id
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime import mlflow_database as database
from congruence.tasks.runtime.moved_home import point_here


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home with a run that has an artifact, and an experiment whose files lie where its owner wanted them."""
    before = mlflow.get_tracking_uri()
    folder = tmp_path / "old home"
    folder.mkdir()
    mlflow_database(folder)  # the tables, from a copy
    for file in folder.iterdir():
        file.unlink()
    uri = f"sqlite:///{folder}/mlflow.db"
    database.point_mlflow_at(uri)
    client = MlflowClient(uri)
    run = client.create_run(experiment_id(client, "congruence/a", TrackingSettings(uri=uri)))
    client.log_text(run.info.run_id, "first", "note.txt")
    client.create_experiment("elsewhere", str(tmp_path / "elsewhere"))
    yield folder
    mlflow.set_tracking_uri(before)


def test_a_copied_home_neither_writes_to_nor_points_at_the_old_place(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied = tmp_path / "new home"
    shutil.copytree(home, copied)
    before = sorted((path, path.stat().st_mtime_ns) for path in home.rglob("*"))
    uri = f"sqlite:///{copied}/mlflow.db"
    database.point_mlflow_at(uri)
    assert f"this folder was copied or moved from {home}" in caplog.text
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("congruence/a")
    (run,) = client.search_runs([experiment.experiment_id])
    for place in (experiment.artifact_location, run.info.artifact_uri, client.get_experiment("0").artifact_location):
        assert str(home) not in place
        assert str(copied) in place
    assert client.get_experiment_by_name("elsewhere").artifact_location == str(tmp_path / "elsewhere")
    client.log_text(client.create_run(experiment.experiment_id).info.run_id, "second", "note.txt")
    assert len(list(copied.rglob("note.txt"))) == 2
    assert sorted((path, path.stat().st_mtime_ns) for path in home.rglob("*")) == before
    assert point_here(copied / "mlflow.db", copied / "mlartifacts") == 0


def test_a_database_without_its_files_and_one_under_another_name_of_its_folder_stay_as_they_are(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "alone").mkdir()
    shutil.copy(home / "mlflow.db", tmp_path / "alone")
    assert point_here(tmp_path / "alone" / "mlflow.db", tmp_path / "alone" / "mlartifacts") == 0
    (tmp_path / "link").symlink_to(home)
    assert point_here(tmp_path / "link" / "mlflow.db", tmp_path / "link" / "mlartifacts") == 0
