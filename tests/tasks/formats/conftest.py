"""A model registry on SQLite that the tests of formats share, each under model names of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from databases import mlflow_database


@pytest.fixture(scope="session")
def registry_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("registry")
    uri = mlflow_database(folder)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    mlflow.create_experiment("formats", artifact_location=(folder / "artifacts").as_uri())
    mlflow.set_tracking_uri(before)
    return uri


@pytest.fixture
def registry(registry_uri: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name under which this test may register; MLflow points at the shared registry meanwhile."""
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(registry_uri)
    mlflow.set_experiment("formats")
    yield request.node.originalname.removeprefix("test_").replace("_", "-")
    mlflow.set_tracking_uri(before)
