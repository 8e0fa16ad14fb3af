"""What it costs to log every worker's processor and memory: CPU seconds of a sample, by the number of workers.

python tests/benchmarks/worker_metrics.py [workers ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster
from mlflow import MlflowClient

from congruence.tasks.mlflow.connection import connect
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.system_metrics import INTERVAL
from congruence.tasks.mlflow.worker_metrics import WORKERS_AT_A_TIME, _Sampler

SAMPLES = 20


def measure(workers: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = TrackingSettings(uri=f"sqlite:///{Path(folder) / 'mlflow.db'}")
        run = MlflowClient(settings.uri).create_run("0").info.run_id
        options: dict[str, Any] = {"processes": False, "protocol": "tcp", "dashboard_address": None}
        with (
            LocalCluster(n_workers=min(workers, 4), threads_per_worker=1, **options) as cluster,
            Client(cluster) as dask,
        ):
            sampler = _Sampler(_Copies(dask, workers), run, settings, INTERVAL)  # type: ignore[arg-type]
            sampler._sample(connect(settings))
            spent = time.thread_time()
            for _ in range(SAMPLES):
                sampler._sample(connect(settings))
            each = (time.thread_time() - spent) / SAMPLES
    apart = INTERVAL * max(1.0, workers / WORKERS_AT_A_TIME)
    print(f"| {workers} | {1000 * each:.1f} ms | {apart:.0f} s | {100 * each / apart:.3f} % |")


class _Copies:
    """A scheduler's answer with as many workers as asked for: those of a real one, under other names."""

    def __init__(self, client: Client, workers: int) -> None:
        self._client, self._workers = client, workers

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        real = list(self._client.scheduler_info(n_workers=n_workers)["workers"].values())
        copies = [real[index % len(real)] | {"name": f"w{index}"} for index in range(self._workers)]
        for copy in copies:
            copy["metrics"] = copy["metrics"] | {"time": time.time()}
        return {"workers": {f"tcp://host:{index}": copy for index, copy in enumerate(copies)}}


if __name__ == "__main__":
    print("| workers | CPU of a sample | every | of one core |\n|---:|---:|---:|---:|")
    for count in [int(word) for word in sys.argv[1:]] or [2, 16, 64, 256]:
        measure(count)
