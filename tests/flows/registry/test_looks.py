"""Looks over time: the evaluations of a version in use on new dates, each row once, and what they say together."""

import re
from datetime import date
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from loopback import wait_until
from mlflow import MlflowClient
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.testing.cli import invoke_and_assert

import congruence.flows.operations.looks as showing
import congruence.flows.operations.watch as watching
from congruence.flows.operations.gate import gate_outcomes
from congruence.flows.operations.listing import over_time_address
from congruence.flows.operations.watch import check_once
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.evaluate.evaluation import evaluate
from congruence.tasks.evaluate.executors import LocalExecutor, Observer
from congruence.tasks.evaluate.plan import Plan, VersionOutcome
from congruence.tasks.mlflow.reading import list_evaluations
from congruence.tasks.models.registry import resolve
from congruence.tasks.monitor.account import read_account
from congruence.tasks.runtime.errors import TooManyInvalidRowsError
from congruence.tasks.settings.evaluation import EvaluationSettings

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "watch.md"


def _day(folder: Path, day: int, rows: int, shift: float = 0.0, *, again: int = 0, rho: float = 0.0) -> None:
    """Rows of one day: keys of their own (and ``again`` some of the day before), targets moved by ``shift``.

    ``rho`` is the correlation of a target's deviation with that of the row before.
    """
    rng = np.random.default_rng(day)
    angle = rng.uniform(0, np.pi, rows)
    frame = pd.DataFrame({"cos": np.cos(angle), "sin": np.sin(angle), "angle": angle})
    noise = rng.normal(size=rows)
    for row in range(1, rows):
        noise[row] = rho * noise[row - 1] + np.sqrt(1.0 - rho**2) * noise[row]
    frame["y"] = 2 * angle + shift + noise
    frame["key"] = [f"{day - (number < again)}-{number}" for number in range(rows)]
    frame["half"] = np.where(angle > np.pi / 2, "right", "left")
    place = folder / f"day=2026-03-{day:02d}"
    place.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(place / "rows.parquet")


def _settings(registry: Any, days: Path, model: str, **changes: Any) -> EvaluationSettings:
    split = registry.content()["splits"][0] | {"uri": f"{days}/day={{date}}/*.parquet", "name": f"daily-{model}"}
    split |= {"last": "2 days", "new_dates_only": True}
    watch = {"in_process_rows": 1000, "monitor": {"least_rows": 50}}
    return registry.settings(models=[model], splits=[split], watch=watch, **changes)  # type: ignore[no-any-return]


def _account(settings: EvaluationSettings, version: str) -> Any:
    return read_account(resolve(version), settings.splits[0], settings)


def test_a_version_that_is_surely_not_the_best_leaves_the_set_over_all_looks(registry: Any, tmp_path: Path) -> None:
    registry.register("raced")
    registry.register("raced", scale=0.9)
    registry.register("raced", bias=1.5)
    for number, alias in enumerate(("champion", "challenger", "other"), start=1):
        MlflowClient().set_registered_model_alias("raced", alias, str(number))
    days = tmp_path / "days"
    settings = _settings(registry, days, "raced", metrics=["congruence_test", "crps"])
    _day(days, 1, 120)
    said = "raced/3 is not the best of 3 versions over 1 look by CRPS; raced/1 or raced/2 may be (95 % set)"
    left = f"on daily-raced, {said}"
    assert left in check_once(settings).sentences
    assert check_once(settings).sentences == []
    _day(days, 2, 120)
    assert not any("not the best" in sentence for sentence in check_once(settings).sentences), "it was said"
    listed = {item.model.label: item for item in list_evaluations(["raced"], settings.tracking)}
    marks = {label: item.best_of(item.evaluations[0]) for label, item in listed.items()}
    assert marks == {
        "raced/1": "may be the best of 3 versions over 2 looks",
        "raced/2": "may be the best of 3 versions over 2 looks",
        "raced/3": "not the best of 3 versions over 2 looks",
    }
    gated = settings.model_copy(update={"gate": GateSettings(may_be_best=True)})
    outcomes = {item.candidate.label: item.outcome for item in gate_outcomes(gated, check_once(settings).outcomes)}
    assert outcomes == {"raced/1": "passed", "raced/2": "passed", "raced/3": "failed"}


