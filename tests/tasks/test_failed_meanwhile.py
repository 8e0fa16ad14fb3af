"""A flow that lost its workers marks a failure while one of them goes on and completes: complete is what it is then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from databases import mlflow_database
from mlflow import MlflowClient

from congruence.tasks.mlflow import evaluations
from congruence.tasks.mlflow.evaluations import log_evaluation
from congruence.tasks.mlflow.identity import EvaluationIdentity
from congruence.tasks.mlflow.runs import ERROR, fail_run, open_run
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.scores.evaluation import Evaluation

LOST = "the Dask scheduler was lost"


@pytest.fixture
def tracked(tmp_path: Path) -> Iterator[TrackingSettings]:
    before, uri = mlflow.get_tracking_uri(), mlflow_database(tmp_path)
    mlflow.set_tracking_uri(uri)
    client = MlflowClient()
    client.create_registered_model("angle")
    client.create_model_version("angle", source="/nowhere")
    yield TrackingSettings(uri=uri, report=False)
    mlflow.set_tracking_uri(before)


@pytest.fixture
def evaluation(make_evaluation: Any) -> Evaluation:
    made: Evaluation = make_evaluation(model=ModelVersion("angle", "1", "models:/angle/1"))
    return made


def require_complete(run_id: str) -> None:
    run = MlflowClient().get_run(run_id)
    assert (run.info.status, run.data.tags["congruence.state"]) == ("FINISHED", "complete")
    assert ERROR not in run.data.tags


def test_a_run_that_is_marked_while_it_is_logged_ends_complete(
    evaluation: Evaluation, tracked: TrackingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = EvaluationIdentity.of(evaluation)
    run_id = open_run(identity, tracked)
    log_metrics = evaluations.log_metrics

    def while_metrics_are_logged(*arguments: Any) -> None:
        fail_run(identity, LOST, tracked)
        assert ERROR in MlflowClient().get_run(run_id).data.tags
        log_metrics(*arguments)

    monkeypatch.setattr(evaluations, "log_metrics", while_metrics_are_logged)
    assert log_evaluation(evaluation, tracked) == run_id
    require_complete(run_id)


@pytest.mark.parametrize("moment", ["set_tag", "set_terminated"])
def test_a_run_that_completes_while_it_is_marked_is_complete(
    evaluation: Evaluation, tracked: TrackingSettings, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    identity = EvaluationIdentity.of(evaluation)
    run_id = open_run(identity, tracked)
    write = getattr(MlflowClient, moment)

    def late(client: MlflowClient, *arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(MlflowClient, moment, write)
        assert log_evaluation(evaluation, tracked) == run_id
        write(client, *arguments, **options)

    monkeypatch.setattr(MlflowClient, moment, late)
    fail_run(identity, LOST, tracked)
    require_complete(run_id)
