"""An MLflow that is away, or marked by others meanwhile, is neither a missing version nor a failed one."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow
import pytest
import requests
from databases import mlflow_at
from loopback import PostgreSQL, postgresql_program
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, RESOURCE_DOES_NOT_EXIST
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

from congruence.tasks.mlflow import connection, evaluations
from congruence.tasks.mlflow.connection import TrackingError, is_refusal, is_transient, with_retries
from congruence.tasks.mlflow.evaluations import log_evaluation
from congruence.tasks.mlflow.identity import EvaluationIdentity
from congruence.tasks.mlflow.reading import read_scores, read_version
from congruence.tasks.mlflow.runs import ERROR, fail_run, open_run
from congruence.tasks.models.registry import RegistryError, resolve
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.settings.sections import TrackingSettings


@pytest.fixture
def evaluation(make_evaluation: Any) -> Evaluation:
    made: Evaluation = make_evaluation()
    return made


def test_a_tag_that_cannot_be_set_fails_no_version_whose_numbers_are_logged(
    evaluation: Evaluation, registered: TrackingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient()

    def refuse(*_: Any) -> None:
        raise MlflowException("no such column", error_code=BAD_REQUEST)

    log_batch = MlflowClient.log_batch

    def without_tags(client: MlflowClient, run_id: str, *arguments: Any, **options: Any) -> Any:
        return refuse() if options.get("tags") else log_batch(client, run_id, *arguments, **options)

    monkeypatch.setattr(evaluations, "tag_version", refuse)
    monkeypatch.setattr(MlflowClient, "log_batch", without_tags)
    run = client.get_run(log_evaluation(evaluation, registered))
    assert run.info.status == "FINISHED"
    assert run.data.metrics["headline/cce_mean"] == pytest.approx(evaluation.metrics["cce_mean"].value, rel=1e-3)
    monkeypatch.undo()
    assert log_evaluation(evaluation, registered) == run.info.run_id
    assert "cce" in client.get_model_version("angle", "1").tags


def test_what_may_succeed_a_little_later() -> None:
    duplicate = 'duplicate key value violates unique constraint "dataset_pk"'
    internal = MlflowException("lost")
    for error in (requests.ConnectionError("refused"), internal, MlflowException(duplicate, error_code=BAD_REQUEST)):
        assert is_transient(error)
    assert not is_transient(MlflowException("no such column", error_code=BAD_REQUEST))
    assert not is_transient(MlflowException("no such model", error_code=RESOURCE_DOES_NOT_EXIST))
    assert not is_transient(ValueError("wrong"))


def test_a_version_is_not_missing_because_nobody_answers(
    tracked: TrackingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RegistryError, match="not in the registry"):
        resolve("models:/angle/1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    for uri in ("models:/angle/1", "models:/angle@champion", f"models:/m-{'0' * 32}", "runs:/0/model"):
        with pytest.raises(MlflowException):
            resolve(uri)


def test_a_failed_run_is_replaced_so_that_its_duration_is_that_of_the_attempt_that_ended(
    evaluation: Evaluation, registered: TrackingSettings
) -> None:
    client, identity = MlflowClient(), EvaluationIdentity.of(evaluation)
    failed_id = open_run(identity, registered)
    fail_run(failed_id, "no licence at https://me:hunter22@host/x", registered)
    failed = client.get_run(failed_id)
    said = failed.data.tags["congruence.error"]
    assert (failed.info.status, said) == ("FAILED", "no licence at https://***@host/x")
    time.sleep(0.05)
    run_id = open_run(identity, registered)
    assert client.get_run(failed_id).info.lifecycle_stage == "deleted"
    assert client.get_run(run_id).info.start_time >= failed.info.end_time + 50
    assert log_evaluation(evaluation, registered) == run_id
    ended = client.get_run(run_id)
    assert ended.info.status == "FINISHED"
    assert "congruence.error" not in ended.data.tags


def test_refused_is_told_from_slow() -> None:
    assert is_refusal(ConnectionRefusedError(111, "Connection refused"))
    assert is_refusal(MlflowException("Max retries exceeded: [Errno 111] Connection refused"))
    assert not is_refusal(TimeoutError("timed out"))
    assert not is_refusal(MlflowException("lost"))


def test_an_error_without_words_is_said_by_its_name() -> None:
    def ask() -> None:
        raise requests.RequestException("\n")

    with pytest.raises(TrackingError, match="refused: RequestException"):
        with_retries("asking", ask, TrackingSettings(uri="http://127.0.0.1:9"))


def test_a_server_that_never_was_there_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REFUSED_SECONDS", 1.0)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    absent = TrackingSettings(uri="http://ann:hunter2@127.0.0.1:9", patience=600.0)
    client, started = connection.connect(absent), time.monotonic()
    with pytest.raises(
        TrackingError, match=r"//\*\*\*@127.* is unreachable: it refuses connections .* Start it"
    ) as said:
        connection.with_retries("looking", lambda: client.search_registered_models(), absent)
    assert "hunter2" not in str(said.value)
    assert time.monotonic() - started < 60.0


def test_a_server_that_answered_before_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REFUSED_SECONDS", 0.0)
    restarted = TrackingSettings(uri="http://127.0.0.1:10", patience=60.0)
    answers: list[Any] = ["before", ConnectionRefusedError(), ConnectionRefusedError(), "after"]

    def operation() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert connection.with_retries("a step", operation, restarted) == "before"
    assert connection.with_retries("a step", operation, restarted) == "after"


def test_files_that_a_store_does_not_give_are_asked_for_again_and_are_not_missing_ones(
    evaluation: Evaluation, registered: TrackingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a run's id MLflow says of every error that there is no such file: the version was to be evaluated again."""
    run_id, answered = log_evaluation(evaluation, registered), LocalArtifactRepository.download_artifacts

    def away(*_: Any) -> None:
        monkeypatch.setattr(LocalArtifactRepository, "download_artifacts", answered)
        raise requests.ConnectionError("reset by peer")

    monkeypatch.setattr(LocalArtifactRepository, "download_artifacts", away)
    assert len(read_scores(run_id, registered)) == len(evaluation.scores)

    def lacks_it(*_: Any) -> None:  # as a server that serves the files says it
        raise MlflowException("The following failures occurred: 404 Client Error")

    monkeypatch.setattr(LocalArtifactRepository, "download_artifacts", lacks_it)
    (Path(MlflowClient().get_run(run_id).info.artifact_uri) / "scores.parquet").unlink()
    with pytest.raises(TrackingError, match=r"holds no scores\.parquet"):
        read_scores(run_id, registered)


