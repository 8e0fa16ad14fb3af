"""Watching a registry: what is new is evaluated once, failures wait, one watch runs at a time, and outages pass."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlflow
import pytest
from loopback import wait_until
from mlflow import MlflowClient

import congruence.flows.operations.looks as shown
import congruence.flows.operations.watch as flow
from congruence.flows.operations.watch import check_once, only_watch, watch, watched_versions
from congruence.tasks.mlflow.connection import TrackingError
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.production import WatchSettings, parse_duration


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a watch shows."""
    lines: list[str] = []
    for place in (flow, shown):
        monkeypatch.setattr(place, "say", lines.append)
    return lines


def runs() -> int:
    return len(mlflow.search_runs(experiment_names=["congruence/evaluations"]))


@contextmanager
def watching(settings: EvaluationSettings, every: float) -> Iterator[Callable[..., None]]:
    """A watch in a thread of its own, which goes on until the end; the function waits until something holds."""
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(settings,), kwargs={"every": every, "stop": stop})

    def until(holds: Callable[[], bool], seconds: float = 120) -> None:
        wait_until(holds, seconds, "what is watched for")
        assert watcher.is_alive()

    watcher.start()
    try:
        yield until
    finally:
        stop.set()
        watcher.join()


def test_what_is_new_is_evaluated_and_the_next_pass_starts_nothing(registry: Any, said: list[str]) -> None:
    registry.register("new")
    settings = registry.settings(models=["new"], metrics=["nll"])
    assert not flow.report(check_once(registry.settings(models=["nobody", "none-*"])))
    assert said.pop() == "nothing to evaluate: no version is registered that is watched (nobody, none-*)"
    first = check_once(settings)
    assert [(outcome.label, outcome.status) for outcome in first.made] == [("new/1", "evaluated")]
    assert runs() == 1
    again = check_once(settings)
    assert (again.made, again.problems, [outcome.status for outcome in again.outcomes]) == ([], [], ["found"])
    assert runs() == 1
    assert not flow.report(again)
    assert said == ["nothing to evaluate: the versions that are watched have their evaluations"]


def test_a_version_registered_while_a_watch_runs_is_evaluated(registry: Any) -> None:
    settings = registry.settings(
        models=["la*"], metrics=["mae", "crps"], gate={"maximum": {"mae": 2.0}, "set_alias": "champion"}
    )
    with watching(settings, every=0.5) as until:
        registry.register("late")
        until(lambda: "cce_gate" in MlflowClient().get_model_version("late", "1").tags)
        with pytest.raises(SettingsError, match="another `congruence watch` runs in"), only_watch(settings):
            pass
    tags = MlflowClient().get_model_version("late", "1").tags
    assert tags["cce_gate"] == "passed"
    assert float(tags["cce"]) > 0
    assert str(MlflowClient().get_model_version_by_alias("late", "champion").version) == "1"
    with only_watch(settings):
        pass


def test_a_gate_that_lacks_its_baseline_judges_once_the_baseline_is_there(registry: Any) -> None:
    registry.register("gated")
    registry.register("gated")
    MlflowClient().set_registered_model_alias("gated", "champion", "1")
    asked = {"gate": {"baseline": "champion"}, "metrics": ["nll", "crps"]}
    alone = check_once(registry.settings(models=["gated/2"], **asked))
    assert alone.outcomes[0].status == "evaluated"
    assert "baseline has no evaluation" in alone.problems[0]
    both = check_once(registry.settings(models=["gated"], **asked))
    assert [outcome.label for outcome in both.made] == ["gated/1"]
    assert {decision.candidate.label: decision.passed for decision in both.decisions} == {
        "gated/1": True,
        "gated/2": True,
    }
    assert check_once(registry.settings(models=["gated"], **asked)).decisions == []


def test_a_failed_version_shows_its_error_and_is_left_alone_for_a_while(registry: Any, said: list[str]) -> None:
    registry.register("bad", fails=True)
    settings = registry.settings(models=["bad"], watch={"retry_after": "1h"})
    with watching(settings, every=0.5) as until:
        until(lambda: any(line.startswith("failed bad/1") for line in said))
        time.sleep(2.0)  # some passes
    assert sum(line.startswith("failed bad/1") for line in said) == 1
    tags = MlflowClient().get_model_version("bad", "1").tags
    assert "scale" in tags["cce_error"]
    assert tags["cce_status"] == "failed"
    assert len(check_once(settings).failed) == 1  # a run of a schedule tries again


def test_an_mlflow_that_is_away_is_waited_for(registry: Any, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # as a command has few: MLflow's own seven take minutes
    away = registry.settings(models=["new"], tracking={"uri": "http://127.0.0.1:9", "patience": 0.1})
    before = mlflow.get_tracking_uri()
    try:
        with pytest.raises(TrackingError, match="is unreachable"):
            check_once(away)
        with watching(away, every=0.1) as until:
            until(lambda: sum("still watching" in line for line in said) > 1, 60)
    finally:
        mlflow.set_tracking_uri(before)


def test_a_split_that_cannot_be_read_is_a_problem_of_its_own(registry: Any, said: list[str]) -> None:
    split = registry.content()["splits"][0] | {"uri": str(registry.folder / "nowhere.parquet")}
    registry.register("unread")
    result = check_once(registry.settings(models=["unread"], splits=[split]))
    assert result.outcomes == []
    assert "nowhere.parquet" in result.problems[0]
    assert flow.report(result)
    assert not flow.report(result, known=result.problems)
    assert len(said) == 1


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
    with pytest.raises(SettingsError, match=r"watch\.models"):
        watched_versions(registry.settings())


def test_durations() -> None:
    assert [parse_duration(text) for text in ("90", "90s", "5m", "2h", "1d")] == [90, 90, 300, 7200, 86400]
    with pytest.raises(ValueError, match="not a duration"):
        WatchSettings(every="soon")
