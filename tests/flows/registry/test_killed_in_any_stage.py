"""A run killed in any of its stages: only what was not finished is redone, and the end is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient
from prefect.settings import PREFECT_API_URL

SHARDS = 6
NUMBERS = ("cce_mean", "cce_noise_floor", "nll_mean", "crps_mean", "ece", "mae")


@pytest.mark.timeout(900)  # eleven commands, each from a new process on
@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_a_run_killed_in_any_stage_continues_and_ends_with_the_same_numbers(registry: Any, tmp_path: Path) -> None:
    uri = registry.register()
    undisturbed = command(registry, uri, store=tmp_path / "undisturbed")
    assert undisturbed.wait(timeout=250) == 0
    expected = metrics_of_runs()

    for stage in MOMENTS if os.environ.get("CONGRUENCE_EVERY_KILL") else ("predict", "log"):
        reached, store = MOMENTS[stage], tmp_path / stage
        killed = command(registry, uri, store=store, experiment=stage)
        wait_for(lambda reached=reached, store=store, stage=stage: reached(store, stage), killed)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait(timeout=30)
        done = {path: path.stat().st_mtime_ns for path in markers(store)}

        again = command(registry, uri, store=store, experiment=stage)
        assert again.wait(timeout=250) == 0
        assert {path: path.stat().st_mtime_ns for path in markers(store) if path in done} == done
        assert metrics_of_runs(stage) == expected, stage


def _params_of_runs(experiment: str) -> bool:
    found = MlflowClient().get_experiment_by_name(f"{experiment}/circle")
    runs = [] if found is None else mlflow.search_runs([found.experiment_id], output_format="list")
    return any(run.data.params for run in runs)


MOMENTS: dict[str, Callable[[Path, str], bool]] = {
    "embed": lambda store, stage: len(markers(store)) >= 1,
    "predict": lambda store, stage: len(predictions(store)) >= 1,
    "solve": lambda store, stage: len(predictions(store)) >= SHARDS,
    "score": lambda store, stage: any(store.glob("measurements/**/*.npz")),
    "log": lambda store, stage: _params_of_runs(stage),
}
"""When a run is killed in each stage, as soon as what the stage before it (or it itself) leaves behind is seen.

Two of them by default; all five, which takes minutes, where CONGRUENCE_EVERY_KILL is set.
"""


def command(registry: Any, uri: str, *, store: Path, experiment: str = "congruence") -> subprocess.Popen[bytes]:
    # One Prefect server for all runs, and workers that are threads: a run is up in seconds.
    (split,) = registry.content()["splits"]
    file = registry.file(
        models=[uri],
        splits=[split | {"shard_rows": 27}],
        store={"uri": str(store)},
        tracking={"experiment": experiment},
        cluster={"kind": "threads"},
    )
    arguments = [sys.executable, "-m", "congruence.flows.cli.main", "evaluate", str(file)]
    server = {"PREFECT_API_URL": str(PREFECT_API_URL.value())}
    return subprocess.Popen(arguments, start_new_session=True, env={**os.environ, **server})


def markers(store: Path) -> list[Path]:
    return sorted(path for path in store.glob("*/done/*") if path.is_file())


def predictions(store: Path) -> list[Path]:
    return sorted(path for path in store.glob("predictions/*/*/done/*") if path.is_file())


def wait_for(condition: Any, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def metrics_of_runs(experiment: str = "congruence") -> dict[str, float]:
    found = MlflowClient().get_experiment_by_name(f"{experiment}/circle")
    assert found is not None
    runs = mlflow.search_runs([found.experiment_id], output_format="list")
    assert len(runs) == 1
    return {name: runs[0].data.metrics[name] for name in NUMBERS}
