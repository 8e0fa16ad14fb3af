"""Signals that come in the midst of a step: put off, told, and no lock on a database is left by any of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from asked_to_end import Asked, ask, hearing
from databases import mlflow_database

from congruence.tasks.mlflow import EvaluationIdentity, TrackingSettings, fail_run, open_run
from congruence.tasks.mlflow.connection import connect
from congruence.tasks.mlflow.identity import find_runs
from congruence.tasks.mlflow.system_metrics import system_metrics
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.runtime import uninterrupted as module
from congruence.tasks.runtime.uninterrupted import uninterrupted


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    with hearing({signal.SIGTERM: ask, signal.SIGINT: signal.default_int_handler}):
        yield


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, Asked), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_is_handled_after_the_step(number: signal.Signals, raised: type[BaseException]) -> None:
    done = []

    def step() -> None:
        with uninterrupted():
            with uninterrupted():
                os.kill(os.getpid(), number)
                done.append("within")
            done.append("after the inner one")

    with pytest.raises(raised):
        step()
    assert done == ["within", "after the inner one"]
    assert signal.getsignal(signal.SIGTERM) is ask
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_that_is_urgent_is_handled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def step() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # of the same request
            done.append("after two")
            monkeypatch.setattr(module, "URGENT_SECONDS", 0.0)
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("never")

    with pytest.raises(Asked):
        step()
    assert done == ["after two"]
    assert signal.getsignal(signal.SIGTERM) is ask


def test_an_error_of_the_step_gives_way_to_what_the_signal_raises() -> None:
    def step() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("of the step")

    with pytest.raises(Asked) as raised:
        step()
    assert isinstance(raised.value.__context__, ValueError)


def test_wherever_an_evaluation_is_cut_off_its_runs_are_ended(tmp_path: Path) -> None:
    settings = TrackingSettings(uri=mlflow_database(tmp_path), report=False, patience=5)
    client = connect(settings)

    def evaluate(identity: EvaluationIdentity) -> None:
        try:
            with system_metrics([open_run(identity, settings)], settings):
                pass
        except BaseException:
            fail_run(identity, "stopped", settings)
            raise

    def identity(number: int) -> EvaluationIdentity:
        return EvaluationIdentity(ModelVersion("angle", str(number), "", ""), "circle", "digest", "protocol", ("cce",))

    evaluate(identity(0))
    calls = cut_off_after(None, lambda: evaluate(identity(1)))
    places = [round(calls * part / 40) for part in range(1, 38)]
    for number, place in enumerate(places, start=2):
        with pytest.raises(Asked):
            cut_off_after(place, lambda number=number: evaluate(identity(number)))  # type: ignore[misc]
        assert [run.info.status for run in find_runs(client, identity(number), settings)] in ([], ["FAILED"])
    machines = client.get_experiment_by_name(f"{settings.experiment_name('circle')}/machine")
    assert machines is not None
    statuses = {run.info.status for run in client.search_runs([machines.experiment_id])}
    assert statuses == {"FINISHED", "FAILED"}


def cut_off_after(calls: int | None, work: Callable[[], None]) -> int:
    """Send this process a SIGTERM when ``work`` has made so many calls; how many it makes where it is left alone."""
    made = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal made
        if event == "call":
            made += 1
            if made == calls:
                os.kill(os.getpid(), signal.SIGTERM)

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return made
