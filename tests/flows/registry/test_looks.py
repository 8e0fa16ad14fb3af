"""The account of looks that a watcher keeps on a version: numbered, spent, agreed on, and never lost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from congruence.flows.scheduling.poll import tick
from congruence.tasks.mlflow import EvaluationIdentity
from congruence.tasks.models.registry import resolve
from congruence.tasks.scores.evaluation import (
    AS_IF_TRUE,
    LOOK_LEVEL,
    NOT_AS_IF_TRUE,
    NOT_CALIBRATED,
    Metric,
    cce_status,
    significance,
    truth_p_value,
)
from congruence.tasks.scores.looks import LOOK
from congruence.tasks.watching import account, account_of, aliases, close_look, new_owner, open_look
from congruence.tasks.watching.account import SAID
from congruence.tasks.watching.aliases import move_alias
from congruence.tasks.watching.claims import CLAIM

FIRST = 0.05 * 6 / np.pi**2


def _identity(uri: str, split: str) -> EvaluationIdentity:
    return EvaluationIdentity(resolve(uri), split, split * 4, "p" * 12, ("cce",))


def _tags(uri: str) -> dict[str, str]:
    return dict(resolve(uri).tags)


def test_looks_that_watchers_open_at_once_have_levels_of_their_own_and_are_found_again(registry: Any) -> None:
    uri, tracking = registry.register("looked"), registry.settings().tracking
    wanted = [_identity(uri, f"week-{number}") for number in range(3)]
    with ThreadPoolExecutor(3) as threads:
        levels = list(threads.map(lambda identity: open_look(identity, new_owner(), tracking), wanted))
    np.testing.assert_allclose(sorted(levels, reverse=True), [FIRST / k**2 for k in (1, 2, 3)])
    assert [open_look(identity, new_owner(), tracking) for identity in wanted] == levels  # no new looks
    assert account_of(_tags(uri)).next_level("") == pytest.approx(FIRST / 16)

    second = wanted[int(np.argsort(levels)[-2])]
    said = close_look(second, {"cce_p_value": Metric(0.004), "calibration_p_value": Metric(0.5)}, tracking)
    assert "called wrong at look 2" not in str(said)  # 2 x .004 is above .0076
    said = close_look(second, {"cce_p_value": Metric(0.001), "calibration_p_value": Metric(0.5)}, tracking)
    assert "not called wrong" in str(said)  # the first p-value stands
    first = wanted[int(np.argmax(levels))]
    assert "called wrong at look 1" in str(close_look(first, {"cce_p_value": Metric(0.03)}, tracking))
    assert _tags(uri)[SAID].startswith("2 looks, 5% over all of them: called wrong at look 1")
    assert account_of(_tags(uri)).ever_wrong("")


def _lose_claim(uri: str) -> None:
    """What another watcher does with the claim of one that seems dead."""
    client, version = MlflowClient(), resolve(uri)
    for key in version.tags:
        if key.startswith(CLAIM):
            client.delete_model_version_tag(version.name, version.version, key)


def test_a_watcher_that_is_held_up_beyond_its_lease_takes_no_number_of_another(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, tracking = registry.register("fenced"), registry.settings().tracking
    write, others = account._write, []

    def held_up(*arguments: Any) -> None:
        if not others:
            others.append(0.0)
            _lose_claim(uri)
            others.append(open_look(_identity(uri, "b"), "b", tracking))
        write(*arguments)

    monkeypatch.setattr(account, "_write", held_up)
    level = open_look(_identity(uri, "a"), "a", tracking)
    np.testing.assert_allclose([others[-1], level], [FIRST, FIRST / 4])
    looks = [json.loads(value) for key, value in _tags(uri).items() if key.startswith(LOOK)]
    assert sorted(look["number"] for look in looks) == [1, 2]
    assert not any(key.startswith(CLAIM) for key in _tags(uri))


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


def test_status_and_account_use_one_level() -> None:
    for congruence, calibration in ((0.02, 0.9), (0.014, 0.9), (0.9, 0.02), (0.9, 0.014), (0.9, 0.9)):
        for level in (None, FIRST, FIRST / 4):
            metrics = {
                "cce_mean": Metric(1.0),
                "cce_p_value": Metric(congruence),
                "calibration_p_value": Metric(calibration),
            } | ({} if level is None else {LOOK_LEVEL: Metric(level)})
            wrong = truth_p_value(metrics) < significance(metrics)  # type: ignore[operator]
            assert (cce_status(metrics) in (NOT_AS_IF_TRUE, NOT_CALIBRATED)) == wrong
    alone = {"cce_mean": Metric(1.0), "cce_p_value": Metric(0.04)}
    assert cce_status(alone) == NOT_AS_IF_TRUE
    assert cce_status(alone | {LOOK_LEVEL: Metric(FIRST)}) == AS_IF_TRUE


@pytest.mark.usefixtures("prefect_server")
def test_what_a_watcher_evaluates_is_judged_at_the_level_of_its_look(registry: Any) -> None:
    uri = registry.register("judged", bias=0.6)
    one = registry.content()["splits"][0]
    settings = registry.settings(models=["judged"], splits=[one, one | {"name": "again", "slices": []}])
    result = tick(settings)
    assert [outcome.status for outcome in result.outcomes] == ["evaluated", "evaluated"]
    tags = _tags(uri)
    keys = {json.loads(value)["number"]: key for key, value in tags.items() if key.startswith(LOOK)}
    assert sorted(keys) == [1, 2]
    runs = [MlflowClient().get_run(str(outcome.run_id)) for outcome in result.outcomes]
    assert [run.data.metrics["look_level"] for run in runs] == pytest.approx([FIRST, FIRST / 4])
    assert "called wrong at look 1" in tags[SAID]
    assert result.looks["judged/1", "again"] == tags[SAID]

    # Killed after the run was logged, before the account was written: the next look at the registry closes it.
    before = json.loads(tags[keys[1]])
    MlflowClient().set_model_version_tag("judged", "1", keys[1], json.dumps(before | {"p_value": None}))
    assert tick(settings).outcomes == []
    assert json.loads(_tags(uri)[keys[1]]) == before
