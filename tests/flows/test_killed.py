"""A run, or a worker of it, killed while it embeds: only what was not finished is redone, and the end is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest
import yaml
from mlflow import MlflowClient
from prefect import flow
from prefect.settings import PREFECT_API_URL
from prefect_dask.task_runners import DaskTaskRunner

from congruence.flows.splits import open_planned
from congruence.flows.stages import embed as stages
from congruence.flows.stages.addresses import rows_of
from congruence.tasks.clusters import dask_client, scheduler_address
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.settings.evaluation import EvaluationSettings

SHARDS = 6
ENCODER_FOLDER = Path(__file__).parents[1] / "tasks" / "embedding"
NUMBERS = ("cce_mean", "cce_noise_floor", "nll_mean", "crps_mean", "ece", "mae")
Content = Callable[..., dict[str, Any]]
Register = Callable[..., str]


@pytest.mark.timeout(900)  # eleven commands, each from a new process on
@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_a_run_killed_in_any_stage_continues_and_ends_with_the_same_numbers(
    content: Content, home: Path, tmp_path: Path, register_law: Register
) -> None:
    uri = register_law()
    undisturbed = command(content, home, uri, tmp_path / "undisturbed.yaml", store=tmp_path / "undisturbed")
    assert undisturbed.wait(timeout=250) == 0
    expected = metrics_of_runs()

    for stage in MOMENTS if os.environ.get("CONGRUENCE_EVERY_KILL") else ("predict", "log"):
        reached, store = MOMENTS[stage], tmp_path / stage
        killed = command(content, home, uri, tmp_path / "killed.yaml", store=store, experiment=stage)
        wait_for(lambda reached=reached, store=store, stage=stage: reached(store, stage), killed)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait(timeout=30)
        done = {path: path.stat().st_mtime_ns for path in markers(store)}

        again = command(content, home, uri, tmp_path / "killed.yaml", store=store, experiment=stage)
        assert again.wait(timeout=250) == 0
        assert {path: path.stat().st_mtime_ns for path in markers(store) if path in done} == done
        assert metrics_of_runs(stage) == expected, stage


def _params_of_runs(experiment: str) -> bool:
    found = MlflowClient().get_experiment_by_name(f"{experiment}/digits")
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


@pytest.mark.usefixtures("prefect_server")
def test_a_flow_survives_the_death_of_a_worker(
    content: Content, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ENCODER_FOLDER))
    undisturbed, store = tmp_path / "undisturbed", tmp_path / "killed"
    embed(content, home, undisturbed, {"kind": "threads"})

    done: dict[Path, int] = {}

    def kill() -> None:
        while not markers(store):
            time.sleep(0.01)
        done.update({path: path.stat().st_mtime_ns for path in markers(store)})
        worker = next(child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline()))
        worker.kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    embed(content, home, store, {"kind": "local", "workers": 2}, pause=0.04)
    killer.join(timeout=0)
    assert 1 <= len(done) < len(markers(undisturbed))
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert files(store) == files(undisturbed)


def embed(content: Content, home: Path, store: Path, cluster: dict[str, Any], pause: float = 0.0) -> None:
    """The part of an evaluation that embeds."""
    encoder = {"kind": "custom", "path": "embed_process:PixelEncoder", "options": {"pause": pause}}
    changed = content(home=str(home), store={"uri": str(store)}, encoder=encoder, cluster=cluster)
    settings = EvaluationSettings.model_validate(changed)

    rows = rows_of(settings, open_planned(settings.splits[0], settings))
    with dask_client(settings.cluster) as client:
        runner: Any = DaskTaskRunner(address=scheduler_address(client))
        only_embed.with_options(task_runner=runner)(settings, rows)


@flow(name="embed", validate_parameters=False)
def only_embed(settings: EvaluationSettings, rows: EvaluatedRows) -> None:
    stages.embed(settings, rows)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def command(
    content: Content, home: Path, uri: str, file: Path, *, store: Path, experiment: str = "congruence"
) -> subprocess.Popen[bytes]:
    # One Prefect server for all runs, and workers that are threads: a run is up in seconds.
    changed = content(
        models=[uri], store={"uri": str(store)}, tracking={"experiment": experiment}, cluster={"kind": "threads"}
    )
    file.write_text(yaml.safe_dump(changed))
    arguments = [sys.executable, "-m", "congruence.flows.cli", "evaluate", str(file), "--home", str(home)]
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
    found = MlflowClient().get_experiment_by_name(f"{experiment}/digits")
    assert found is not None
    runs = mlflow.search_runs([found.experiment_id], output_format="list")
    assert len(runs) == 1
    return {name: runs[0].data.metrics[name] for name in NUMBERS}
