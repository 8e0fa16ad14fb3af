"""A metric is one object: what computes, logs, compares, shows and explains metrics reads it."""

import runpy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from comparable import angle, as_compared
from pydantic import TypeAdapter, ValidationError

from congruence.kernels import EXACT, Normal
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.scores import interval_score
from congruence.tasks.comparison.gate import apply_gate
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.comparison.versions import compare_pair
from congruence.tasks.mlflow.evaluations import write_artifacts
from congruence.tasks.mlflow.runs import points_table
from congruence.tasks.report.evaluation import report_data
from congruence.tasks.scores.evaluation import Evaluation, SplitSummary
from congruence.tasks.scores.metrics import MetricName
from congruence.tasks.scores.metrics.definitions import ROWS, TARGET
from congruence.tasks.scores.metrics.metric import Metric, Rows
from congruence.tasks.scores.metrics.registry import METRICS, logged_name, register, requested_metrics, shown
from congruence.tasks.scores.points import score_points
from congruence.tasks.scores.summary import version_metrics
from congruence.tasks.settings.sections import TrackingSettings
from congruence.tasks.solving.solve import measure

N = 150
NAME = "winkler_90"


def winkler(y: np.ndarray, predictive: Distribution) -> np.ndarray | None:
    return interval_score(y, predictive, 0.9) if y.ndim == 1 else None


@pytest.fixture(scope="module", autouse=True)
def metric() -> Iterator[Metric]:
    added = Metric(
        NAME,
        "Winkler 90 %",
        "Mean interval score of the central 90 % interval.",
        unit=TARGET,
        better="lower",
        interval=ROWS,
        group="Score",
        asked="winkler",
        column=NAME,
        column_label="Winkler score",
        point=winkler,
        margin="5 %",
        shown={"headlines": 9, "mlflow": 13, "slices": 13, "compared": 7},
    )
    register(added)
    yield added
    del METRICS[NAME]


@pytest.fixture(scope="module")
def evaluations(metric: Metric) -> list[Evaluation]:
    """The truth, and a version with a fifth of its spread."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    y = x[:, 0] + rng.normal(size=N)
    laws = {"1": Normal(x[:, 0], np.ones(N)), "2": Normal(x[:, 0], np.full(N, 0.2))}
    labels = pd.DataFrame({"side": np.where(x[:, 1] > 0, "right", "left")})
    found = measure(EXACT, x, y, laws)
    made = []
    for version, law in laws.items():
        points = score_points(found[version], Rows({}, y, law))
        asked = requested_metrics(None)
        metrics, slices = version_metrics(asked, Rows(points, y, law, labels=labels), found[version])
        scores = pd.DataFrame({"key": np.arange(N).astype(str), "valid": True, "reason": "", "target": y, **points})
        split, scores = SplitSummary("test", "s" * 64, N, N), scores.assign(side=labels["side"])
        made.append(Evaluation(angle(version), split, EXACT, metrics, scores, law, y, slices, metric_list=asked))
    return made


def test_it_is_computed_logged_and_shown(evaluations: list[Evaluation], tmp_path: Path) -> None:
    truth = evaluations[0]
    scores = interval_score(truth.targets, truth.predictive, 0.9)
    value = truth.metrics[NAME]
    assert value.value == pytest.approx(scores.mean())
    assert value.low < value.value < value.high
    assert list(truth.slices)[-1] == NAME
    np.testing.assert_allclose(points_table(truth, 5)[NAME].iloc[0], truth.scores.sort_values("cce")[NAME].iloc[-1])
    write_artifacts(truth, tmp_path, TrackingSettings(report=False))
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "scores.parquet")[NAME], scores, rtol=1e-6)
    data = report_data(truth)
    assert [metric.name for metric, _ in data.metrics["Score"]][-1] == NAME
    assert (NAME, "Winkler score") in [(column["name"], column["label"]) for column in data.page["columns"]]
    assert shown("mlflow")[-1] == shown("headlines")[-1] == NAME
    assert logged_name(NAME) == f"headline/{NAME}"


def test_it_may_be_asked_for_and_is_explained() -> None:
    asked: TypeAdapter[str] = TypeAdapter(MetricName)
    assert asked.validate_python("winkler") == "winkler"
    with pytest.raises(ValidationError, match=r"'winklr' is no metric; choose from .*, winkler,"):
        asked.validate_python("winklr")
    references = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "references.py"))
    row = f"| `{NAME}` | headline | Winkler 90 % | unit of the target | lower | Mean interval score"
    assert row in references["metrics"]()


def test_versions_are_compared_in_it_and_the_gate_has_its_margin(evaluations: list[Evaluation]) -> None:
    truth, narrow = (as_compared(each, run_id=each.model.version) for each in evaluations)
    pair = compare_pair(narrow, truth, resamples=200)
    difference = pair.differences[NAME]
    assert difference.low > 0.0
    assert pair.points[NAME].won + pair.points[NAME].lost + pair.points[NAME].tied == N
    gate = GateSettings(baseline="1", not_worse_on=[NAME])
    (check,) = apply_gate(narrow, truth, gate).checks
    assert check.outcome == "failed"
    assert check.limit == pytest.approx(1.05 * difference.second)


def test_no_two_metrics_have_one_name(metric: Metric) -> None:
    with pytest.raises(ValueError, match="another name"):
        register(metric)
