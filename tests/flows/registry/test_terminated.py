"""A command that is asked to end says one sentence, leaves with status 143, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import mlflow
import psutil
import pytest
from mlflow import MlflowClient

from congruence.flows.cli.options import Errors
from congruence.flows.cli.terminated import SENTENCE, Termination, terminated


def test_the_signal_is_known_whoever_handles_it_and_however_its_exception_is_wrapped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert status_of(lambda: os.kill(os.getpid(), signal.SIGTERM)) == 143
    assert capsys.readouterr().err == f"{SENTENCE}\n"

    def of_a_library(number: int, frame: object) -> None:
        raise ValueError("TerminationSignal in a serializer")

    def wrapped() -> None:
        signal.signal(signal.SIGTERM, of_a_library)
        os.kill(os.getpid(), signal.SIGTERM)

    assert status_of(wrapped) == 143
    assert signal.getsignal(signal.SIGTERM) is before
    with Termination():
        assert not terminated()
    assert status_of(lambda: sys.exit(3)) == 3


def status_of(command: Callable[[], None]) -> object:
    try:
        with Errors(debug=False):
            command()
            time.sleep(5)
    except SystemExit as left:
        return left.code
    return None


@pytest.mark.slow
def test_an_evaluation_that_is_asked_to_end_ends_its_runs_and_all_its_processes(registry: Any) -> None:
    registry.register()
    file = registry.file(models=["angle"], cluster={"kind": "local", "workers": 1})
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    command = subprocess.Popen(
        [sys.executable, "-m", "congruence.flows.cli.app", "evaluate", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    children: set[psutil.Process] = set()
    while not (opened := runs("congruence/circle")):
        assert command.poll() is None
        children |= set(psutil.Process(command.pid).children(recursive=True))
        time.sleep(0.2)
    command.terminate()
    try:
        said = command.communicate(timeout=120)
    finally:
        command.kill()
    assert command.returncode == 143
    assert said[0] == ""
    _home, *lines = said[1].splitlines()
    of_the_work = ("slow to start", " circle: ")  # a busy machine is slow to ask: stages may have told of themselves
    assert [line for line in lines if not any(words in line for words in of_the_work)] == [SENTENCE]
    assert len(children) > 2  # a worker, its nanny's helper, the server
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
    assert len(opened) == 1
    (run,) = runs("congruence/circle")
    assert run.info.status == "FAILED"
    assert run.data.tags["congruence.error"] == SENTENCE
    assert [item.info.status for item in runs("congruence/circle/machine")] in ([], ["FAILED"])


def runs(experiment: str) -> list[mlflow.entities.Run]:
    found = MlflowClient().get_experiment_by_name(experiment)
    return [] if found is None else list(MlflowClient().search_runs([found.experiment_id]))
