"""The lines of a stage, as text and as JSON with what they are of, and the table that a run ends with."""

import io
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from commands import run
from prefect import flow
from rich.console import Console

from congruence.flows.cli import console
from congruence.flows.cli.console import order_of_versions, print_outcomes
from congruence.flows.evaluate import STAGES, in_flow, run_fields
from congruence.flows.operations.score_inputs import in_general
from congruence.kernels import Normal
from congruence.kernels.verdict import Verdict
from congruence.tasks.evaluate.plan import VersionOutcome
from congruence.tasks.runtime import lines as logs
from congruence.tasks.runtime.lines import Lines, about, listen, pace_of, step
from congruence.tasks.scores.evaluation import MetricValue, ranked
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.solving.pass_runner import SolveProgress


def test_the_lines_of_a_run_that_a_server_started_stand_on_its_page(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    token = console.on_page.set(logging.getLogger("a run"))
    try:
        with caplog.at_level("INFO", "a run"):
            console.say("solving test: 800 rows in memory")
    finally:
        console.on_page.reset(token)
    assert caplog.messages == ["solving test: 800 rows in memory"]
    assert capsys.readouterr().err == ""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


ADVANCED: dict[str, tuple[dict[str, Any], list[tuple[float, int]], list[str]]] = {
    "what was found done has no rate": (
        {"total": 20_000, "unit": "rows", "found": 20_000}, [], ["all 20,000 rows already done"]
    ),
    "the rate is that of the work": (
        {"total": 20_000, "unit": "rows", "found": 10_000}, [(20.0, 4_000), (50.0, 6_000)],
        ["14,000 of 20,000 rows (10,000 already done), 200 rows/s, 30 s left",
         "20,000 of 20,000 rows (10,000 already done), 200 rows/s, took 50 s"],
    ),
    "a stage of no time states no rate": ({"total": 2, "unit": "versions"}, [(0.0, 2)], ["2 of 2 versions"]),
    "a reminder states the time that is left": (
        {"total": 400, "unit": "rows"}, [(10.0, 100), (15.0, 0), (100.0, 0)],
        ["100 of 400 rows, 10 rows/s, 30 s left", "100 of 400 rows after 15 s, 25 s left",
         "100 of 400 rows after 100 s, 3 s left"],
    ),
    # Five versions of ten seconds on two workers: at the first end 40 s were said to be left, where 20 were.
    **{
        f"two at a time end in rounds: {len(ends)} of 5": (
            {"total": 5, "unit": "versions", "at_once": 2}, [*((end, 1) for end in ends), (ends[-1], 0)],
            [f", {left} s left"],
        )
        for ends, left in (((10.0,), 20), ((10.0, 11.0), 22), ((10.0, 11.0, 20.0), 10))
    },
    "the others of the last round are about to end": (
        {"total": 2, "unit": "versions", "at_once": 2}, [(10.0, 1)], [", 1 s left"]
    ),
}  # fmt: skip
"""A stage, when how many of its units ended (a reminder where none did), and its lines or how the last one ends."""


@pytest.mark.parametrize("case", ADVANCED)
def test_the_lines_of_a_stage(case: str) -> None:
    options, moments, expected = ADVANCED[case]
    clock, said = Clock(), list[str]()
    lines = Lines("solving test", out=said.append, clock=clock, **options)
    for clock.now, units in moments:
        if units:
            lines.advance(units)
        else:
            lines.remind()
    if expected[0].startswith(","):
        assert said[-1].endswith(expected[0])
    else:
        assert said == [f"solving test: {line}" for line in expected]


def test_a_stage_in_which_nothing_ends_says_so_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A solve of 472 s had no line at all: none of its versions was done before the end."""
    monkeypatch.setattr(console, "LINE_SECONDS", 0.1)
    monkeypatch.setattr(console, "_LOOK_SECONDS", 0.02)
    asked = iter(range(100))
    with console.stage("solving test", 5, "versions", detail=lambda: f"{next(asked)} tasks done", at_once=5) as advance:
        time.sleep(0.5)
        advance(5)
    lines = capsys.readouterr().err.strip().splitlines()
    assert 3 <= len(lines) <= 7
    assert lines[0] == "solving test: 5 versions at once after 0 s; 0 tasks done"
    assert lines[1].endswith("1 tasks done")
    assert lines[-1].startswith("solving test: 5 of 5 versions")


def test_a_solve_has_one_forecast_over_its_passes() -> None:
    said: list[int] = []
    progress = SolveProgress(said.append, 50_000, 2, calibrated=True)
    ended = progress.pass_of("scores", 4)
    beside = progress.pass_of("calibration bases", 2)
    for end in (ended, ended, beside, ended, ended, beside):
        end()
    so_far = sum(said)
    assert 20 < so_far < 40
    for _ in range(2):  # a further try adds what it costs: the share that was said does not fall
        ended = progress.pass_of("scores", 1)
        assert sum(said) == so_far
    ended()
    assert all(percent > 0 for percent in said)
    assert sum(said) < 100


@pytest.fixture
def heard() -> Iterator[Counter[str]]:
    """The units that were done, by the step that they are of."""
    units: Counter[str] = Counter()
    listen(lambda title, total, unit: lambda count: units.update({f"{title}: {total} {unit}": count}))
    yield units
    listen(None)


def test_a_solve_that_ends_is_whole(heard: Counter[str]) -> None:
    with about("test"), SolveProgress.of(100, 2, 0, calibrated=False) as progress:
        progress.pass_of("inputs", 1)()
    assert heard == {"solve of test: 100 percent": 100}


def test_a_step_tells_its_forecast_and_how_long_it_took_unless_it_is_short() -> None:
    clock, told = Clock(), []

    def hear(title: str, total: int, unit: str) -> Callable[[int], None]:
        return Lines(title, total, unit, told.append, clock=clock, shortest=5.0).advance

    listen(hear)
    try:
        with about("law/3"), step("Monte-Carlo test", 999, "draws") as advance:
            for seconds, draws in ((2.0, 100), (8.0, 100), (10.0, 100), (40.0, 699)):
                clock.now = seconds
                advance(draws)
        with step("kernel calibration error", 3, "parts") as advance:
            clock.now += 1.0
            advance(3)
    finally:
        listen(None)
    assert told == [
        "Monte-Carlo test of law/3: 200 of 999 draws, 25 draws/s, 32 s left",
        "Monte-Carlo test of law/3: 999 of 999 draws, 25 draws/s, took 40 s",
    ]


def test_the_kernel_calibration_error_tells_its_steps(heard: Counter[str]) -> None:
    draw = np.random.default_rng(0)
    _ = Rows({}, draw.normal(size=60), Normal(np.zeros(60), np.ones(60))).kernel_calibration
    assert heard == {"kernel calibration error: 2 parts": 2}


@pytest.mark.parametrize(
    ("units", "seconds", "said"),
    [
        (1000, 2.0, "500 versions/s"),
        (3, 2.0, "1.5 versions/s"),
        (2, 9.0, "4.5 s a version"),
        (1, 40.0, "40 s a version"),
    ],
)
def test_a_slow_stage_is_told_in_seconds_a_unit(units: int, seconds: float, said: str) -> None:
    assert pace_of(units, seconds, "versions") == said


NAMES = ("cce_mean", "cce_expected", "cce_excess", "ece", "nll_mean", "crps_mean", "crps_skill", "mae")


def printed(width: int, *, terminal: bool = True) -> str:
    metrics = {name: MetricValue(0.012345 * (place + 1), 0.01, 0.02) for place, name in enumerate(NAMES)}
    wrong, right = (Verdict.of({"calibration": p_value}, rows=2000) for p_value in (0.001, 0.4))
    verdicts = replace(wrong, fault="predicted spread too small where site is b"), right
    outcomes = [
        VersionOutcome(f"claims/{name}", "test", "found", "r1", metrics, "exact (0123456789ab)", verdict)
        for name, verdict in zip(("1", "12"), verdicts, strict=True)
    ]
    return shown(outcomes, width, force_terminal=terminal, color_system=None)


def shown(outcomes: list[VersionOutcome], width: int, **options: Any) -> str:
    out = Console(file=io.StringIO(), width=width, highlight=False, **options)
    print_outcomes(outcomes, out=out)
    return out.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_table_fits_the_terminal_with_what_one_decides_by(width: int) -> None:
    lines = printed(width).splitlines()
    assert max(len(line) for line in lines if line[:1] in "┏┃┡│└") <= width
    header = " ".join(line for line in lines if line.startswith("┃"))
    assert all(name in header for name in ("version", "verdict", "skill", "CRPS", "beyond", " p "))
    assert "MAE" not in header
    assert "…" not in "".join(lines)
    assert len([line for line in lines if line.startswith("│")]) <= 3, "the verdict alone may have two lines"
    assert any("wrong: predicted spread" in line for line in lines)


def test_versions_on_rows_of_their_own_are_not_shown_as_if_they_were_on_the_same() -> None:
    assert "different rows" not in printed(100)
    outcomes = [
        VersionOutcome(name, "test", "found", "r1", {}, "exact", Verdict.of({"calibration": 0.4}, rows=rows))
        for name, rows in (("v1", 1347), ("v2", 896))
    ]
    assert "Judged on different rows (v1: 1,347, v2: 896): part of a difference may" in shown(outcomes, 100)


def test_versions_that_state_other_levels_are_not_shown_as_if_their_crps_compared() -> None:
    whole, some = "whole distributions", "quantiles at 0.05, 0.5, 0.95"
    stated = {"v1": some, "v3": some, "v2": whole, "v4": whole}
    crps = {"v1": 1.0, "v2": 3.0, "v3": 1.2, "v4": 2.0}
    outcomes = [
        VersionOutcome(
            name, "test", "found", "r1",
            {"crps_mean": MetricValue(crps[name]), "cce_mean": MetricValue(0.1 / crps[name])},
            "exact", Verdict.of({"calibration": 0.4}, rows=900), (), said
        )
        for name, said in stated.items()
    ]  # fmt: skip
    table = shown(outcomes, 100)
    assert f"compare only among versions that state the same: {whole} (v4, v2); {some} (v1, v3)" in table
    order = [line[2:4] for line in table.splitlines() if line.startswith(("│ v", "├─"))]
    assert order == ["v4", "v2", "──", "v1", "v3"]
    assert "state the same" not in shown(outcomes[:2], 100)


def test_a_file_or_a_pipe_gets_every_column() -> None:
    lines = printed(60, terminal=False).splitlines()
    header = " ".join(line for line in lines if line.startswith("┃"))
    assert all(name in header for name in ("skill", "CRPS", "NLL", "expected if true", "status"))
    assert any("evaluated before" in line and "no fault found" in line for line in lines)


def test_versions_are_ordered_by_a_proper_score_where_it_differs_beyond_noise() -> None:
    metrics = {
        "honest and vague": {"crps_mean": MetricValue(2.0, 1.9, 2.1), "cce_mean": MetricValue(0.01)},
        "sharp": {"crps_mean": MetricValue(1.0, 0.9, 1.1), "cce_mean": MetricValue(0.05)},
        "sharp and honest": {"crps_mean": MetricValue(1.05, 0.95, 1.15), "cce_mean": MetricValue(0.02)},
    }

    def order(**changes: Any) -> list[str]:
        outcomes = [VersionOutcome(name, "test", "found", "r", each) for name, each in metrics.items()]
        return [item.label for item in ranked([replace(item, **changes) for item in outcomes])]

    assert order() == ["sharp and honest", "sharp", "honest and vague"]
    metrics = {name: {"cce_mean": each["cce_mean"]} for name, each in metrics.items()}
    assert order()[0] == "honest and vague"


@pytest.mark.parametrize("width", [60, 120])
def test_what_is_wrong_stands_under_the_table_in_lines_that_fit(width: int) -> None:
    sentences = (
        "The predictions are wrong (p < 0.001): over all rows, the predicted spread is too small by a factor of 1.6.",
        "On digit 7 (10 % of the rows) the targets lie 0.4 predicted spreads above the predictions.",
        "No fault was found in 3 of 12 regions.",
    )
    outcomes = [
        VersionOutcome("[red]claims[/red]/2", "test", "found", "r2", {"cce_mean": MetricValue(0.2)}, wrong=sentences),
        VersionOutcome(
            "claims/1", "test", "evaluated", "r1", {"cce_mean": MetricValue(0.1)}, wrong=("No fault found.",)
        ),
        VersionOutcome("claims/0", "test", "found", "r0", {"cce_mean": MetricValue(0.3)}),
    ]
    below = [line for line in shown(outcomes, width).splitlines() if line.startswith("  ")]
    assert max(len(line) for line in below) <= width
    said = " ".join(line.strip() for line in below)
    assert said.startswith("claims/1: No fault found. [red]claims[/red]/2: The predictions are wrong")
    assert said.endswith("above the predictions. (1 more in its report)")
    assert "claims/0:" not in said
    assert outcomes[1].to_json()["wrong"] == ("No fault found.",)


def test_splits_that_disagree_on_the_order_say_whether_they_compare() -> None:
    def outcome(label: str, split: str, cce: float, protocol: str = "exact (1)") -> VersionOutcome:
        return VersionOutcome(label, split, "found", "r", {"cce_mean": MetricValue(cce)}, protocol=protocol)

    first = [outcome("m/1", "a", 0.1), outcome("m/2", "a", 0.2)]
    assert order_of_versions([*first, outcome("m/1", "b", 0.3), outcome("m/2", "b", 0.4)]) == ""
    assert order_of_versions([*first, outcome("m/2", "b", 0.3)]) == ""
    assert order_of_versions([]) == ""
    said = order_of_versions([*first, outcome("m/1", "b", 0.4), outcome("m/2", "b", 0.3)])
    assert "on a: m/1, m/2; on b: m/2, m/1" in said
    assert "the same, so each order holds" in said
    other = [outcome("m/1", "b", 0.4, "exact (2)"), outcome("m/2", "b", 0.3, "exact (2)")]
    assert "do not compare" in order_of_versions([*first, *other])


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logs.JsonLines())
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))


def _ask(version: str) -> None:
    logging.getLogger("congruence.tasks.of_the_test").warning("asked %s", version)


@pytest.mark.usefixtures("prefect_server")
def test_lines_name_run_stage_version_split_and_worker(
    monkeypatch: pytest.MonkeyPatch, content: Any, home: Any
) -> None:
    monkeypatch.setattr(logs, "_known", [run_fields])
    lines = _Lines()
    loggers = [logging.getLogger(name) for name in ("congruence.tasks.of_the_test", "prefect.task_runs")]
    for logger in loggers:
        logger.addHandler(lines)
    monkeypatch.setattr(loggers[1], "level", logging.INFO)
    settings = EvaluationSettings.model_validate(content(home=str(home), cluster={"kind": "threads", "workers": 1}))
    try:

        @flow(name="of a test", flow_run_name="evaluate one")
        def asks() -> None:
            with in_flow(settings) as cluster:
                about = {"fields": lambda version: {"version": version, "shard": "4-7"}}
                ask = lambda: [done.result() for done in cluster().map(_ask, ["angle/3"], name="ask", **about)]  # noqa: E731
                STAGES.stage("predict", "digits", ask)

        asks()
    finally:
        for logger in loggers:
            logger.removeHandler(lines)
    (ours,) = (line for line in lines.found if line["message"] == "asked angle/3")
    assert ours["evaluation"] == "evaluate one"
    assert (ours["stage"], ours["version"], ours["split"], ours["shard"]) == ("predict", "angle/3", "digits", "4-7")
    assert (ours["worker"], ours["task"]) == ("0", "predict digits")
    assert len(ours["run"]) == 36
    ended = [line for line in lines.found if line["message"].startswith("Finished in state")]
    assert [(line["stage"], line["split"], line["run"]) for line in ended] == [("predict", "digits", ours["run"])]


def test_a_command_writes_its_own_lines_as_json(tmp_path: Any) -> None:
    status, loaded, said = run("evaluate", str(tmp_path / "none.yaml"), CONGRUENCE_LOG="json")
    assert (status, "rich" in loaded) == (2, False)
    (line,) = [json.loads(text) for text in said.splitlines()]
    assert (line["level"], line["logger"], "cannot be read" in line["message"]) == ("error", "congruence", True)


def test_what_most_withheld_inputs_have_in_common_names_their_column_in_full() -> None:
    reason = "floor area (m2) 900: the split holds 20.3 to 250; nearest rows 1, 2"
    assert in_general(reason) == "floor area (m2): the split holds 20.3 to 250"
    assert in_general("far from every row; nearest rows 3") == "far from every row"
