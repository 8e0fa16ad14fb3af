"""A model that is logged with no word about MLflow is found by a command that is given none either."""

import logging
from collections.abc import Iterator
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from databases import mlflow_database

from congruence.flows.cli.options import home_folder
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.models.registry import list_versions
from congruence.tasks.runtime.files import tracking_uri


@pytest.fixture
def pointed_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = mlflow.get_tracking_uri()
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "CONGRUENCE_HOME"):
        monkeypatch.delenv(name, raising=False)
    mlflow.set_tracking_uri("")
    assert not mlflow.is_tracking_uri_set()
    yield tmp_path
    mlflow.set_tracking_uri(before)


def log_one() -> None:
    log_predictive_model(
        lambda frame: pd.DataFrame({"loc": frame["a"], "scale": np.ones(len(frame))}),
        name="house",
        family="normal",
        input_example=pd.DataFrame({"a": [1.0, 2.0]}),
        registered_model_name="house",
        pip_requirements=["mlflow"],
    )


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What we log; older MLflow takes the handlers off the root logger while it makes a database."""
    logging.getLogger("congruence").addHandler(caplog.handler)
    yield caplog
    logging.getLogger("congruence").removeHandler(caplog.handler)


def test_the_helper_writes_where_the_commands_read(pointed_nowhere: Path, said: pytest.LogCaptureFixture) -> None:
    log_one()
    store = tracking_uri(home_folder(None)[0])
    assert store == f"sqlite:///{pointed_nowhere}/.congruence/mlflow.db"
    assert store in said.text
    mlflow.set_tracking_uri(store)
    assert [version.label for version in list_versions("house")] == ["house/1"]
    assert not any((pointed_nowhere / "mlruns").rglob("*"))  # MLflow 3.4 makes the folder, and puts nothing there
    assert list((pointed_nowhere / ".congruence" / "mlartifacts").rglob("python_model.pkl"))


def test_an_mlflow_that_was_set_is_kept(pointed_nowhere: Path) -> None:
    own = mlflow_database(pointed_nowhere)
    mlflow.set_tracking_uri(own)
    log_one()
    assert mlflow.get_tracking_uri() == own
    assert not (pointed_nowhere / ".congruence").exists()
