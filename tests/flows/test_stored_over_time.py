"""Stored predictions looked at week by week: each week once, again where late labels change it, and their inputs."""

import re
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml
from prefect.client.schemas.objects import StateType
from stored_table import content, requests, scored

import congruence.flows.operations.looks as showing
from congruence.flows.deployed import watch_registry
from congruence.flows.operations.gate import gate as judge
from congruence.flows.operations.listing import over_time_address
from congruence.flows.operations.looks import WatchResult
from congruence.flows.operations.watch import check_once, watched_versions
from congruence.tasks.mlflow.identity import INPUTS
from congruence.tasks.monitor.account import Account, read_account
from congruence.tasks.monitor.periods import embeddings_change, features_change
from congruence.tasks.settings.evaluation import EvaluationSettings

WEEKS, A_WEEK = 6, 120


@pytest.fixture
def weeks(tmp_path: Path) -> pd.DataFrame:
    """Requests of six weeks from Monday, 2026-01-05, all scored by version "v1", which is wrong from the fourth on."""
    rows = requests(WEEKS * A_WEEK)
    rows["y"] += 2.0 * (np.arange(len(rows)) >= 3 * A_WEEK)
    store(tmp_path, rows)
    return rows


def store(folder: Path, rows: pd.DataFrame) -> None:
    when = pd.Timestamp("2026-01-05") + pd.to_timedelta(np.arange(len(rows)) * 7 / A_WEEK, unit="D")
    scored(rows, "v1").assign(at=when).to_parquet(folder / "inference.parquet", index=False)


def look(folder: Path, home: Path, labels: pd.DataFrame, **changes: Any) -> WatchResult:
    labels.rename(columns={"request": "id"})[["id", "y"]].to_parquet(folder / "outcomes.parquet", index=False)
    return check_once(settings(folder, home, **changes))


def settings(folder: Path, home: Path, **changes: Any) -> EvaluationSettings:
    changes = {"watch": {"in_process_rows": 5000}} | changes
    given = content(folder, home=str(home), **changes)
    given["predictions"]["time"] = "at"
    return EvaluationSettings.model_validate(given)


def account_of(folder: Path, home: Path) -> Account:
    given = settings(folder, home)
    return read_account(watched_versions(given)[0], given.splits[0], given)


def dates(result: WatchResult) -> list[str]:
    assert result.problems == []
    return [outcome.split.partition(", ")[2] for outcome in result.made]


def test_each_week_is_looked_at_once_and_again_where_late_labels_change_it(
    tmp_path: Path, home: Path, weeks: pd.DataFrame
) -> None:
    first = look(tmp_path, home, weeks[: 2 * A_WEEK - 10])
    assert dates(first) == ["2026-01-05 to 2026-01-11", "2026-01-12 to 2026-01-18"]
    assert first.sentences[0].startswith(
        "v1 on production: right so far (2 looks). Inputs: no change against 2026-01-05"
    )
    nothing = look(tmp_path, home, weeks[: 2 * A_WEEK - 5])
    assert (nothing.made, nothing.sentences) == ([], [])
    assert [outcome.status for outcome in nothing.outcomes] == ["found"]
    corrected = weeks[: 2 * A_WEEK].assign(y=weeks["y"].where(weeks.index >= 20, weeks["y"] + 0.5))
    assert dates(look(tmp_path, home, corrected)) == ["2026-01-05 to 2026-01-11"]  # the second has 10 of 110 new
    after = look(tmp_path, home, weeks)
    assert dates(after) == [  # the labels of the first week are what they were: its first look counts again
        "2026-01-19 to 2026-01-25",
        "2026-01-26 to 2026-02-01",
        "2026-02-02 to 2026-02-08",
    ]  # and not the last week, which is not over
    (account,) = after.accounts.values()
    assert [entry.split.valid_rows for entry in account.looks] == [120, 110, 120, 120, 120]
    assert account.monitor.verdict != "right so far"
    assert "2026-01-26" in after.sentences[0]
    assert "Inputs: no change against 2026-01-05 to 2026-01-11" in after.sentences[0]
    page = Path(over_time_address("production", settings(tmp_path, home).tracking).removeprefix("file://")).read_text()
    assert "Inputs: no change against" in page
    assert account_of(tmp_path, home).monitor.verdict == account.monitor.verdict


