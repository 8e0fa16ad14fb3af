"""Reports of tables and counts: features of the worst rows, weak segments, zeros, coverage without discreteness."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from congruence.kernels.calibration import pit_values
from congruence.kernels.distributions import NegativeBinomial, Poisson
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import open_split
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.plots.evaluation import evaluation_figures, slice_readings
from congruence.tasks.report.evaluation import evaluation_report, report_data
from congruence.tasks.scores import segments as scores_segments
from congruence.tasks.scores import split_rows
from congruence.tasks.scores.counts import count_fit, randomised_coverage
from congruence.tasks.scores.rows_read import RowsRead
from congruence.tasks.scores.segments import searched_rows, weak_segments
from congruence.tasks.scores.split_rows import named_features, rows_looked_at
from congruence.tasks.scores.wrong import Segment

ROWS = 1000


def features(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(
        {"age": rng.uniform(20, 70, ROWS), "area": rng.normal(size=ROWS), "city": rng.choice(list("xyz"), ROWS)}
    )


def segments_in(
    table: pd.DataFrame, pit: np.ndarray, cce: np.ndarray, expected: np.ndarray, seed: int = 0
) -> list[Segment]:
    """``weak_segments`` as a report looks for them."""
    rows = searched_rows(len(table), seed)
    return weak_segments(table.iloc[rows], RowsRead(pit[rows]), cce[rows], expected[rows])


def test_a_true_version_has_no_weak_segment() -> None:
    """95 of 100 splits show none; 9 or more of 60 have a probability of .003 if that is so."""
    ones, named = np.ones(ROWS), 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        named += bool(segments_in(features(rng), rng.uniform(size=ROWS), ones, ones, seed=seed))
    assert named < 9


def test_a_segment_that_is_wrong_is_found_named_and_measured() -> None:
    """The oldest in two of three cities."""
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        table = features(rng)
        wrong = (table["age"] > 55) & (table["city"] != "x")
        pit = stats.norm.cdf(rng.normal(size=ROWS) * np.where(wrong, 2.0, 1.0))
        segments = segments_in(table, pit, np.where(wrong, 0.5, 0.1), np.full(ROWS, 0.1), seed=seed)
        if segments and (start := re.match(r"age (?:above )?([\d.]+)", segments[0].name)) and float(start[1]) > 53:
            found += 1
            assert segments[0].finding.short == "predicted spread too small"
            assert segments[0].finding.clause.startswith("the predicted spread is too small by a factor of")
            assert 0.3 < segments[0].excess <= np.sqrt(0.24) + 1e-9
            assert segments[0].finding.rows < ROWS / 2
    assert found >= 18


def test_few_rows_that_are_far_off_are_named_by_the_ends_of_their_range() -> None:
    rng = np.random.default_rng(5)
    table = pd.DataFrame(rng.normal(size=(2000, 5)), columns=[f"x{k}" for k in range(5)])
    wrong = table["x0"].to_numpy() > 2.33
    pit, ones = stats.norm.cdf(rng.normal(size=2000) + 4.0 * wrong), np.ones(2000)
    segments = segments_in(table, pit, ones, ones)
    assert segments[0].name.startswith("x0 above 2.3")
    assert abs(segments[0].finding.rows - wrong.sum()) <= 3
    assert segments[0].finding.short == "targets above the predictions"
    assert segments[0].p_value == 0.005


def test_what_is_wrong_everywhere_alike_is_in_no_segment() -> None:
    named, ones = 0, np.ones(ROWS)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pit = stats.norm.cdf(1.5 * rng.normal(size=ROWS) + 0.5)
        named += bool(segments_in(features(rng), pit, ones, ones, seed=seed))
    assert named <= 4


def test_a_column_of_texts_without_any_is_read() -> None:
    """Of pandas' own strings none is left to ask: its sum of nothing is an error."""
    assert split_rows._is_feature(pd.Series([None, None], dtype="string"))
    assert not split_rows._is_feature(pd.Series([[1.0], None]))


