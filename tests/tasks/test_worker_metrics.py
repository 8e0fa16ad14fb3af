"""Every worker's processor, memory and card are logged while an evaluation runs, and nothing after it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from databases import mlflow_database
from distributed import Client, LocalCluster
from loopback import wait_until
from mlflow import MlflowClient

from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.worker_metrics import readings, worker_metrics


@pytest.fixture
def tracked(tmp_path: Path) -> tuple[MlflowClient, str, TrackingSettings]:
    settings = TrackingSettings(uri=mlflow_database(tmp_path))
    client = MlflowClient(settings.uri)
    return client, client.create_run("0").info.run_id, settings


def told(client: MlflowClient, run: str, worker: int) -> int:
    return len(client.get_metric_history(run, f"system/worker-{worker}/cpu_utilization_percentage"))


def test_each_worker_s_numbers_stand_under_its_own_and_end_with_the_block(tracked: Any) -> None:
    client, run, settings = tracked
    options: dict[str, Any] = {"processes": False, "protocol": "tcp", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, threads_per_worker=1, memory_limit="1GiB", **options) as cluster:
        with Client(cluster) as dask, worker_metrics(dask, run, settings, 0.2):
            wait_until(
                lambda: min(told(client, run, number) for number in (0, 1)) >= 2, 60, "two numbers of each worker"
            )
        assert not [thread for thread in threading.enumerate() if thread.name == "congruence-worker-metrics"]
    found = client.get_run(run).data
    for number in (0, 1):
        own = {name: value for name, value in found.metrics.items() if name.startswith(f"system/worker-{number}/")}
        assert {name.rpartition("/")[2] for name in own} == {
            "cpu_utilization_percentage", "memory_usage_megabytes", "memory_usage_percentage",
        }  # fmt: skip
        assert own[f"system/worker-{number}/memory_usage_megabytes"] > 10
        assert " at tcp://" in found.tags[f"worker-{number}"]
    assert "worker-2" not in found.tags
    until_now = told(client, run, 0)
    time.sleep(0.5)
    assert told(client, run, 0) == until_now


class Scheduler:
    """What a scheduler says of its workers, one answer after the other."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {"workers": answer}


def test_a_worker_that_starts_again_keeps_its_number_and_a_silent_one_says_nothing(tracked: Any) -> None:
    client, run, settings = tracked

    def worker(name: str, at: float, cpu: float) -> dict[str, Any]:
        return {"name": name, "host": "h", "memory_limit": 100, "metrics": {"time": at, "cpu": cpu}}

    dask: Any = Scheduler(
        {"tcp://h:1": worker("a", 1.0, 10.0), "tcp://h:2": worker("b", 1.0, 20.0)},
        OSError("the scheduler is away"),
        {"tcp://h:9": worker("a", 2.0, 11.0), "tcp://h:2": worker("b", 1.0, 20.0)},
        {"tcp://h:3": worker("c", 3.0, 30.0)},
    )
    with worker_metrics(dask, run, settings, 0.05):
        wait_until(lambda: told(client, run, 2) > 0, 60, "a number of the third worker")

    def values(number: int) -> list[float]:
        return [
            item.value for item in client.get_metric_history(run, f"system/worker-{number}/cpu_utilization_percentage")
        ]

    assert (values(0), values(1), values(2)) == ([10.0, 11.0], [20.0], [30.0])
    tags = client.get_run(run).data.tags
    assert [tags[f"worker-{number}"] for number in range(3)] == ["a at tcp://h:1", "b at tcp://h:2", "c at tcp://h:3"]


def test_a_worker_s_card_is_among_its_numbers() -> None:
    said = {"cpu": 50.0, "memory": 2e9, "gpu": {"utilization": 80, "memory-used": 40e9}}
    assert readings({"memory_limit": 8e9, "metrics": said, "gpu": {"memory-total": 160e9, "name": "H200"}}) == {
        "cpu_utilization_percentage": 50.0,
        "memory_usage_megabytes": 2000.0,
        "memory_usage_percentage": 25.0,
        "gpu_0_utilization_percentage": 80.0,
        "gpu_0_memory_usage_megabytes": 40000.0,
        "gpu_0_memory_usage_percentage": 25.0,
    }
    assert readings({"metrics": {}}) == {}
