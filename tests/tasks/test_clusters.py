"""What a run says when the cluster is lost under it: a remedy, at once; and errors that are not the cluster's pass."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
from distributed import LocalCluster
from loopback import Process, free_port

from congruence.tasks.dask import clusters
from congruence.tasks.dask.clusters import Workers, dask_client
from congruence.tasks.runtime.errors import ClusterError
from congruence.tasks.settings.computing import ClusterSettings
from congruence.tasks.solving import solve


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[Process, ClusterSettings]]:
    """A scheduler without workers, in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    process = Process(command, tmp_path / "scheduler.log")
    process.start()
    yield process, ClusterSettings(kind="address", address=f"tcp://127.0.0.1:{port}")
    process.stop(9)


def test_a_lost_scheduler_is_reported_at_once_with_its_address(scheduler: tuple[Process, ClusterSettings]) -> None:
    process, settings = scheduler
    message = rf"scheduler at {settings.address} was lost.*run the same command"

    def lose_it() -> None:
        with dask_client(settings) as client:
            future = client.submit(time.sleep, 60)
            process.stop(9)
            future.result()

    with pytest.raises(ClusterError, match=message):
        lose_it()


def test_a_cluster_without_workers_is_announced_and_then_given_up(
    scheduler: tuple[Process, ClusterSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "WITHOUT_WORKERS_SECONDS", 0.0)
    said: list[str] = []
    with dask_client(scheduler[1]) as client:
        workers = Workers(client, said.append)
        workers.require()
        with pytest.raises(ClusterError, match=r"no worker.*dask worker"):
            workers.require()
        monkeypatch.setattr(solve, "WORKERS_SECONDS", 0.1)
        with pytest.raises(ClusterError, match=r"no worker.*dask worker"):
            solve.cluster_capacity(client)
    assert ["No workers connected" in line for line in said] == [True]


def test_work_that_kills_its_workers_is_named_with_a_remedy() -> None:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
    ):
        settings = ClusterSettings(kind="address", address=cluster.scheduler_address)
        with pytest.raises(ClusterError, match=r"died.*memory.*run the same command"), dask_client(settings) as client:
            client.submit(os._exit, 1).result()
        with pytest.raises(FileNotFoundError), dask_client(settings):
            Path("/nowhere/at/all").read_bytes()


def own_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """What Python processes that are started from now on do before anything else."""
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def test_worker_processes_that_do_not_come_up_give_way_to_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_start(tmp_path, monkeypatch, "import os; os._exit(3)")
    said: list[str] = []
    with dask_client(ClusterSettings(kind="local", workers=1), said.append) as client:
        assert client.submit(os.getpid).result(timeout=60) == os.getpid()
    assert "trying once more" in said[0]
    assert "going on with threads in this process" in said[1]


def test_a_worker_process_that_is_killed_comes_back_however_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dask_client(ClusterSettings(kind="local", workers=1)) as client:
        first = client.submit(os.getpid, pure=False).result(timeout=60)
        own_start(tmp_path, monkeypatch, "import time; time.sleep(1)")
        os.kill(first, 9)
        second = client.submit(os.getpid, pure=False).result(timeout=60)
        assert second not in (first, os.getpid())
