"""A worker killed while it embeds, and embedded parts on a slow machine: only what was not finished is redone."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from congruence.tasks.data.split import open_split
from congruence.tasks.evaluate.evaluation import Steps
from congruence.tasks.evaluate.executors import Observer, dask_executor
from congruence.tasks.evaluate.pieces import rows_of
from congruence.tasks.runtime.files import ENDING
from congruence.tasks.settings.evaluation import EvaluationSettings

SHARDS = 6
ENCODER_FOLDER = Path(__file__).parents[1]
Content = Callable[..., dict[str, Any]]


def test_a_flow_survives_the_death_of_a_worker(
    content: Content, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ENCODER_FOLDER))
    undisturbed, store = tmp_path / "undisturbed", tmp_path / "killed"
    embed(content, home, undisturbed, {"kind": "threads"})

    done: dict[Path, int] = {}
    killed: list[int] = []

    def kill() -> None:
        while not shards(store):
            time.sleep(0.01)
        done.update({path: path.stat().st_mtime_ns for path in shards(store)})
        server = next(child for child in psutil.Process().children() if "forkserver" in " ".join(child.cmdline()))
        worker = server.children()[0]
        worker.kill()
        killed.append(worker.pid)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    embed(content, home, store, {"kind": "local", "workers": 2}, pause=0.04)
    killer.join(timeout=0)
    assert len(killed) == 1
    assert 1 <= len(done) < len(shards(undisturbed))
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert files(store) == files(undisturbed)


def embed(content: Content, home: Path, store: Path, cluster: dict[str, Any], pause: float = 0.0) -> None:
    """The part of an evaluation that embeds."""
    encoder = {"kind": "custom", "path": "embed_process:PixelEncoder", "options": {"pause": pause}}
    changed = content(home=str(home), store={"uri": str(store)}, encoder=encoder, cluster=cluster)
    settings = EvaluationSettings.model_validate(changed)
    rows = rows_of(settings, open_split(settings.splits[0], settings.plans_folder))
    with dask_executor(settings.cluster, print) as executor:
        Steps(settings, executor, Observer()).embed(rows)


def files(folder: Path) -> dict[str, bytes]:
    """All but what the killed worker left half-written."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ENDING)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def shards(store: Path) -> list[Path]:
    return sorted(path for path in store.glob("*/*/embeddings/c.*") if path.suffix != ENDING)


SHARE, SLICE_SECONDS = 0.25, 0.2


@contextmanager
def a_quarter_of_the_processor(process: psutil.Process) -> Iterator[None]:
    """Stops the process and all that it started for three quarters of the time."""
    ended = threading.Event()

    def family() -> list[psutil.Process]:
        with suppress(psutil.Error):
            return [process, *process.children(recursive=True)]
        return []

    def limit() -> None:
        while not ended.is_set():
            stopped = family()
            for one in stopped:
                with suppress(psutil.Error):
                    one.suspend()
            time.sleep((1 - SHARE) * SLICE_SECONDS)
            for one in stopped:
                with suppress(psutil.Error):
                    one.resume()
            time.sleep(SHARE * SLICE_SECONDS)

    limiter = threading.Thread(target=limit, daemon=True)
    limiter.start()
    try:
        yield
    finally:
        ended.set()
        limiter.join()


WORKERS = """
import os
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.settings.parts import ClusterSettings
if __name__ == "__main__":
    with dask_client(ClusterSettings(kind="local", workers=2), print) as client:
        assert os.getpid() not in client.run(os.getpid).values()
        print("workers", len(client.run(os.getpid)))
"""


def said_by(code: str, folder: Path) -> str:
    script = folder / "script.py"
    script.write_text(code)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_API")}
    environment |= {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_LOGGING_LEVEL": "ERROR"}
    command = ["nice", "-n", "19", sys.executable, str(script)]
    started = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
    )
    with a_quarter_of_the_processor(psutil.Process(started.pid)):
        return started.communicate(timeout=280)[0]


@pytest.mark.exercise
def test_worker_processes_come_up(tmp_path: Path) -> None:
    assert "workers 2" in said_by(WORKERS, tmp_path)