def test_missing_and_infinite_values_and_constant_columns_do_no_harm() -> None:
    rng = np.random.default_rng(0)
    table = features(rng).assign(nothing=1.0, gap=np.where(rng.uniform(size=ROWS) < 0.3, np.nan, 1.0))
    table["ratio"] = np.where(table["age"] < 21, np.inf, table["area"])
    table.loc[5, "city"] = None
    pit, ones = rng.uniform(size=ROWS) ** np.where(table["age"] > 40, 2, 1), np.ones(ROWS)
    assert segments_in(table, pit, ones, ones)[0].name.startswith("age ")
    assert segments_in(table[["nothing"]], pit, ones, ones) == []
    assert segments_in(table.head(100), pit[:100], ones[:100], ones[:100]) == []


@pytest.fixture(scope="module")
def counted(make_evaluation: Any) -> Any:
    """Overdispersed counts, predicted by a Poisson law with the right mean; 94 % of them zeros or ones."""
    rng = np.random.default_rng(3)
    rate = rng.uniform(0.1, 0.6, ROWS)
    y = rng.poisson(rate * rng.gamma(1.0, 1.0, ROWS)).astype(float)
    law = Poisson(rate)
    table = pd.DataFrame({"age": rng.uniform(20, 70, ROWS), "rate": rate})
    scores = pd.DataFrame(
        {
            "key": np.arange(ROWS).astype(str),
            "valid": True,
            "reason": "",
            "cce": rng.uniform(0.1, 0.2, ROWS),
            "cce_noise_floor": 0.1,
            "target": y,
            "mean": rate,
            "std": np.sqrt(rate),
            "pit": pit_values(y, law),
            "half": np.where(rate < 0.35, "low", "high"),
        }
    )
    slices = pd.DataFrame(
        {"slice": "half", "value": ["high", "low"], "rows": [500, 500], "cce_mean": 0.15, "cce_excess": [0.1, 0.2]}
    )
    return make_evaluation(
        model=ModelVersion("claims", "2", "models:/claims/2"), rows=ROWS, invalid=0, scores=scores, predictive=law,
        targets=y, features=table, slices=slices, thumbnails=None,
        embedding_map=None,
    )  # fmt: skip


def test_zeros_and_frequencies_are_those_of_the_definition(counted: Any) -> None:
    fit = count_fit(counted)
    law, y = counted.predictive, counted.targets
    shares = {share.name: share for share in fit.shares}
    assert list(shares)[:4] == ["mean", "zeros", "ones", "two and more"]
    assert (shares["mean"].observed, shares["mean"].predicted) == (np.mean(y), np.mean(law.mean()))
    assert np.isclose(shares["two and more"].predicted, np.mean(1.0 - law.cdf(1.0)))
    zeros = shares["zeros"]
    assert zeros.observed == np.mean(y == 0)
    assert np.isclose(zeros.predicted, np.mean(np.exp(-law.mean())))
    assert not zeros.low <= zeros.observed <= zeros.high
    assert fit.observed.sum() == ROWS
    assert np.isclose(fit.expected.sum(), ROWS)
    for place in range(len(fit.starts) - 1):
        assert fit.observed[place] == np.sum(y == fit.starts[place])
        assert np.isclose(fit.expected[place], np.sum(np.exp(law.log_prob(fit.starts[place]))))
    assert count_fit(counted) is not None


def test_wide_counts_are_binned(make_evaluation: Any) -> None:
    rng = np.random.default_rng(0)
    law = NegativeBinomial(np.full(118, 900.0), np.full(118, 0.5))
    y = rng.poisson(900, 118).astype(float)
    fit = count_fit(make_evaluation(predictive=law, targets=y))
    assert len(fit.starts) <= 42
    assert fit.observed.sum() == 118
    assert np.isclose(fit.expected.sum(), 118)


def test_randomised_coverage_of_true_counts_is_its_level() -> None:
    """Where nearly all counts are 0, the central half holds 90 % of them and the randomised one 50 %."""
    rng = np.random.default_rng(1)
    rate = rng.uniform(0.02, 0.2, 20_000)
    y = rng.poisson(rate).astype(float)
    for share in randomised_coverage(pit_values(y, Poisson(rate))):
        assert share.low <= share.observed <= share.high
    assert np.mean(y == 0) > 0.85


