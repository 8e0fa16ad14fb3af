"""A command stopped or killed in any stage: it ends at once, leaves nothing, and the next one ends as if undisturbed.

One case by default, and some in each stage by `make exercise`. Each stage with each signal, with worker processes
and without, with an MLflow that answers and one that hangs, takes an hour: CONGRUENCE_EVERY_KILL=1 make exercise.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest
from loopback import MlflowServer
from mlflow import MlflowClient
from mlflow.entities import ViewType
from prefect.settings import PREFECT_API_URL

from congruence.tasks.mlflow.identity import run_metrics
from congruence.tasks.mlflow.reading import list_evaluations
from congruence.tasks.runtime.files import ENDING
from congruence.tasks.settings.sections import TrackingSettings

SHARDS = 6
NUMBERS = ("cce_mean", "cce_noise_floor", "nll_mean", "crps_mean", "ece", "mae")
LONGEST_END_SECONDS = 5.0 + 1.0  # until it is seen here
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)


def _measured(store: Path) -> bool:
    return any(store.glob("measurements/**/*.npz"))


def _params_of_runs(experiment: str) -> bool:
    return any("rows" in run.data.params for run in runs_of(experiment))


MOMENTS: dict[str, Callable[[Path, str], bool]] = {
    "embed": lambda store, experiment: len(shards(store)) >= 1,
    "predict": lambda store, experiment: len(predictions(store)) >= 1,
    "solve": lambda store, experiment: len(predictions(store)) >= SHARDS,
    "score": lambda store, experiment: _measured(store),
    # The server is asked no sooner than need be: a hundred times a second it would slow down whom it waits for.
    "log": lambda store, experiment: _measured(store) and _params_of_runs(experiment),
}
"""When a run is in each stage, as soon as what the stage before it (or it itself) leaves behind is seen."""

DEFAULT = ("log", signal.SIGKILL, "answers", "threads")
EVERY = list(itertools.product(MOMENTS, SIGNALS, ("answers", "hangs"), ("threads", "local")))
EXERCISED = EVERY if os.environ.get("CONGRUENCE_EVERY_KILL") else EVERY[::9]  # every stage, signal and condition
CASES: list[Any] = [
    DEFAULT,
    *(pytest.param(*case, marks=pytest.mark.exercise) for case in EXERCISED if case != DEFAULT),
]


@pytest.fixture(scope="module")
def server(registry: Any) -> Iterator[MlflowServer]:
    """MLflow over HTTP, which can be frozen."""
    made = MlflowServer(registry.folder)
    made.start()
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(made.uri)
    yield made
    mlflow.set_tracking_uri(before)
    made.kill()


@pytest.fixture(scope="module")
def undisturbed(registry: Any, server: MlflowServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """In this process, which has loaded everything: what is compared are its numbers."""
    registry.register()
    asked = changes(registry, tmp_path_factory.mktemp("undisturbed"), "congruence", server)
    assert [outcome.status for outcome in registry.evaluated(**asked)] == ["evaluated"]
    return metrics_of_runs("congruence")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("stage", "number", "mlflow_server", "cluster"), CASES)
def test_a_command_ends_at_once_and_the_next_one_ends_as_if_undisturbed(
    registry: Any,
    server: MlflowServer,
    undisturbed: dict[str, float],
    tmp_path: Path,
    stage: str,
    number: signal.Signals,
    mlflow_server: str,
    cluster: str,
) -> None:
    experiment = f"{stage}-{number.name}-{mlflow_server}-{cluster}"
    file = registry.file(**changes(registry, tmp_path, experiment, server, cluster))
    ended = command(file)
    wait_for(lambda: MOMENTS[stage](tmp_path, experiment), ended)
    tree = psutil.Process(ended.pid).children(recursive=True)
    assert server.running is not None
    if mlflow_server == "hangs":
        os.killpg(server.running.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        os.killpg(ended.pid, number)
        status = ended.wait(timeout=60)
        _, alive = psutil.wait_procs(tree, timeout=60)
        took = time.monotonic() - began
    finally:
        os.killpg(server.running.pid, signal.SIGCONT)
    print(f"{experiment}: ended with status {status} after {took:.1f} s")
    assert alive == []
    assert status == (-number if number == signal.SIGKILL else 128 + number)
    assert took < LONGEST_END_SECONDS
    if number == signal.SIGKILL:
        assert stale(experiment, server) == [True]
    elif mlflow_server == "answers":
        (run,) = runs_of(experiment)  # of what was about to end it may be finished
        assert run.info.status in ("FAILED", "FINISHED")

    done = {path: path.stat().st_mtime_ns for path in shards(tmp_path)}
    assert command(file).wait(timeout=250) == 0
    assert {path: path.stat().st_mtime_ns for path in shards(tmp_path) if path in done} == done
    assert metrics_of_runs(experiment) == undisturbed
    assert stale(experiment, server) == []
    assert list((registry.folder / "temporary").glob("process-*")) == []


def changes(
    registry: Any, store: Path, experiment: str, server: MlflowServer, cluster: str = "threads"
) -> dict[str, Any]:
    """Of the evaluation file, mostly with workers that are threads: a run is up in seconds."""
    (split,) = registry.content()["splits"]
    return {
        "models": ["models:/angle/1"],
        "splits": [split | {"shard_rows": 27}],
        "store": {"uri": str(store)},
        "tracking": {"experiment": experiment, "uri": server.uri},
        "cluster": {"kind": cluster, "workers": 1},
    }


def command(file: Path) -> subprocess.Popen[bytes]:
    # One Prefect server for all runs.
    arguments = [sys.executable, "-m", "congruence.flows.cli.main", "evaluate", str(file)]
    return subprocess.Popen(
        arguments, start_new_session=True, env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())}
    )


def stale(experiment: str, server: MlflowServer) -> list[bool | None]:
    """Of the evaluations that MLflow shows as running."""
    (version,) = list_evaluations(["models:/angle/1"], TrackingSettings(uri=server.uri, experiment=experiment))
    return [found.is_stale for found in version.under_way]


def shards(store: Path) -> list[Path]:
    return sorted(path for path in store.glob("*/*/embeddings/c.*") if path.suffix != ENDING)


def predictions(store: Path) -> list[Path]:
    return sorted(store.glob("predictions/*/*.npz"))


def wait_for(condition: Any, process: subprocess.Popen[bytes], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def runs_of(experiment: str) -> list[mlflow.entities.Run]:
    client = MlflowClient()
    found = client.get_experiment_by_name(f"{experiment}/evaluations")
    return [] if found is None else list(client.search_runs([found.experiment_id], run_view_type=ViewType.ACTIVE_ONLY))


def metrics_of_runs(experiment: str) -> dict[str, float]:
    (run,) = runs_of(experiment)
    assert run.info.status == "FINISHED"
    return {name: metric.value for name, metric in run_metrics(run).items() if name in NUMBERS}
