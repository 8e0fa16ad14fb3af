"""The account of looks that watchers keep on a version: no look counted twice, none lost, whoever is killed or late."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

import congruence.flows.scheduling.looking as looking
from congruence.flows.evaluation.in_process import evaluate_in_process
from congruence.flows.evaluation.keys import encoder_protocol
from congruence.flows.evaluation.results import VersionOutcome
from congruence.flows.evaluation.splits import open_planned, with_fitted_encoder
from congruence.flows.evaluation.tracking import for_workers
from congruence.flows.operations.gate import gate_outcomes
from congruence.flows.operations.listing import over_time_address
from congruence.flows.scheduling.poll import tick
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.mlflow.identity import EvaluationIdentity
from congruence.tasks.mlflow.looks import logged_looks
from congruence.tasks.mlflow.reading import logged_metrics
from congruence.tasks.models.registry import resolve
from congruence.tasks.runtime.errors import TooManyInvalidRowsError
from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.watching import account, aliases
from congruence.tasks.watching.account import Accounts
from congruence.tasks.watching.aliases import move_alias
from congruence.tasks.watching.claims import CLAIM, new_owner

SPLIT = "circle"


def _identity(uri: str, rows: int = 0) -> EvaluationIdentity:
    return EvaluationIdentity(resolve(uri), SPLIT, f"{rows}" * 16, "p" * 12, ("cce",))


def _tags(uri: str) -> dict[str, str]:
    return dict(resolve(uri).tags)


def _lose_claim(uri: str) -> None:
    """What another watcher does with the claim of one that seems dead."""
    client, version = MlflowClient(), resolve(uri)
    for key in version.tags:
        if key.startswith(CLAIM):
            client.delete_model_version_tag(version.name, version.version, key)


def _rows(first: int, last: int) -> Any:
    return np.arange(first, last, dtype=np.uint64)


def _p(value: float) -> dict[str, MetricValue]:
    return {"cce_p_value": MetricValue(value)}


def _accounts(registry: Any, tmp_path: Path) -> Accounts:
    return Accounts(registry.settings().tracking, tmp_path)


def test_a_look_has_rows_of_its_own_and_is_closed_once(registry: Any, tmp_path: Path) -> None:
    uri, accounts = registry.register("looked"), _accounts(registry, tmp_path)
    first = accounts.open(_identity(uri), _rows(0, 100), "monday", "a")
    assert first is not None
    assert accounts.open(_identity(uri), _rows(0, 100)[::-1], "monday", "b") == first  # the same rows: the same look
    assert accounts.open(_identity(uri), _rows(50, 150), "tuesday", "b") is None  # some of them are taken
    second = accounts.open(_identity(uri, 1), _rows(100, 200), "tuesday", "b")
    assert second is not None
    assert accounts.read(resolve(uri), SPLIT).monitor.looks == ()

    assert accounts.close(second, _identity(uri), _p(0.5), "run 2", "b") is not None
    found = accounts.close(first, _identity(uri), _p(1e-6), "run 1", "a", lambda: np.linspace(0.01, 0.99, 100))
    assert found is not None
    assert found.changed_the_verdict
    assert "changed since monday" in found.sentence
    assert accounts.close(first, _identity(uri), _p(0.9), "run 1", "b") is None  # the first p-value stands
    read = accounts.read(resolve(uri), SPLIT)
    assert [look.when for look in read.monitor.looks] == ["tuesday", "monday"]  # in the order of the closing
    assert read.monitor == found.monitor
    assert read.monitor.looks[1].log_bet is not None
    assert _tags(uri)[f"cce_looks:{SPLIT}"] == f"{SPLIT}: {found.sentence}"
    assert accounts.open(_identity(uri), _rows(0, 100), "again", "c") is None
    np.testing.assert_array_equal(accounts.unseen(read, _rows(90, 210)), _rows(90, 210) >= 200)


def test_watchers_with_clocks_an_hour_apart_count_every_look_once(
    registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, rng = registry.register("clocks"), np.random.default_rng(0)
    p_values = rng.uniform(size=4)
    real, ahead = time.time, threading.local()
    monkeypatch.setattr(time, "time", lambda: real() + getattr(ahead, "seconds", 0.0))

    def watch(number: int) -> None:
        """Looks at all of the rows that there are; now and then it dies between opening and closing."""
        ahead.seconds = 3600.0 * number
        accounts, owner = Accounts(registry.settings().tracking, tmp_path / str(number)), new_owner()
        for look in range(4):
            opened = accounts.open(_identity(uri, look), _rows(100 * look, 100 * look + 100), f"day {look}", owner)
            if opened is not None and (look + number) % 3:  # else killed: whoever looks next closes it
                accounts.close(opened, _identity(uri, look), _p(p_values[look]), f"run {look}", owner)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(watch, range(2)))
    accounts = _accounts(registry, tmp_path / "later")
    for look in accounts.read(resolve(uri), SPLIT).open:
        number = int(look.when.removeprefix("day "))
        accounts.close(look, _identity(uri, number), _p(p_values[number]), f"run {number}", "later")
    read = accounts.read(resolve(uri), SPLIT)
    assert sorted(look.when for look in read.monitor.looks) == [f"day {look}" for look in range(4)]
    assert sorted(look.p_value for look in read.monitor.looks) == sorted(p_values)
    assert [look.number for look in read.closed] == [1, 2, 3, 4]
    assert not any(key.startswith(CLAIM) for key in _tags(uri))


def test_a_watcher_that_is_held_up_beyond_its_lease_takes_no_rows_of_another(
    registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, accounts = registry.register("fenced"), _accounts(registry, tmp_path)
    create, others = account.create_look, []

    def held_up(*arguments: Any) -> Any:
        if not others:
            others.append(None)
            _lose_claim(uri)
            others.append(accounts.open(_identity(uri), _rows(0, 80), "the other's", "b"))
        return create(*arguments)

    monkeypatch.setattr(account, "create_look", held_up)
    assert accounts.open(_identity(uri, 1), _rows(40, 120), "late", "a") is None
    assert [look.when for look in logged_looks(resolve(uri), SPLIT, accounts.settings)] == ["the other's"]


def test_a_look_closed_by_one_that_was_held_up_has_a_place_of_its_own(
    registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, accounts = registry.register("places"), _accounts(registry, tmp_path)
    late = accounts.open(_identity(uri), _rows(0, 80), "late", "a")
    other = accounts.open(_identity(uri, 1), _rows(80, 160), "other", "b")
    finish, done = account.finish_look, []

    def held_up(*arguments: Any) -> None:
        if not done:
            done.append(0)
            _lose_claim(uri)
            accounts.close(other, _identity(uri, 1), _p(0.3), "other run", "b")
        finish(*arguments)

    monkeypatch.setattr(account, "finish_look", held_up)
    found = accounts.close(late, _identity(uri), _p(0.2), "late run", "a")
    assert found is not None
    read = accounts.read(resolve(uri), SPLIT)
    assert [(look.number, look.when) for look in read.closed] == [(1, "other"), (2, "late")]
    assert read.monitor == found.monitor


def test_an_alias_is_not_moved_back_by_a_watcher_that_was_held_up(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking, client = registry.settings().tracking, MlflowClient()
    first, second, third = (resolve(registry.register("raced")) for _ in range(3))
    client.set_registered_model_alias("raced", "champion", first.version)
    set_alias, moved = aliases.set_alias, []

    def held_up(*arguments: Any) -> None:
        if not moved:
            moved.append("")
            for key in client.get_registered_model("raced").tags:
                if key.startswith(CLAIM):
                    client.delete_registered_model_tag("raced", key)
            moved.append(move_alias(third, "champion", tracking))
        set_alias(*arguments)

    monkeypatch.setattr(aliases, "set_alias", held_up)
    assert move_alias(second, "champion", tracking) == third.version
    assert moved[-1] == third.version
    assert str(client.get_model_version_by_alias("raced", "champion").version) == third.version
    assert client.get_registered_model("raced").tags == {"congruence.alias.champion.3": "moved"}
    client.set_registered_model_alias("raced", "champion", first.version)  # by a person
    assert move_alias(second, "champion", tracking) == second.version


def _day(folder: Path, day: int, rows: int, shift: float = 0.0) -> None:
    """Rows of one day: keys of their own, targets of the law, moved by ``shift``."""
    rng = np.random.default_rng(day)
    angle = rng.uniform(0, np.pi, rows)
    frame = pd.DataFrame({"cos": np.cos(angle), "sin": np.sin(angle), "angle": angle})
    frame["y"] = 2 * angle + shift + rng.normal(size=rows)
    frame["key"] = [f"{day}-{number}" for number in range(rows)]
    frame["half"] = np.where(angle > np.pi / 2, "right", "left")
    place = folder / f"day=2026-03-{day:02d}"
    place.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(place / "rows.parquet")


def test_the_version_in_use_is_looked_at_on_new_rows_and_found_changed(
    registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("used")
    registry.register("used")
    MlflowClient().set_registered_model_alias("used", "champion", "1")
    days, notices = tmp_path / "days", tmp_path / "notices"
    one = registry.content()["splits"][0]
    split = one | {"uri": f"{days}/day={{date}}/*.parquet", "last": "2 days", "new_rows_only": True, "name": "daily"}
    settings = registry.settings(
        models=["used"],
        splits=[split],
        watch={"in_process_rows": 1000, "monitor": {"least_rows": 50}},
        notify={"command": ["tee", str(notices)]},
    )
    _day(days, 1, 120)
    first = tick(settings)
    assert sorted(outcome.label for outcome in first.outcomes) == ["used/1", "used/2"]
    assert {finding.sentence for finding in first.looks.values()} == {"right so far (1 look)"}
    nothing = tick(settings)
    assert (nothing.outcomes, nothing.looks, nothing.problems) == ([], {}, [])

    _day(days, 2, 30)
    assert tick(settings).outcomes == []  # too few for a look
    _day(days, 3, 120, shift=1.0)
    close = looking.Accounts.close
    monkeypatch.setattr(looking.Accounts, "close", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # killed between the evaluation and the account
        tick(settings)
    monkeypatch.setattr(looking.Accounts, "close", close)
    after = tick(settings)
    assert after.outcomes == []  # the evaluation is found
    ((label, name),) = after.looks
    assert (label, name) == ("used/1", "daily")
    finding = after.looks[label, name]
    assert finding.changed_the_verdict
    assert finding.sentence == "changed since 2026-03-02 to 2026-03-03, shown on 2026-03-02 to 2026-03-03 (2 looks)"
    assert [look.rows for look in finding.monitor.looks] == [120, 150]
    notice = json.loads(notices.read_text())
    assert "used/1 on daily: changed since" in notice["title"]
    assert "p of this look" in notice["message"]
    assert tick(settings).looks == {}
    looks = {version: logged_looks(resolve(f"used/{version}"), "daily", settings.tracking)[-1] for version in (1, 2)}
    found = [
        VersionOutcome(f"used/{version}", "daily", "found", look.evaluation_run) for version, look in looks.items()
    ]
    gated = settings.model_copy(update={"gate": GateSettings(not_changed=True)})
    one_gate, two_gate = gate_outcomes(gated, found)
    assert (one_gate.outcome, two_gate.outcome) == ("failed", "passed")
    assert "over all looks the version is changed since" in one_gate.reasons[0]
    page = Path(over_time_address("models:/used/1", settings.tracking).removeprefix("file://")).read_text()
    assert "used/1 on daily" in page
    assert "changed since 2026-03-02" in page
    assert "right so far (1 look)" in page
    parent = mlflow.search_runs(
        experiment_names=["congruence/looks/used"], filter_string="tags.`congruence.kind` = 'look'"
    )
    assert len(parent) == 3


@pytest.mark.usefixtures("prefect_server")
def test_on_a_split_of_all_rows_a_version_is_looked_at_once_also_where_its_watcher_was_killed(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = registry.register("judged", bias=0.6)
    one = registry.content()["splits"][0]
    settings = registry.settings(models=["judged"], splits=[one], watch={"in_process_rows": 1000})
    close = looking.Accounts.close
    monkeypatch.setattr(looking.Accounts, "close", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tick(settings)
    monkeypatch.setattr(looking.Accounts, "close", close)
    after = tick(settings)
    assert after.outcomes == []
    assert after.looks["judged/1", SPLIT].sentence.startswith("wrong, first shown on")
    assert "wrong, first shown on" in _tags(uri)[f"cce_looks:{SPLIT}"]
    here = logged_metrics(logged_looks(resolve(uri), SPLIT, settings.tracking)[0].evaluation_run, settings.tracking)
    again = tick(registry.settings(models=["judged"], splits=[one | {"slices": []}]))  # other slices, the same rows
    assert again.looks == {}
    (on_workers,) = again.outcomes
    for name in ("cce_mean", "cce_p_value", "calibration_p_value", "calibration_effect_bias", "nll_mean"):
        assert here[name].value == pytest.approx(on_workers.metrics[name].value, rel=1e-4), name


def test_rows_that_lack_a_feature_stay_in_process_where_the_encoder_takes_them(registry: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"x": rng.normal(size=60), "z": rng.normal(size=60), "y": rng.normal(size=60)})
    frame.loc[[4, 17, 31], "x"] = np.nan
    frame.to_parquet(tmp_path / "lacking.parquet")
    log_predictive_model(
        lambda rows: pd.DataFrame({"loc": 0.0 * rows["z"], "scale": 1.0}), name="plain", family="normal",
        input_example=frame[["x", "z"]].head(2), registered_model_name="plain", pip_requirements=["mlflow"],
    )  # fmt: skip
    lacking = {"uri": str(tmp_path / "lacking.parquet"), "input": ["x", "z"], "input_kind": "features", "target": "y"}

    def evaluated(missing: str) -> VersionOutcome:
        encoder = {"kind": "identity", "missing": missing}
        settings = registry.settings(models=["plain"], splits=[lacking], encoder=encoder)
        settings = for_workers(with_fitted_encoder(settings))
        split = open_planned(settings.splits[0], settings)
        protocol = encoder_protocol(settings, asking_encoder(settings.encoder))
        return evaluate_in_process(settings, split, protocol, resolve("plain/1"))

    assert mlflow.get_run(evaluated("mean").run_id).data.params["valid_rows"] == "60"
    with pytest.raises(TooManyInvalidRowsError, match="3 of 60 rows lack a finite number"):
        evaluated("leave_out")
