"""What the servers of a stack must hold before others use them: a bucket, a webhook, no run that nobody carries out."""

from __future__ import annotations

import base64
import os
import urllib.request
from typing import Any

from congruence.flows.stack.place import BUCKET, POOL, Place
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.stack.tether import descendants


def make_bucket(place: Place) -> None:
    """The bucket of embeddings, predictions and artifacts."""
    import boto3
    from botocore.exceptions import ClientError

    known = place.s3_environment()
    client = boto3.client(
        "s3",
        endpoint_url=known["AWS_ENDPOINT_URL"],
        region_name=known["AWS_DEFAULT_REGION"],
        aws_access_key_id=known["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=known["AWS_SECRET_ACCESS_KEY"],
    )
    try:
        client.create_bucket(Bucket=BUCKET)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise


def make_webhook(place: Place) -> None:
    """MLflow's webhook of new versions to the receiver, which knows its secret."""
    from congruence.tasks.watching.registration import register_webhook

    settings = TrackingSettings(uri=place.http("mlflow"))
    register_webhook(f"{place.http('receiver')}/mlflow", place.words["webhook"], settings)


def has_pool(place: Place) -> bool:
    """Whether Prefect's worker has come so far as to make the work pool that deployments name.

    Raises:
        OSError: it has not, or the server does not answer.
    """
    login = base64.b64encode(f"congruence:{place.words['prefect']}".encode()).decode()
    asked = urllib.request.Request(
        f"{place.http('prefect')}/api/work_pools/{POOL}", headers={"Authorization": f"Basic {login}"}
    )
    with urllib.request.urlopen(asked, timeout=10.0) as answer:
        return bool(answer.status == 200)


def clear_abandoned_runs(place: Place) -> None:
    """Settle the pool's runs that no process carries out: their worker, or the whole stack, was killed.

    Those that had begun become crashed, with the flows that they had called; those that had not are scheduled again;
    those that were being cancelled are cancelled. To be called while no worker takes runs.
    """
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
    from prefect.states import Cancelled, Crashed, Scheduled

    alive = {str(pid) for pid in descendants(os.getppid())}
    with SyncPrefectClient(
        f"{place.http('prefect')}/api", auth_string=f"congruence:{place.words['prefect']}"
    ) as client:
        for run in client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate(
                {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}
            ),
            work_pool_filter=WorkPoolFilter.model_validate({"name": {"any_": [POOL]}}),
        ):
            if str(run.infrastructure_pid).rpartition(":")[2] in alive or run.state is None:
                continue
            if run.state.is_pending():
                client.set_flow_run_state(run.id, Scheduled(message="its worker ended before it began"), force=True)
                continue
            ended: Any = Cancelled if run.state.is_cancelling() else Crashed
            state = ended(message="the process that carried it out has ended with its worker")
            for each in (*_called_by(client, run.id), run.id):
                client.set_flow_run_state(each, state, force=True)


def _called_by(client: Any, run: Any) -> list[Any]:
    """The flow runs that a run had called and that have not ended, the innermost first."""
    from prefect.client.schemas.filters import FlowRunFilter

    called = client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(
            {
                "parent_flow_run_id": {"any_": [str(run)]},
                "state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING", "SCHEDULED", "PAUSED"]}},
            }
        )
    )
    return [each for child in called for each in (*_called_by(client, child.id), child.id)]