def test_the_report_of_counts_shows_features_totals_zeros_and_the_logged_name(counted: Any) -> None:
    page = evaluation_report(counted, logged_as="glm")
    assert "logged as <b>glm</b>" in page
    for words in (
        "Weak segments",
        "randomised coverage 50 %",
        "<b>zeros</b>",
        "<h2>Counts",
        "Lift of the highest tenth",
    ):
        assert words in page
    data = report_data(counted)
    assert data.totals is not None
    assert data.totals.whole["ratio"] == counted.targets.sum() / counted.predictive.mean().sum()
    y, mean = counted.targets, counted.predictive.mean()
    terms = np.where(y > 0, y * np.log(np.maximum(y, 1.0) / mean), 0.0) - (y - mean)
    assert np.isclose(data.totals.deviance, 2.0 * np.mean(terms))
    assert sum(each["actual"] for each in data.totals.deciles) == counted.targets.sum()
    assert data.page.plain["law"]["kind"] == "mass"
    names = [each["name"] for each in data.page.plain["along"]]
    assert set(names) == {"age", "rate", "half"}
    drawn = [name for name, _ in evaluation_figures(counted)]
    assert "rootogram" in drawn
    assert "pit_interpretation" not in drawn


def test_an_image_version_has_neither(make_evaluation: Any) -> None:
    page = evaluation_report(make_evaluation())
    for words in ("Weak segments", "<h2>Counts", "logged as"):
        assert words not in page


def test_slices_have_the_intervals_of_their_own_rows(counted: Any) -> None:
    readings, q_values = slice_readings(counted)
    assert set(readings) == set(q_values) == {("half", "low"), ("half", "high")}
    low = readings["half", "low"]
    assert low.rows == int(np.sum(counted.scores["half"] == "low"))
    assert low.factor_interval[0] < low.factor < low.factor_interval[1]


def test_of_a_long_split_the_features_of_some_rows_are_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores_segments, "MOST_ROWS", 20)
    monkeypatch.setattr(split_rows, "_ROWS_AT_ONCE", 16)
    monkeypatch.setattr(split_rows, "HIGHEST", 15)
    cce = np.random.default_rng(0).permutation(100).astype(float)
    searched, looked_at = rows_looked_at(cce, seed=3)
    assert (len(searched), searched.tolist()) == (20, rows_looked_at(-cce, seed=3)[0].tolist())
    assert set(np.argsort(cce)[:10]) | set(np.argsort(cce)[-15:]) | set(searched) == set(looked_at)
    frame = pd.DataFrame({"x": np.arange(100.0), "z": np.arange(100) % 7, "y": 0.0})
    frame.to_parquet(tmp_path / "data.parquet")
    settings = SplitSettings(
        uri=str(tmp_path / "data.parquet"), input=["x", "z"], input_kind="features", target="y", shard_rows=30
    )
    pd.testing.assert_frame_equal(named_features(open_split(settings), looked_at), frame.loc[looked_at, ["x", "z"]])


def test_the_features_of_a_split_are_its_named_inputs(tmp_path: Any) -> None:
    frame = pd.DataFrame(
        {"text": [f"row {i}" for i in range(50)], "rooms": range(50), "city": list("ab") * 25, "street": range(50),
         "price": 1.0}
    ).assign(street=[f"street {i}" for i in range(50)])  # fmt: skip
    frame.to_parquet(tmp_path / "data.parquet")
    settings = SplitSettings(
        uri=str(tmp_path / "data.parquet"), input="text", input_kind="text", target="price",
        model_inputs=["text", "rooms", "street"], slices=["city"],
    )  # fmt: skip
    valid = np.arange(50) != 7
    found = named_features(open_split(settings), np.flatnonzero(valid))
    assert list(found) == ["rooms", "city"]
    assert list(found.index) == [row for row in range(50) if row != 7]
    assert found["rooms"][8] == 8