LOST = "the Dask scheduler was lost"


def require_complete(run_id: str) -> None:
    run = MlflowClient().get_run(run_id)
    assert (run.info.status, run.data.tags["congruence.state"]) == ("FINISHED", "complete")
    assert ERROR not in run.data.tags


def test_a_run_that_is_marked_while_it_is_logged_ends_complete(
    evaluation: Evaluation, registered: TrackingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = EvaluationIdentity.of(evaluation)
    run_id = open_run(identity, registered)
    log_batch, failed = MlflowClient.log_batch, []

    def while_metrics_are_logged(client: MlflowClient, run: str, metrics: Any = (), **options: Any) -> None:
        if metrics:
            fail_run(run_id, LOST, registered)
            failed.append(ERROR in MlflowClient().get_run(run_id).data.tags)
        log_batch(client, run, metrics, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", while_metrics_are_logged)
    assert log_evaluation(evaluation, registered) == run_id
    assert failed
    assert all(failed)
    require_complete(run_id)


@pytest.mark.parametrize("moment", ["set_tag", "set_terminated"])
def test_a_run_that_completes_while_it_is_marked_is_complete(
    evaluation: Evaluation, registered: TrackingSettings, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    identity = EvaluationIdentity.of(evaluation)
    run_id = open_run(identity, registered)
    write = getattr(MlflowClient, moment)

    def late(client: MlflowClient, *arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(MlflowClient, moment, write)
        assert log_evaluation(evaluation, registered) == run_id
        write(client, *arguments, **options)

    monkeypatch.setattr(MlflowClient, moment, late)
    fail_run(run_id, LOST, registered)
    require_complete(run_id)


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgreSQL]:
    cluster = PostgreSQL()
    cluster.start()
    yield cluster
    cluster.end()


@pytest.fixture
def settings(cluster: PostgreSQL, tmp_path: Any) -> Iterator[TrackingSettings]:
    with mlflow_at(cluster.address()):
        yield TrackingSettings(uri=cluster.address(), report=False, patience=5, artifact_location=str(tmp_path))


@pytest.mark.skipif(postgresql_program("initdb") is None, reason="PostgreSQL is not installed")
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

    cluster.kill()
    with pytest.raises(TrackingError, match=r"is unreachable: ") as refused:
        log_evaluation(
            make_evaluation(model=evaluation.model, split="late"), settings.model_copy(update={"patience": 1.0})
        )
    assert cluster.password not in str(refused.value)
