"""Opening and closing the run of an evaluation: a second process finds the first one's run and continues it.

A run whose attempt failed is replaced.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import psutil
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from congruence.tasks.mlflow.connection import TrackingError, connect, experiment_id, of_deleted_run, with_retries
from congruence.tasks.mlflow.identity import (
    COMPLETE,
    IDENTITY,
    OPEN,
    PREFIX,
    STATE,
    EvaluationIdentity,
    experiments_of,
    runs_of,
)
from congruence.tasks.mlflow.pages import prepare_experiment
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.masking import mask_text

ERROR = PREFIX + "error"
PROCESS = PREFIX + "process"
"""The tag of a run that is open with the process that works on it: host, number and start."""
T = TypeVar("T")
_LONGEST_PARAM = 500
_WRITERS = 3
_CLOCK_SECONDS = 5.0
"""A process's start follows the machine's clock, which is set now and then."""
SOURCE = {"mlflow.source.name": "congruence", "mlflow.source.type": "JOB"}


def open_run(identity: EvaluationIdentity, settings: TrackingSettings) -> str:
    """Returns the run of this evaluation, found or made."""
    client = connect(settings)

    def open_it() -> str:
        run_id = str(find_or_create(client, identity, settings).info.run_id)
        client.set_tag(run_id, PROCESS, f"{socket.gethostname()} {os.getpid()} {psutil.Process().create_time():.0f}")
        return run_id

    return with_retries("opening the run", open_it, settings)


def has_ended(process: str) -> bool | None:
    """Whether the process that a run's tag ``PROCESS`` names has ended; None where it is another machine's, or none."""
    if len(parts := process.split()) != 3 or parts[0] != socket.gethostname():
        return None
    try:
        return abs(psutil.Process(int(parts[1])).create_time() - float(parts[2])) > _CLOCK_SECONDS
    except psutil.NoSuchProcess:
        return True


def find_or_create(client: MlflowClient, identity: EvaluationIdentity, settings: TrackingSettings) -> Run:
    """The one run of this evaluation. Of several made at the same moment the oldest stays, the others are deleted."""
    experiment = experiment_id(client, settings.experiment_name(identity.split_name, identity.target), settings)
    prepare_experiment(client, experiment, "evaluation", settings)
    places = experiments_of(client, identity.split_name, settings)
    runs = _without_failed(client, runs_of(client, identity.digest, places))
    if not runs:
        client.create_run(
            experiment,
            run_name=identity.run_name,
            tags={**identity.tags, **SOURCE, IDENTITY: identity.digest, STATE: OPEN},
        )
        runs = runs_of(client, identity.digest, places)
    first, *others = runs
    for run in others:
        client.delete_run(run.info.run_id)
    return _taken_up(client, first)


def _without_failed(client: MlflowClient, runs: list[Run]) -> list[Run]:
    """The runs but those whose attempt failed: these are deleted, so that a run's duration is that of its own attempt.

    MLflow keeps a run's start for ever. What a failed attempt had logged is logged again.
    """
    failed = [run for run in runs if run.info.status == "FAILED" and run.data.tags.get(STATE) == OPEN]
    for run in failed:
        client.delete_run(run.info.run_id)
    return [run for run in runs if run not in failed]


def _taken_up(client: MlflowClient, run: Run) -> Run:
    """A run that was cut off just before its end goes on: it is running again."""
    if run.data.tags.get(STATE) != OPEN or run.info.status == "RUNNING":
        return run
    client.update_run(run.info.run_id, status="RUNNING")
    return client.get_run(run.info.run_id)


def among_writers(write: Callable[[], T]) -> T:
    """The result of ``write``, once more where its run was deleted meanwhile.

    Of several who open a run at the same moment one deletes the others' runs: these go on in its own.
    """
    for _ in range(_WRITERS):
        try:
            return write()
        except TrackingError as error:
            if not of_deleted_run(error):
                raise
    return write()


def open_identified(
    client: MlflowClient, experiment: str, name: str, identity: str, tags: Mapping[str, str], settings: TrackingSettings
) -> Run:
    """The run of that identity in the experiment of that name, found or made; the oldest where there are several."""
    place = experiment_id(client, experiment, settings)
    prepare_experiment(client, place, tags.get(PREFIX + "kind", ""), settings)
    found = runs_of(client, identity, [place])
    marks = {**SOURCE, **tags, IDENTITY: identity, STATE: OPEN}
    return found[0] if found else client.create_run(place, run_name=name, tags=marks)


def fail_run(identity: EvaluationIdentity, message: str, settings: TrackingSettings) -> None:
    """Mark an opened run as failed with its error; the next attempt has a run of its own in its place.

    Whoever calls this may have lost a worker that goes on and completes the run meanwhile: then it is complete.
    """
    client = connect(settings)

    def mark() -> None:
        for run in runs_of(client, identity.digest, experiments_of(client, identity.split_name, settings)):
            if run.data.tags.get(STATE) == OPEN:
                client.set_tag(run.info.run_id, ERROR, mask_text(message))
                client.set_terminated(run.info.run_id, "FAILED")
                settle_complete(client, run.info.run_id)

    with_retries("marking the run as failed", mark, settings)


def settle_complete(client: MlflowClient, run_id: str) -> None:
    """Take what marks a failure off a run that is complete; called by who marks and who completes.

    Each of them writes first and looks then, so the later of two who do so at once sees what the other has written.
    """
    run = client.get_run(run_id)
    if run.data.tags.get(STATE) != COMPLETE:
        return
    if ERROR in run.data.tags:
        try:
            client.delete_tag(run_id, ERROR)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # the other one was here before
                raise
    if run.info.status != "FINISHED":
        client.set_terminated(run_id, "FINISHED", end_time=run.info.end_time)


def log_params(client: MlflowClient, run: Run, params: Mapping[str, object]) -> bool:
    """Log the parameters that ``run`` lacks, without secrets, those that are None left out.

    False where one that it has differs, since MLflow never changes one.
    """
    present = run.data.params
    wanted = {key: mask_text(str(value))[:_LONGEST_PARAM] for key, value in params.items() if value is not None}
    if any(key in present and present[key] != value for key, value in wanted.items()):
        return False
    missing = [Param(key, value) for key, value in wanted.items() if key not in present]
    for start in range(0, len(missing), 100):
        client.log_batch(run.info.run_id, params=missing[start : start + 100])
    return True


def log_metrics(client: MlflowClient, run_id: str, metrics: Sequence[Metric]) -> None:
    """Log metrics, however many: a request takes 1,000."""
    for start in range(0, len(metrics), 500):
        client.log_batch(run_id, metrics=metrics[start : start + 500])


def set_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags on a run."""
    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])


def close_run(client: MlflowClient, run_id: str, state: str) -> None:
    """End a run; ``state`` is written last, so that a run that says complete is complete."""
    client.set_terminated(run_id, "FINISHED", end_time=int(time.time() * 1000))
    client.set_tag(run_id, STATE, state)
    settle_complete(client, run_id)
