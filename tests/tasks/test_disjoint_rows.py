"""Versions on different rows: intervals that cover what is true, and are those of independent rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from congruence.kernels.errors import ProtocolError
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.differences import point_differences
from congruence.tasks.comparison.versions import compare_pair, compare_versions
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.report.comparison import comparison_report
from congruence.tasks.scores.evaluation import MetricValue, SplitSummary


def version(name: str, rows: np.ndarray, nll: np.ndarray, digest: str, *, is_stored: bool = True) -> ComparedVersion:
    frame = pd.DataFrame({"key": rows, "valid": True, "nll": nll, "squared_error": nll**2, "target": 0.0, "cce": 0.1})
    split = SplitSummary("p", digest, len(rows), len(rows), "y", "")
    metrics = {"nll_mean": MetricValue(float(nll.mean())), "cce_mean": MetricValue(0.1)}
    return ComparedVersion(
        ModelVersion(name, "", f"stored:{name}"), split, "exact", "d", metrics, frame, is_stored=is_stored
    )


def test_intervals_cover_the_truth_at_their_level_on_rows_of_other_numbers_and_skewed_scores() -> None:
    draw, covered, times = np.random.default_rng(0), 0, 600
    for _ in range(times):
        one, two = draw.gamma(1.0, 1.0, size=60), 0.5 + draw.gamma(2.0, 1.0, size=150)
        pair = compare_pair(version("a", np.arange(60), one, "A"), version("b", 60 + np.arange(150), two, "B"))
        item = pair.differences["nll_mean"]
        covered += item.low <= 1.0 - 2.5 <= item.high
    assert 0.925 <= covered / times <= 0.975


def test_they_are_wider_than_those_of_pairs_and_say_so() -> None:
    draw = np.random.default_rng(1)
    common = draw.normal(size=400)
    first = version("a", np.arange(400), common + 0.1 * draw.normal(size=400), "A")
    second = version("b", np.arange(400), common + 0.1 * draw.normal(size=400), "B")
    apart = compare_pair(first, second)
    paired = point_differences(first, second, np.ones(400, bool), resamples=200, seed=0)["nll_mean"]
    found = apart.differences["nll_mean"]
    assert found.difference == pytest.approx(paired.difference)
    assert found.standard_error > 8 * paired.standard_error
    expected = np.sqrt(sum(v.scores["nll"].var(ddof=1) / 400 for v in (first, second)))
    assert found.standard_error == pytest.approx(expected, rel=0.02)
    assert "cce_mean" not in apart.differences
    assert "judged on different rows (400 and 400)" in apart.notes[0]
    assert "on the 400 keys that both scored" in apart.notes[0]
    page = comparison_report(compare_versions([first, second], baseline="a"))
    assert "judged on different rows" in page


def test_versions_that_are_asked_for_predictions_still_need_the_same_rows() -> None:
    values = np.ones(5)
    with pytest.raises(ProtocolError, match="split"):
        compare_pair(version("a", values, values, "A", is_stored=False), version("b", values, values, "B"))
