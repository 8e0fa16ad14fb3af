"""A run killed while it embeds: the next one redoes only what was not finished, and ends with the same numbers."""

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
import yaml
from mlflow import MlflowClient

NUMBERS = ("cce_mean", "cce_noise_floor", "nll_mean", "crps_mean", "ece", "mae")
Content = Callable[..., dict[str, Any]]
Register = Callable[..., str]


def test_a_run_killed_while_embedding_continues_and_ends_with_the_same_numbers(
    content: Content, home: Path, tmp_path: Path, register_law: Register
) -> None:
    uri = register_law()
    undisturbed = command(content, home, uri, tmp_path / "undisturbed.yaml", store=tmp_path / "undisturbed")
    assert undisturbed.wait(timeout=250) == 0
    expected = metrics_of_runs()

    store = tmp_path / "killed"
    killed = command(content, home, uri, tmp_path / "killed.yaml", store=store, experiment="killed")
    wait_for(lambda: len(markers(store)) >= 1, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(timeout=30)
    done = {path: path.stat().st_mtime_ns for path in markers(store)}

    again = command(content, home, uri, tmp_path / "killed.yaml", store=store, experiment="killed")
    assert again.wait(timeout=250) == 0
    assert {path: path.stat().st_mtime_ns for path in markers(store) if path in done} == done
    assert metrics_of_runs("killed") == expected


def command(
    content: Content, home: Path, uri: str, file: Path, *, store: Path, experiment: str = "congruence"
) -> subprocess.Popen[bytes]:
    changed = content(models=[uri], store={"uri": str(store)}, tracking={"experiment": experiment})
    file.write_text(yaml.safe_dump(changed))
    arguments = [sys.executable, "-m", "congruence.flows.cli", "evaluate", str(file), "--home", str(home)]
    return subprocess.Popen(arguments, start_new_session=True)


def markers(store: Path) -> list[Path]:
    return sorted(store.rglob("done.json"))


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
