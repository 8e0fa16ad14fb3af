"""Watching a registry: what is new is evaluated once, failures wait, claims hold, and outages pass."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient
from rich.console import Console

import congruence.flows.scheduling.poll as flow
from congruence.flows.scheduling.poll import tick, watch, watched_versions
from congruence.tasks.mlflow.connection import TrackingError
from congruence.tasks.mlflow.identity import EvaluationIdentity
from congruence.tasks.mlflow.version_tags import Failure
from congruence.tasks.models.registry import ModelVersion, resolve
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.watching.claims import CLAIM, claim, drop_expired, held, new_owner, release
from congruence.tasks.watching.notification import notify
from congruence.tasks.watching.settings import WatchSettings, parse_duration

LEASE = 60.0


def identity(version: ModelVersion, split: str = "circle") -> EvaluationIdentity:
    return EvaluationIdentity(version, split, "s" * 64, "p" * 12, ("cce",))


def runs(registry: Any) -> int:
    experiment = MlflowClient().get_experiment_by_name("congruence/circle/y")
    return len(MlflowClient().search_runs([experiment.experiment_id])) if experiment else 0


def claims(version: str) -> list[str]:
    name, number = version.removeprefix("models:/").split("/")
    return [key for key in MlflowClient().get_model_version(name, number).tags if key.startswith(CLAIM)]


@pytest.mark.usefixtures("prefect_server")
def test_what_is_new_is_evaluated_by_one_of_two_watchers_and_the_next_tick_starts_nothing(registry: Any) -> None:
    uri = registry.register("new")
    settings = registry.settings(models=["new"])
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: tick(settings), range(2))
    evaluated = [*first.outcomes, *second.outcomes]
    assert [(outcome.label, outcome.status) for outcome in evaluated] == [("new/1", "evaluated")]
    assert runs(registry) == 1
    assert claims(uri) == []

    again = tick(settings)
    assert (again.outcomes, again.waiting, again.problems) == ([], 0, [])
    assert runs(registry) == 1


@pytest.mark.usefixtures("prefect_server")
def test_a_version_registered_while_a_watcher_runs_is_evaluated(registry: Any) -> None:
    settings = registry.settings(models=["la*"], gate={"maximum": {"mae": 2.0}})
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(settings,), kwargs={"every": 0.5, "stop": stop})
    watcher.start()
    try:
        registry.register("late")
        limit = time.monotonic() + 120
        while "cce_gate" not in MlflowClient().get_model_version("late", "1").tags:
            assert time.monotonic() < limit
            time.sleep(0.2)
    finally:
        stop.set()
        watcher.join()
    tags = MlflowClient().get_model_version("late", "1").tags
    assert tags["cce_gate"] == "passed"
    assert float(tags["cce"]) > 0


@pytest.mark.usefixtures("prefect_server")
def test_a_gate_that_lacks_its_baseline_judges_once_the_baseline_is_there(registry: Any) -> None:
    registry.register("gated")
    registry.register("gated")
    MlflowClient().set_registered_model_alias("gated", "champion", "1")
    gate = {"baseline": "champion"}
    alone = tick(registry.settings(models=["gated/2"], gate=gate))
    assert alone.outcomes[0].status == "evaluated"
    assert "baseline has no evaluation" in alone.problems[0]
    both = tick(registry.settings(models=["gated"], gate=gate))
    assert [outcome.label for outcome in both.outcomes] == ["gated/1"]
    assert {decision.candidate.label: decision.passed for decision in both.decisions} == {
        "gated/1": True,
        "gated/2": True,
    }
    assert tick(registry.settings(models=["gated"], gate=gate)).decisions == []


@pytest.mark.usefixtures("prefect_server")
def test_a_failed_version_shows_its_error_and_waits_for_its_next_try(registry: Any, tmp_path: Path) -> None:
    registry.register("bad", fails=True)
    notices = tmp_path / "notices.txt"
    changes = {"models": ["bad"], "notify": {"command": ["tee", "-a", str(notices)]}}
    result = tick(registry.settings(**changes))
    (failed,) = result.failed
    assert "scale" in str(failed.error)
    assert "bad/1 on circle failed" in notices.read_text()
    assert "scale" in MlflowClient().get_model_version("bad", "1").tags["cce_error"]

    waiting = tick(registry.settings(**changes))
    assert (waiting.outcomes, waiting.waiting) == ([], 1)
    soon = tick(registry.settings(**changes, watch={"retry_after": "0.01s"}))
    assert len(soon.failed) == 1


def test_an_mlflow_that_is_away_is_waited_for(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = StringIO()
    monkeypatch.setattr(flow, "console", Console(file=said))
    away = registry.settings(models=["new"], tracking={"uri": "http://127.0.0.1:9", "patience": 0.1})
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(away,), kwargs={"every": 0.1, "stop": stop})
    before = mlflow.get_tracking_uri()
    try:
        with pytest.raises(TrackingError, match="is unreachable"):
            tick(away)
        watcher.start()
        deadline = time.monotonic() + 60.0
        while said.getvalue().count("still watching") < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert watcher.is_alive()
    finally:
        stop.set()
        watcher.join()
        mlflow.set_tracking_uri(before)
    assert said.getvalue().count("still watching") > 1


def test_a_split_that_cannot_be_read_is_a_problem_of_its_own(registry: Any) -> None:
    split = registry.content()["splits"][0] | {"uri": str(registry.folder / "nowhere.parquet")}
    registry.register("unread")
    result = tick(registry.settings(models=["unread"], splits=[split]))
    assert result.outcomes == []
    assert "nowhere.parquet" in result.problems[0]


def test_versions_are_chosen_by_name_alias_and_tag(registry: Any) -> None:
    client = MlflowClient()
    for _ in range(2):
        registry.register("chosen-a")
    registry.register("chosen-b")
    client.set_registered_model_alias("chosen-a", "candidate", "2")
    client.set_model_version_tag("chosen-b", "1", "team", "blue")

    def labels(**watched: Any) -> list[str]:
        return [version.label for version in watched_versions(registry.settings(watch=watched))]

    assert labels(models=["chosen-*"]) == ["chosen-a/1", "chosen-a/2", "chosen-b/1"]
    assert labels(models=["chosen-*"], aliases=["candidate"]) == ["chosen-a/2"]
    assert labels(models=["chosen-*"], tags={"team": "blue"}) == ["chosen-b/1"]
    assert labels(models=["models:/chosen-a/1"]) == ["chosen-a/1"]
    assert labels(models=["not-there-*"]) == []
    (version,) = watched_versions(registry.settings(watch={"models": ["chosen-b"]}))
    assert identity(version).digest == identity(resolve("models:/chosen-b/1")).digest
    with pytest.raises(SettingsError, match=r"watch\.models"):
        watched_versions(registry.settings())


def test_of_many_who_claim_at_once_one_wins(registry: Any) -> None:
    uri = registry.register("claimed")
    wanted, tracking = identity(resolve(uri)), registry.settings().tracking
    owners = [new_owner() for _ in range(6)]
    with ThreadPoolExecutor(len(owners)) as threads:
        won = list(threads.map(lambda owner: claim(wanted, owner, LEASE, tracking), owners))
    assert sum(won) == 1
    holder = owners[won.index(True)]
    assert not claim(wanted, new_owner(), LEASE, tracking)
    assert claim(identity(wanted.model, "another split"), new_owner(), LEASE, tracking)
    release(wanted, holder, tracking)
    assert claim(wanted, new_owner(), LEASE, tracking)


def test_the_claim_of_a_dead_watcher_is_taken_over_and_a_live_one_is_renewed(registry: Any) -> None:
    uri = registry.register("lost")
    wanted, tracking = identity(resolve(uri)), registry.settings().tracking
    assert claim(wanted, "dead", 0.5, tracking)
    assert not claim(wanted, "second", LEASE, tracking)
    time.sleep(0.6)
    drop_expired([wanted], tracking)
    assert claim(wanted, "second", 3.0, tracking)
    with held([wanted], "second", 3.0, tracking):
        time.sleep(4.0)
        drop_expired([wanted], tracking)
        assert not claim(wanted, "third", LEASE, tracking)
    assert claims(uri) == []


def test_waits_double_and_end() -> None:
    settings = WatchSettings(retry_after="1m", retry_at_most="1h")
    waits = [60, 120, 240, 3600]
    for attempts, wait in zip([1, 2, 3, 40], waits, strict=True):
        failure = Failure(attempts, 1000.0, "no")
        assert failure.next_try(settings.retry_after, settings.retry_at_most) == 1000.0 + wait


def test_durations() -> None:
    assert [parse_duration(text) for text in ("90", "90s", "5m", "2h", "1d")] == [90, 90, 300, 7200, 86400]
    with pytest.raises(ValueError, match="not a duration"):
        WatchSettings(every="soon")


def test_a_notice_that_cannot_be_delivered_stops_nothing(registry: Any) -> None:
    settings = registry.settings(notify={"webhook": "http://127.0.0.1:9/hook", "command": ["false"]})
    notify(settings.notify, "title", "message")
    assert "127.0.0.1:9" not in repr(settings)


def test_a_single_look_says_that_there_was_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    said = StringIO()
    monkeypatch.setattr(flow, "console", Console(file=said))
    assert not flow.report(flow.Tick(waiting=2), alone=True)
    assert "nothing to evaluate" in said.getvalue()
    assert "2 claimed by another watcher" in said.getvalue()