def test_the_gate_judges_all_labelled_rows_whenever_a_week_was_looked_at(
    tmp_path: Path, home: Path, weeks: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = pd.read_parquet(tmp_path / "inference.parquet")
    narrow = stored.assign(version="v2", sigma=0.4 * stored["sigma"])[A_WEEK:]
    pd.concat([stored, narrow]).to_parquet(tmp_path / "inference.parquet", index=False)
    gate = {"baseline": "v1", "not_worse_on": ["nll_mean"], "not_changed": True}
    lacking = look(tmp_path, home, weeks[: 2 * A_WEEK], gate=gate | {"baseline": "v9"})
    assert lacking.problems == ["the gate: v9: no labelled row is of this version; the versions are v1, v2"]
    later = look(tmp_path, home, weeks[: 3 * A_WEEK], gate=gate)
    assert later.problems == []
    lines: list[str] = []
    monkeypatch.setattr(showing, "say", lines.append)
    showing.report(later)
    assert any(line.startswith("evaluated v1 on production: ") for line in lines), "all rows are of no week"
    decided = {decision.candidate.label: decision for decision in later.decisions}
    assert {label: decision.outcome for label, decision in decided.items()} == {"v1": "passed", "v2": "failed"}
    assert any("on production-shared-v1-v2, nll_mean is more than" in reason for reason in decided["v2"].reasons)
    assert [check.split for check in decided["v2"].checks if check.rule.startswith("not_changed")] == ["production"]
    again = {each.candidate.label: each.outcome for each in judge(settings(tmp_path, home, gate=gate))}
    assert again == {label: decision.outcome for label, decision in decided.items()}
    assert look(tmp_path, home, weeks[: 3 * A_WEEK], gate=gate).decisions == []


@pytest.mark.usefixtures("prefect_server")
def test_a_deployment_looks_at_stored_predictions_and_its_gate_is_a_verdict(
    tmp_path: Path, home: Path, weeks: pd.DataFrame
) -> None:
    labelled = weeks[3 * A_WEEK :].rename(columns={"request": "id"})  # of which the last week is not over
    labelled[["id", "y"]].to_parquet(tmp_path / "outcomes.parquet", index=False)
    asked = settings(tmp_path, home, gate={"not_changed": True}).model_dump(
        mode="json", exclude_unset=True, by_alias=True
    )
    (tmp_path / "evaluation.yaml").write_text(yaml.safe_dump(asked))
    state = watch_registry(file=tmp_path / "evaluation.yaml", return_state=True)
    assert (state.type, state.name) == (StateType.COMPLETED, "GateFailed")
    assert "v1: gate failed: over all looks: " in str(state.message)
    assert len(account_of(tmp_path, home).looks) == 2
    assert watch_registry(file=tmp_path / "evaluation.yaml", return_state=True).name == "Completed"


def test_other_inputs_are_told_beside_a_version_that_is_right(tmp_path: Path, home: Path) -> None:
    rows = requests(3 * A_WEEK)
    moved = rows.index >= A_WEEK
    rows.loc[moved, ["x1", "y"]] += 1.0
    store(tmp_path, rows)
    result = look(tmp_path, home, rows)
    assert result.problems == []
    (sentence,) = result.sentences
    assert "right so far" in sentence
    assert "Inputs changed against 2026-01-05 to 2026-01-11: x1 has median" in sentence
    said = mlflow.get_run(str(result.made[-1].run_id)).data.tags[INPUTS]
    assert said.removesuffix(".") in sentence


def test_true_inputs_are_rarely_said_to_have_changed_and_moved_ones_are() -> None:
    draw = np.random.default_rng(1)
    same = [features_change(*draw.normal(size=(2, 200, 5)), list("abcde"), "then") for _ in range(100)]
    assert sum(said.startswith("Inputs changed") for said in same) <= 4
    moved = draw.normal(size=(200, 2)) + np.array([0.0, 0.8])
    found = features_change(moved, draw.normal(size=(300, 2)), ["a", "b"], "then")
    assert found.startswith("Inputs changed against then: b has median")
    large = features_change(draw.normal(size=(20_000, 1)) + 0.05, draw.normal(size=(20_000, 1)), ["a"], "then")
    assert large.startswith("Inputs: no change against then")
    assert float(re.findall(r"p (?:< )?([\d.e-]+)\)", large)[0]) < 0.01  # significant, and small
    embedded = [embeddings_change(*draw.normal(size=(2, 100, 16)), "then") for _ in range(20)]
    assert sum(said.startswith("Inputs changed") for said in embedded) <= 2
    moved = embeddings_change(draw.normal(size=(100, 16)) + 0.5, draw.normal(size=(100, 16)), "then")
    assert moved.startswith("Inputs changed")
