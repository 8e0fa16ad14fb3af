"""What MLflow's record of a logged model says of it for ever: read once a process.

The record brings every metric that was ever logged for the model, thousands after some dozens of evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mlflow import MlflowClient


@dataclass(frozen=True)
class LoggedModelRecord:
    """A logged model's name, the run that logged it (None without one) and the address of its artifacts."""

    name: str
    run_id: str | None
    artifacts: str


def logged_model_record(client: MlflowClient, model_id: str) -> LoggedModelRecord:
    """The record of the logged model of this id on the client's tracking server.

    Raises:
        MlflowException: there is none, or MLflow does not answer.
    """
    return _record(str(client.tracking_uri), model_id)


@lru_cache(maxsize=1024)
def _record(tracking_uri: str, model_id: str) -> LoggedModelRecord:
    found = MlflowClient(tracking_uri=tracking_uri).get_logged_model(model_id)
    return LoggedModelRecord(str(found.name or ""), found.source_run_id or None, str(found.artifact_location))