def test_the_version_in_use_is_looked_at_on_new_dates_and_found_changed(
    registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("used")
    registry.register("used")
    MlflowClient().set_registered_model_alias("used", "champion", "1")
    days = tmp_path / "days"
    settings = _settings(registry, days, "used", metrics=["congruence_test", "calibration"])
    _day(days, 1, 120)
    first = check_once(settings)
    assert sorted(outcome.label for outcome in first.made) == ["used/1", "used/2"]
    assert first.sentences == [f"used/{n} on daily-used: right so far (1 look)" for n in (1, 2)]
    nothing = check_once(settings)
    assert (nothing.made, nothing.sentences, nothing.problems) == ([], [], [])

    _day(days, 2, 30)
    lines: list[str] = []
    monkeypatch.setattr(showing, "say", lines.append)
    few = check_once(settings)
    assert few.made == []
    assert not showing.report(few)
    assert lines.pop().endswith("have their evaluations, or fewer than 50 new rows (watch: monitor: least_rows)")
    assert showing.report(first)
    assert lines[0] == "evaluated used/1 on daily-used, 2026-03-01: no fault found in 120 rows"
    _day(days, 3, 120, shift=1.0)
    tell = watching.tell_verdicts
    monkeypatch.setattr(watching, "tell_verdicts", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # killed between the evaluation and the telling
        check_once(settings)
    monkeypatch.setattr(watching, "tell_verdicts", tell)
    after = check_once(settings)
    assert after.made == []  # the look is there
    (sentence,) = after.sentences
    assert sentence.startswith(
        "used/1 on daily-used: changed since 2026-03-02 to 2026-03-03, shown on 2026-03-02 to 2026-03-03 (2 looks). "
        "Evidence that it is wrong: "
    )
    assert "p of this look" in sentence
    account = _account(settings, "used/1")
    assert [(look.split.since, look.split.until, look.split.valid_rows) for look in account.looks] == [
        ("2026-03-01", "2026-03-01", 120),
        ("2026-03-02", "2026-03-03", 150),
    ]
    assert account.monitor.looks[1].log_bet is not None
    assert resolve("used/1").tags["cce_looks:daily-used"].startswith("daily-used: changed since 2026-03-02")
    again = check_once(settings)
    assert (again.made, again.sentences) == ([], [])
    listed = {item.model.label: item.looks for item in list_evaluations(["used"], settings.tracking)}
    assert listed["used/2"] == ["daily-used: right so far (1 look)"]
    assert listed["used/1"][0].startswith("daily-used: changed since 2026-03-02")

    gated = settings.model_copy(update={"gate": GateSettings(not_changed=True)})
    one_gate, two_gate = gate_outcomes(gated, again.outcomes)
    assert (one_gate.outcome, two_gate.outcome) == ("failed", "passed")
    assert "over all looks: changed since" in one_gate.reasons[0]
    page = Path(over_time_address("models:/used/1", settings.tracking).removeprefix("file://")).read_text()
    assert "used/1 on daily-used" in page
    assert "changed since 2026-03-02" in page
    assert "right so far (1 look)" in page
    runs = mlflow.search_runs(
        experiment_names=["congruence/evaluations"], filter_string="tags.`congruence.split` = 'daily-used'"
    )
    assert sorted(runs["tags.mlflow.runName"]) == [
        "used/1 on daily-used, 2026-03-01",
        "used/1 on daily-used, 2026-03-02 to 2026-03-03",
        "used/2 on daily-used, 2026-03-01",
    ]


def test_rows_whose_keys_were_counted_are_left_out_and_dates_count_once(registry: Any, tmp_path: Path) -> None:
    registry.register("repeated")
    MlflowClient().set_registered_model_alias("repeated", "champion", "1")
    days = tmp_path / "days"
    settings = _settings(registry, days, "repeated", metrics=["congruence_test"])
    _day(days, 1, 100)
    assert check_once(settings).problems == []
    _day(days, 2, 100, again=40)
    assert check_once(settings).problems == []
    _day(days, 3, 100, again=95)
    assert check_once(settings).made == []  # 45 new ones are too few
    _day(days, 4, 100)
    assert check_once(settings).problems == []
    account = _account(settings, "repeated/1")
    assert [(look.split.since, look.split.valid_rows) for look in account.looks] == [
        ("2026-03-01", 100),
        ("2026-03-02", 60),
        ("2026-03-03", 145),
    ]

    # An evaluation by hand of dates that were looked at is no look.
    part = settings.splits[0].model_copy(update={"since": date(2026, 3, 4), "last": None, "new_dates_only": False})
    plan = Plan(settings.model_copy(update={"splits": [part], "models": ["repeated/1"]}))
    assert plan.splits[0].split.period == "2026-03-04/2026-03-04"
    (made,) = evaluate(plan, LocalExecutor, Observer())
    assert made.status == "evaluated"
    assert _account(settings, "repeated/1").looks == account.looks


def test_rows_that_are_correlated_though_nobody_named_it_are_not_bet_on(registry: Any, tmp_path: Path) -> None:
    registry.register("hourly")
    MlflowClient().set_registered_model_alias("hourly", "champion", "1")
    days = tmp_path / "days"
    settings = _settings(registry, days, "hourly", metrics=["congruence_test", "calibration"])
    for day in (1, 2, 3):
        _day(days, day, 300, rho=0.9)
        assert check_once(settings).problems == []
    monitor = _account(settings, "hourly/1").monitor
    assert monitor.verdict == "right so far"
    assert [look.log_bet for look in monitor.looks] == [None, None, None]


def test_a_version_of_which_a_correction_was_fitted_is_looked_at_on_the_dates_after(
    registry: Any, tmp_path: Path
) -> None:
    registry.register("fitted")
    MlflowClient().set_registered_model_alias("fitted", "champion", "1")
    MlflowClient().set_model_version_tag("fitted", "1", "congruence.fitted_until", "2026-03-01")
    days = tmp_path / "days"
    settings = _settings(registry, days, "fitted", metrics=["congruence_test"])
    _day(days, 1, 100)
    assert check_once(settings).outcomes == []
    _day(days, 2, 100)
    assert check_once(settings).problems == []
    assert [look.split.since for look in _account(settings, "fitted/1").looks] == ["2026-03-02"]
    _day(days, 4, 100)
    assert check_once(settings).notes == []
    _day(days, 3, 100)
    late = check_once(settings)
    assert (late.made, late.problems) == ([], [])
    assert late.notes == [
        "fitted/1 on daily-fitted: 2026-03-03 came after the look at 2026-03-04, and the watch looks at later dates "
        "alone; `congruence evaluate` with since: and until: of the split counts them"
    ]
    assert showing.report(late, [])
    assert not showing.report(late, late.notes), "it is said once"
    (split,) = settings.splits
    wide = settings.model_copy(update={"splits": [split.model_copy(update={"last": 9})]})
    for day in (6, 8):
        _day(days, day, 100)
    assert [outcome.split for outcome in check_once(wide).made] == [split.name]
    assert check_once(wide).notes == late.notes
    _day(days, 7, 100)
    assert check_once(wide).notes[1:] == [
        "fitted/1 on daily-fitted: 1 date of 2026-03-06 to 2026-03-08 came after the look at these, which does not "
        "count it"
    ]


def test_looks_on_workers_say_what_looks_in_process_say(registry: Any, tmp_path: Path) -> None:
    registry.register("worked", bias=0.6)
    days = tmp_path / "days"
    _day(days, 1, 120)
    settings = _settings(registry, days, "worked", metrics=["congruence_test", "calibration", "nll"])
    elsewhere = settings.model_copy(
        update={
            "watch": settings.watch.model_copy(update={"in_process_rows": 0}),
            "splits": [settings.splits[0].model_copy(update={"name": "daily-elsewhere"})],
        }
    )
    (here,), (on_workers,) = check_once(settings).made, check_once(elsewhere).made
    assert (here.status, on_workers.status) == ("evaluated", "evaluated")
    for name in ("cce_mean", "cce_p_value", "calibration_p_value", "calibration_effect_bias", "nll_mean"):
        assert here.metrics[name].value == pytest.approx(on_workers.metrics[name].value, rel=1e-4), name
    assert _account(settings, "worked/1").monitor.verdict == _account(elsewhere, "worked/1").monitor.verdict == "wrong"


@flow(name="answer-a-verdict")
def answer_a_verdict() -> None:
    """What somebody runs when a version turns out wrong."""


def test_a_changed_verdict_starts_the_automation_of_the_page(registry: Any, tmp_path: Path) -> None:
    deployment = str(answer_a_verdict.to_deployment("by-automation").apply())  # type: ignore[union-attr]
    (written,) = re.findall(r"```yaml\n(name: a version turned out wrong.+?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "automation.yaml"
    file.write_text(re.sub(r"deployment_id: [^,]+", f"deployment_id: {deployment}", written))
    invoke_and_assert(["automation", "create", "--from-file", str(file)], expected_code=0)
    registry.register("noticed", bias=1.0)
    _day(tmp_path / "days", 1, 120)
    settings = _settings(registry, tmp_path / "days", "noticed", metrics=["congruence_test", "calibration"])
    (sentence,) = check_once(settings).sentences
    assert "wrong, first shown on 2026-03-01" in sentence
    wanted = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment]))  # type: ignore[list-item]
    with get_client(sync_client=True) as client:
        wait_until(lambda: client.read_flow_runs(flow_run_filter=wanted), 120, "a run that the automation starts")


def test_rows_that_lack_a_feature_stay_in_process_where_the_encoder_takes_them(registry: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"x": rng.normal(size=60), "z": rng.normal(size=60), "y": rng.normal(size=60)})
    frame.loc[[4, 17, 31], "x"] = np.nan
    frame.to_parquet(tmp_path / "lacking.parquet")
    example = frame[["x", "z"]].head(2)
    registry.log(lambda rows: pd.DataFrame({"loc": 0.0 * rows["z"], "scale": 1.0}), "plain", example)
    lacking = {"uri": str(tmp_path / "lacking.parquet"), "input": ["x", "z"], "input_kind": "features", "target": "y"}

    def evaluated(missing: str) -> VersionOutcome:
        encoder = {"kind": "identity", "missing": missing}
        (outcome,) = registry.evaluated(models=["plain"], splits=[lacking], encoder=encoder, metrics=["mae"])
        return outcome

    assert mlflow.get_run(evaluated("mean").run_id).data.params["valid_rows"] == "60"
    with pytest.raises(TooManyInvalidRowsError, match="3 of 60 rows lack a finite number"):
        evaluated("leave_out")
