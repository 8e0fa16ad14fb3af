"""CPU, memory and card of every Dask worker while versions are evaluated, beside the metrics of this machine.

Workers measure themselves and tell their scheduler with every heartbeat; the process of the evaluation asks the
scheduler now and then. So nothing is started on a worker, nothing can be left running there, and none needs MLflow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from distributed import Client
from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag

from congruence.tasks.mlflow.connection import connect
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.masking import mask_text

WORKERS_AT_A_TIME = 64
"""Of more workers the samples are as many times further apart, so that MLflow has no more to write."""
_LARGEST_BATCH = 1000
_JOIN_SECONDS = 2.0


@contextmanager
def worker_metrics(client: Client, run_id: str, settings: TrackingSettings, interval: float) -> Iterator[None]:
    """Log ``system/worker-N/...`` to a run while the block runs; the tag ``worker-N`` says which worker that is.

    There are ``interval`` seconds between two samples. A scheduler or an MLflow that does not answer costs those of
    that time, nothing else.
    """
    sampler = _Sampler(client, run_id, settings, interval)
    thread = threading.Thread(target=sampler.run, name="congruence-worker-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sampler.stopped.set()
        thread.join(_JOIN_SECONDS)  # a lost scheduler may be asked for longer: the thread ends after that


def readings(worker: Mapping[str, Any]) -> dict[str, float]:
    """What a worker said of itself with its last heartbeat, under the names that MLflow gives a machine's numbers.

    The processor's share is in percent of one core, memory that of the process, also in percent of the worker's limit.
    """
    said = worker.get("metrics") or {}
    found: dict[str, float] = {}
    if "cpu" in said:
        found["cpu_utilization_percentage"] = float(said["cpu"])
    if "memory" in said:
        found |= _memory("memory", float(said["memory"]), worker.get("memory_limit"))
    if card := said.get("gpu"):
        found["gpu_0_utilization_percentage"] = float(card["utilization"])
        total = (worker.get("gpu") or {}).get("memory-total")
        found |= _memory("gpu_0_memory", float(card["memory-used"]), total)
    return found


def _memory(name: str, used: float, limit: float | None) -> dict[str, float]:
    shares = {f"{name}_usage_percentage": 100.0 * used / limit} if limit else {}
    return {f"{name}_usage_megabytes": used / 1e6, **shares}


class _Sampler:
    def __init__(self, client: Client, run_id: str, settings: TrackingSettings, interval: float) -> None:
        self.stopped = threading.Event()
        self._client, self._run_id, self._settings, self._interval = client, run_id, settings, interval
        self._numbers: dict[str, int] = {}
        self._heard: dict[str, float] = {}
        self._started: int | None = None

    def run(self) -> None:
        workers = 0
        while not self.stopped.is_set():
            with suppress(Exception):  # of a scheduler or a server that is away: the stages of the evaluation say so
                workers = self._sample(connect(self._settings))
            self.stopped.wait(self._interval * max(1.0, workers / WORKERS_AT_A_TIME))

    def _sample(self, mlflow: MlflowClient) -> int:
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        if self._started is None:
            self._started = int(mlflow.get_run(self._run_id).info.start_time)
        now = int(time.time() * 1000)
        step = (now - self._started) // 1000  # of a run that is taken up again they go on
        new = self._number(workers)
        metrics = [
            Metric(f"system/worker-{self._numbers[_name(worker)]}/{name}", value, now, step)
            for worker in workers.values()
            if self._is_news(worker)
            for name, value in readings(worker).items()
        ]
        if self.stopped.is_set():  # the run may be closed
            return len(workers)
        for start in range(0, max(len(metrics), len(new)), _LARGEST_BATCH):
            mlflow.log_batch(self._run_id, metrics[start : start + _LARGEST_BATCH], tags=new if start == 0 else [])
        return len(workers)

    def _number(self, workers: Mapping[str, Mapping[str, Any]]) -> list[RunTag]:
        """Gives each worker that is new a number that it keeps, and the tags that say which it is."""
        tags = []
        for address, worker in sorted(workers.items(), key=lambda item: (str(item[1].get("host")), item[0])):
            if _name(worker) not in self._numbers:
                number = self._numbers[_name(worker)] = len(self._numbers)
                tags.append(RunTag(f"worker-{number}", mask_text(f"{_name(worker)} at {address}")))
        return tags

    def _is_news(self, worker: Mapping[str, Any]) -> bool:
        """Whether a worker said something since the last sample: one that is silent has no known numbers."""
        at = float((worker.get("metrics") or {}).get("time", worker.get("last_seen", 0.0)))
        before, self._heard[_name(worker)] = self._heard.get(_name(worker)), at
        return at != before


def _name(worker: Mapping[str, Any]) -> str:
    """A worker that was started again has another address and the same name."""
    return str(worker.get("name"))
