"""MLflow on PostgreSQL: evaluations land once, whoever logs them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlflow
import pytest
from loopback import PostgreSQL
from mlflow import MlflowClient

from congruence.tasks.mlflow.connection import TrackingError
from congruence.tasks.mlflow.evaluations import log_evaluation
from congruence.tasks.mlflow.reading import read_version
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import resolve

pytestmark = pytest.mark.skipif(PostgreSQL.missing() is not None, reason=str(PostgreSQL.missing()))


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgreSQL]:
    cluster = PostgreSQL()
    yield cluster
    cluster.stop()


@pytest.fixture
def settings(cluster: PostgreSQL, tmp_path: Any) -> Iterator[TrackingSettings]:
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(cluster.uri)
    yield TrackingSettings(uri=cluster.uri, report=False, patience=5, artifact_location=str(tmp_path))
    mlflow.set_tracking_uri(before)


@pytest.mark.slow
def test_an_evaluation_lands_once(make_evaluation: Any, settings: TrackingSettings, cluster: PostgreSQL) -> None:
    client = MlflowClient()
    client.create_registered_model("angle")
    client.create_model_version("angle", source="/nowhere")
    evaluation = make_evaluation(model=resolve("models:/angle/1"))
    with ThreadPoolExecutor(3) as threads:
        logged = set(threads.map(lambda _: log_evaluation(evaluation, settings), range(3)))
    experiment = client.get_experiment_by_name("congruence/evaluations")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id in logged
    assert len(client.get_metric_history(run.info.run_id, "headline/cce_mean")) == 1
    assert read_version(run.info.run_id, settings).metrics == evaluation.metrics
    tags = client.get_model_version("angle", "1").tags
    assert float(tags["cce"]) > 0
    assert cluster.password not in str(tags | run.data.tags | run.data.params)

    cluster.stop()
    with pytest.raises(TrackingError, match=r"is unreachable: ") as refused:
        log_evaluation(
            make_evaluation(model=evaluation.model, split="late"), settings.model_copy(update={"patience": 1.0})
        )
    assert cluster.password not in str(refused.value)
