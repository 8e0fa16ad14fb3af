"""A run whose worker was killed still ends when it is cancelled: in Prefect, in MLflow, and as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from loopback import wait_until
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelling

from congruence.flows.scheduling.serve import served_deployments
from congruence.tasks.stack.tether import is_alive

ENGINE = """
import runpy, time
from congruence.flows.prefect import cancelled
cancelled.LOOK_SECONDS = 0.5
runpy.run_module("prefect.engine", run_name="__main__")
"""
WORKER = """
import subprocess, sys, time
with open("run.log", "wb") as log:
    run = subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=log, stderr=log)
print(run.pid, flush=True)
time.sleep(600)
"""


class Worked:
    """A run of the deployment as Prefect's worker starts it: a process that leads a group, below the worker's."""

    def __init__(self, run: str, folder: Path) -> None:
        environment = os.environ | {
            "PREFECT_API_URL": str(PREFECT_API_URL.value()),
            "PREFECT__FLOW_RUN_ID": run,
            "PREFECT__FLOW_ENTRYPOINT": "congruence.flows.scheduling.deployed_flows.watch_registry",
            "PREFECT__ENABLE_CANCELLATION_AND_CRASHED_HOOKS": "false",
        }
        command = [sys.executable, "-c", WORKER, sys.executable, "-c", ENGINE]
        self.worker = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=folder)
        assert self.worker.stdout is not None
        self.pid = int(self.worker.stdout.readline())

    def kill_worker(self) -> None:
        self.worker.kill()
        self.worker.wait()


@pytest.fixture
def worked() -> Iterator[list[Worked]]:
    started: list[Worked] = []
    yield started
    for each in started:
        each.kill_worker()
        if is_alive(each.pid):
            os.killpg(each.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_a_cancelled_run_whose_worker_was_killed_ends_itself(
    registry: Any, worked: list[Worked], tmp_path: Path
) -> None:
    registry.register("patient", seconds=3.0)
    notices = registry.folder / "notices.txt"
    (split,) = registry.content()["splits"]
    splits = [split | {"shard_rows": 16}]  # of three seconds each
    file = registry.file(models=["patient"], splits=splits, notify={"command": ["tee", "-a", str(notices)]})
    scheduled, _ = served_deployments(file, "patient", "0 0 1 1 *")
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(scheduled.apply()).id
        worked.append(started := Worked(str(run), tmp_path))
        wait_until(lambda: evaluations() == ["RUNNING"], 90, "the evaluation")
        assert claims("patient")
        started.kill_worker()
        assert is_alive(started.pid)
        client.set_flow_run_state(run, Cancelling())
        wait_until(lambda: not is_alive(started.pid), 90, "the end of its process")
        assert client.read_flow_run(run).state.type == "CANCELLED"
    assert evaluations() == ["FAILED"]
    assert claims("patient") == []
    assert not notices.exists(), "nobody is told of what somebody wanted"


def evaluations() -> list[str]:
    found = MlflowClient().get_experiment_by_name("congruence/circle")
    runs = [] if found is None else mlflow.search_runs([found.experiment_id], output_format="list")
    return [run.info.status for run in runs]


def claims(name: str) -> list[str]:
    tags = MlflowClient().get_model_version(name, "1").tags
    return [key for key in tags if key.startswith("congruence.claim")]
