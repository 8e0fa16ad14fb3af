"""A run, or a worker of it, killed while it embeds: only what was not finished is redone, and the end is the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from congruence.tasks.evaluate.executors import dask_executor
from congruence.tasks.evaluate.observer import Observer
from congruence.tasks.evaluate.splits import open_planned
from congruence.tasks.evaluate.steps import Steps, rows_of
from congruence.tasks.runtime.files import ENDING
from congruence.tasks.settings.evaluation import EvaluationSettings

SHARDS = 6
ENCODER_FOLDER = Path(__file__).parents[1] / "tasks" / "embedding"
NUMBERS = ("cce_mean", "cce_noise_floor", "nll_mean", "crps_mean", "ece", "mae")
Content = Callable[..., dict[str, Any]]
Register = Callable[..., str]


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
        worker = next(child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline()))
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
    rows = rows_of(settings, open_planned(settings.splits[0], settings))
    with dask_executor(settings.cluster, print) as executor:
        Steps(settings, executor, Observer()).embed(rows)


def files(folder: Path) -> dict[str, bytes]:
    """All but what the killed worker left half-written."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ENDING)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def shards(store: Path) -> list[Path]:
    return sorted(path for path in store.glob("*/*/embeddings/c.*") if path.suffix != ENDING)
