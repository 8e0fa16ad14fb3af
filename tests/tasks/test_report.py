"""The pages of a version: what they hold is what was logged, of tables and counts, too; they stay small and safe."""

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from encoder_inputs import of_features
from scipy import stats

import congruence
from congruence.kernels.conditional_calibration.regions import calibration_by_group
from congruence.kernels.distributions import Gamma, NegativeBinomial, Normal, Poisson, Samples
from congruence.kernels.marginal_calibration import actual_over_expected
from congruence.kernels.pit import pit_scores, pit_values
from congruence.kernels.pit_interpreter.interpretation import interpret_pit
from congruence.tasks.comparison.differences import MetricDifference
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import open_split
from congruence.tasks.mlflow import runs
from congruence.tasks.plots.comparison import slice_readings
from congruence.tasks.plots.evaluation import evaluation_figures
from congruence.tasks.report.evaluation import evaluation_report, of_sentence, places_of, report_data
from congruence.tasks.report.page import drawn_laws, number, shown_rows
from congruence.tasks.scores import points
from congruence.tasks.scores.evaluation import MetricValue, advise, verdict_of
from congruence.tasks.scores.faults import weak_segments
from congruence.tasks.scores.points import (
    named_features,
    principal_axes,
    rows_looked_at,
    searched_rows,
    slice_groups,
    tenths,
)
from congruence.tasks.scores.reading import RowsRead
from congruence.tasks.sentences.calibration import CorrectionPreview, PreviewRow, significant
from congruence.tasks.sentences.counts import randomised_coverage
from congruence.tasks.sentences.findings import Segment, sentences_of
from congruence.tasks.settings.sections import ModelVersion


class Page(HTMLParser):
    """The attributes of every metric's line, the page's data, and the addresses that it names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.metrics: dict[str, dict[str, str]] = {}
        self.headlines: dict[str, str] = {}
        self.addresses: list[str] = []
        self._within = ""
        self.feed(page)
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
        self.data: dict[str, Any] = json.loads(found.group(1))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "data-metric" in given:
            self.metrics[given["data-metric"]] = given
        self._within = given.get("data-headline", "")
        self.addresses += [given[name] for name in ("src", "href") if name in given]

    def handle_data(self, data: str) -> None:
        if self._within:
            self.headlines[self._within] = data
            self._within = ""


@pytest.mark.parametrize(
    ("value", "digits", "said"),
    [(121.4, 2, "121"), (1234.5, 3, "1,234"), (-0.0123456, 4, "-0.01235"), (5e-6, 3, "5.00e-06")],
)
def test_a_number_is_short_and_never_loses_what_stands_before_its_point(value: float, digits: int, said: str) -> None:
    assert number(value, digits) == said


def test_three_digits_are_those_of_the_four_that_mlflow_has() -> None:
    assert significant(0.026049) == significant(float(f"{0.026049:.4g}")) == "0.0261"
    assert (significant(1234.56), significant(-0.5), significant(0.0)) == ("1,235", "-0.5", "0")


def column(page: Page, name: str) -> np.ndarray:
    (found,) = [each for each in page.data["columns"] if each["name"] == name]
    return np.frombuffer(base64.b64decode(found["f32"]), "<f4")


def test_the_numbers_in_the_page_are_the_metrics_that_are_logged(make_evaluation: Any) -> None:
    evaluation = make_evaluation()
    page = Page(evaluation_report(evaluation))
    assert set(page.metrics) == set(evaluation.metrics)
    for name, metric in evaluation.metrics.items():
        assert float(page.metrics[name]["data-value"]) == metric.value
        if metric.low is not None:
            assert float(page.metrics[name]["data-low"]) == metric.low
            assert float(page.metrics[name]["data-high"]) == metric.high
    for name, said in page.headlines.items():
        value = evaluation.metrics[name].value
        assert said == (f"{100.0 * value:.0f} %" if said.endswith("%") else significant(value))
    scores = evaluation.valid_scores
    assert page.data["rows"] == {"split": 120, "valid": 118, "shown": 118}
    order = np.argsort(-scores["cce"].to_numpy(), kind="stable")
    for name in ("cce", "target", "mean", "pit"):
        np.testing.assert_array_equal(column(page, name), scores[name].to_numpy(np.float32)[order])
    assert page.data["numbers"] == scores.index.to_numpy()[order].tolist()
    assert sum(page.data["pit"]) == 118
    assert page.data["law"] == {"kind": "normal"}
    assert {"0", "117"} <= set(page.data["pictures"])


def test_the_page_needs_nothing_from_outside_and_runs_no_words_of_others(make_evaluation: Any) -> None:
    hostile = "</script><script>alert(1)</script>"
    evaluation = make_evaluation()
    scores = evaluation.scores.assign(key=hostile, half=hostile)
    page = evaluation_report(replace(evaluation, scores=scores), logged_as=hostile)
    assert "<script>alert" not in page
    assert page.count("<script") == 2
    assert [each for each in Page(page).addresses if not each.startswith("data:")] == []
    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("kind", ["normal", "counts"])
def test_a_page_of_many_rows_and_columns_is_small_and_holds_all_of_the_worst(make_evaluation: Any, kind: str) -> None:
    """Counts have their masses in the page, and here the longest keys, and no features: more rows are shown."""
    rows = 30_000
    rng = np.random.default_rng(4)
    mean = rng.normal(size=rows)
    y = mean + rng.normal(size=rows)
    law = Normal(mean, np.ones(rows))
    scores = pd.DataFrame({
        "key": [f"policy-{row}" for row in range(rows)], "valid": True, "reason": None, "target": y, "mean": mean,
        "std": 1.0, "cce": rng.exponential(size=rows), "cce_noise_floor": 0.5, "pit": law.cdf(y),
        "calibration_region": rng.choice(["here", "there"], rows, p=[0.9, 0.1]),
    })  # fmt: skip
    names = [f"feature {k}" for k in range(60)]
    table: pd.DataFrame | None = pd.DataFrame(rng.normal(size=(rows, 60)), columns=names)
    if kind == "counts":
        rate = np.full(rows, 90.0)
        y, law, table = rng.poisson(rate).astype(float), Poisson(rate), None
        changed = {"target": y, "mean": rate, "std": np.sqrt(rate), "pit": pit_values(y, law)}
        scores = scores.assign(**changed, key=[f"policy-{row:09d}-{'x' * 60}" for row in range(rows)])
    evaluation = make_evaluation(
        rows=rows, invalid=0, scores=scores, predictive=law, targets=y, features=table, thumbnails=None,
        embedding_map=pd.DataFrame(rng.normal(size=(rows, 8))), slices=pd.DataFrame(), influence=None,
        influence_noise=None,
    )  # fmt: skip
    text = evaluation_report(evaluation)
    assert len(text.encode()) < 6_000_000
    page = Page(text)
    shown = page.data["numbers"]
    assert 5_000 < len(shown) == len(set(shown)) <= 20_000
    worst = np.argsort(-scores["cce"].to_numpy())[: len(shown) // 10]
    assert set(worst) <= set(shown)
    there = np.mean(scores["calibration_region"].to_numpy()[shown] == "there")
    assert there == pytest.approx(0.1, abs=0.02)
    if kind == "counts":
        assert len(page.data["law"]["mass"]["f32"]) > 500_000
    else:
        assert [each["explained"] < 0.005 for each in page.data["along"]] == [True] * 60


def test_the_edges_between_bins_are_those_of_the_bins_that_have_rows() -> None:
    """Where a tenth of the rows or more has the least value, nothing lies up to the first of the tenths' edges."""
    values = np.concatenate([np.zeros(30), np.arange(1.0, 71.0), [np.nan]])
    codes, names, edges = tenths(values)
    assert (names[0], names[-1]) == ("0 to 0.7", "missing")
    as_the_page_does = np.where(np.isnan(values), len(names) - 1, np.searchsorted(edges, values, side="right"))
    np.testing.assert_array_equal(codes, as_the_page_does)


def test_numbers_on_a_page_are_no_powers_of_ten() -> None:
    """Bins of years were all "2.01e+03 to 2.01e+03", and intervals of the comparison "1e+02 to 1.1e+02"."""
    assert tenths(np.repeat(np.arange(2001.0, 2011.0), 10))[1][1:3] == ["2001.9 to 2002.8", "2002.8 to 2003.7"]
    assert [number(value, 2) for value in (99.97, 104.3, -7887.2, 0.0123, 1.2e-5)] == [
        "100", "104", "-7,887", "0.012", "1.2e-05",
    ]  # fmt: skip
    assert str(MetricValue(45231.7, 43120.2, 1e9)) == "45,232 [43,120, 1,000,000,000]"
    assert str(MetricDifference(1.0, 2.0, -1219.02, -7887.2, 112.665, None, 9)) == "-1,219 [-7,887, +113]"


def test_bins_have_the_intervals_of_their_own_rows_and_of_a_version_that_is_right() -> None:
    rng = np.random.default_rng(5)
    codes = np.repeat([0, 1], 4_000)
    mean = np.zeros(8_000)
    y = rng.normal(size=8_000) * np.where(codes, 2.0, 1.0) + np.where(codes, 0.0, 0.5)
    law = Normal(mean, np.ones(8_000))
    explained, found = calibration_by_group(codes, 2, y, mean, law.std(), pit_scores(law.cdf(y)))
    value, _, high, _, null_high = found["bias"][:, 0]
    assert value == pytest.approx(0.5, abs=3.5 / np.sqrt(4_000))
    assert high - value == pytest.approx(1.96 / np.sqrt(4_000), rel=0.05)
    assert null_high == pytest.approx(1.96 / np.sqrt(4_000), rel=1e-3)
    value, _, _, null_low, null_high = found["spread"][:, 1]
    assert value == pytest.approx(2.0, abs=0.1)
    assert null_low < 1.0 < null_high
    assert 0.05 < explained < 0.25
    follows = calibration_by_group(
        codes, 2, codes.astype(float), mean, law.std(), np.where(codes, 1.0, -1.0)[:, None] * np.ones(4)
    )
    assert follows[0] == pytest.approx(1.0, abs=0.001), "a share of the variance, of which there is no more than all"
    right = law.sample(1, seed=6)[:, 0]
    assert calibration_by_group(codes, 2, right, mean, law.std(), pit_scores(law.cdf(right)))[0] < 0.002


@pytest.mark.parametrize("rows", [1, 2, 3, 10])
@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_intervals_of_bins_of_few_rows_hold_what_is_right(rows: int, spread: float) -> None:
    """By 1.96 standard errors of their own, bins of 2, 3 and 10 rows held the truth in .70, .82 and .92."""
    rng, groups = np.random.default_rng(rows), 2_000
    codes = np.repeat(np.arange(groups), rows)
    law = Normal(np.zeros(len(codes)), np.ones(len(codes)))
    y = spread * law.sample(1, seed=rng)[:, 0]
    of_scores = pit_scores(law.cdf(y))
    found = calibration_by_group(codes, groups, y, law.mean(), law.std(), of_scores)[1]
    bands = [found["bias"]]
    if spread == 1.0:
        bands += [found["level"], found["skew"], found["tails"], found["spread"] - 1.0]
    for _, low, high, *_ in bands:
        assert np.mean((low <= 0.0) & (high >= 0.0)) >= 0.94


@pytest.mark.parametrize("rate", [0.01, 0.1, 1.0])
def test_bins_without_a_count_do_not_say_that_a_small_rate_is_wrong(rate: float) -> None:
    """Thirty zeros had the intervals [0, 0] of actual over expected: .73 of the bins of a right rate of .01."""
    groups = 400
    codes = np.repeat(np.arange(groups), 30)
    law = Poisson(np.full(len(codes), rate))
    y = law.sample(1, seed=3)[:, 0].astype(float)
    found = actual_over_expected(codes, groups, y, law.mean(), law.std())
    assert np.mean((found.low > 1.0) | (found.high < 1.0)) <= 0.06
    low, high = calibration_by_group(codes, groups, y, law.mean(), law.std(), pit_scores(pit_values(y, law)))[1][
        "bias"
    ][1:3]
    assert np.mean((low > 0.0) | (high < 0.0)) <= 0.06


def test_counts_are_drawn_by_their_masses_and_others_by_their_quantiles() -> None:
    rate = np.array([0.3, 2.0, 5.0])
    drawn = drawn_laws(Poisson(rate), np.array([2, 0]))
    mass = np.frombuffer(base64.b64decode(drawn["mass"]["f32"]), "<f4").reshape(2, drawn["width"])
    first = np.frombuffer(base64.b64decode(drawn["first"]["f32"]), "<f4")
    counts = first[1] + np.arange(drawn["width"])
    np.testing.assert_allclose(mass[1], np.diff(Poisson(rate[:1]).cdf(np.append(-1.0, counts)[None, :])[0]), atol=1e-6)
    assert mass.sum(axis=1) == pytest.approx(1.0, abs=3e-3)
    assert drawn_laws(Gamma(np.ones(3), np.ones(3)), np.arange(3))["kind"] == "quantiles"


def test_a_sentence_selects_the_places_that_it_names() -> None:
    known = places_of({"slice:digit": ["1", "10"], "calibration_region": ["age mostly up to 30", "region 2"]})
    places = pd.DataFrame({"place": ["digit 1", "digit 10", "region 2"], "fault": ["heavier tails", "", ""]})
    one = of_sentence("Where digit is 10 (12 rows, 12 %) predictions are 3 too low.", places, known, True)
    assert one == {"any": [[{"column": "slice:digit", "value": "10"}]]}
    named = of_sentence(
        "In the region where age is mostly up to 30 (3 rows, 3 %) they are too wide.", places, known, True
    )
    assert named == {"any": [[{"column": "calibration_region", "value": "age mostly up to 30"}]]}
    right = of_sentence("No fault was found in 2 of 3 regions.", places, known, True)
    assert len(right["any"]) == 2
    everywhere = of_sentence("The predictions are wrong: over all rows, too narrow.", places, known, True)
    assert everywhere == {"any": [[{"column": "calibration_fault", "not": ""}]]}


def test_advice_is_what_helps_on_held_out_rows() -> None:
    skill = {"crps_skill": MetricValue(0.6, 0.5, 0.7), "crps_uncertainty": MetricValue(1.2)}
    right, wrong = ({"calibration_p_value": MetricValue(p), **skill} for p in (0.4, 0.0001))

    def advised(
        metrics: dict[str, MetricValue], now: float = 0.0, then: float = 0.0, error: float = 0.0001, p: float = 0.4
    ) -> str:
        rows = (PreviewRow("CRPS", now, then, error), PreviewRow("calibration p", 0.001, p))
        found = advise(verdict_of(metrics), metrics, CorrectionPreview("spreads", 100, 100, rows) if now else None)
        return "" if found is None else found.kind

    assert advised(right) == "use"
    assert advised(right | {"crps_skill": MetricValue(0.0, -0.1, 0.1)}) == "bring more rows"
    assert advised(right | {"crps_skill": MetricValue(-0.1, -0.2, -0.01)}) == "change the model"
    assert advised({"calibration_p_value": MetricValue(0.4)}) == "", "its skill was not measured"
    assert advised(wrong, 2.38, 0.56) == "recalibrate"
    assert advised(wrong | {"crps_skill": MetricValue(-1.0, -1.1, -0.9)}, 2.38, 0.56) == "recalibrate"
    assert advised(wrong, 0.5, 0.498) == "change the model", "not for a gain of 0.4 %"
    assert advised(wrong, 2.38, 1.25) == "change the model", "recalibrated, it is no better than ignoring the input"
    assert advised(wrong, 0.599, 0.587, 0.0064) == "recalibrate", "the fault is gone, which CRPS of so few rows hides"
    assert advised(wrong, 0.599, 0.587, 0.0064, p=0.01) == "change the model", "the fault is still found"
    assert advised(wrong, 0.599, 0.598, 0.0064) == "change the model", "not for a gain of 0.2 %"
    assert advised(wrong) == "change the model"
    assert advised({}) == "bring more rows"
    spread = CorrectionPreview(
        "spreads", 100, 100, (PreviewRow("CRPS", 0.6, 0.5, 0.01), PreviewRow("NLL", 2.25, 2.5, 0.1))
    )
    harm = "Recalibrating does harm: on rows that the correction was not fitted on, it raises NLL from 2.25 to 2.5."
    assert not spread.improves
    assert advise(verdict_of(wrong), wrong, spread).reason == f"Do not use it as it is. {harm}"
    ignoring = wrong | {"crps_skill": MetricValue(-0.1, -0.2, -0.01)}
    assert (
        advise(verdict_of(ignoring), ignoring, spread).reason == f"It scores no better than ignoring the input. {harm}"
    )
    untried = "It scores no better than ignoring the input."
    assert advise(verdict_of(ignoring), ignoring).reason == untried, "whether a correction helps is not known"
    found = wrong | {"row_correlation": MetricValue(0.6)}
    correlated = advise(verdict_of(found), found)
    assert "time:" in correlated.reason


def test_all_rows_are_shown_where_they_are_few() -> None:
    scores = pd.DataFrame({"cce": [0.1, 0.3, 0.2]})
    assert shown_rows(scores, None).tolist() == [1, 2, 0]
    assert shown_rows(scores, np.array([0, 2]), most=20).tolist() == [1, 2, 0]


ROWS = 1000


def features(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(
        {"age": rng.uniform(20, 70, ROWS), "area": rng.normal(size=ROWS), "city": rng.choice(list("xyz"), ROWS)}
    )


def segments_in(
    table: pd.DataFrame, pit: np.ndarray, cce: np.ndarray, expected: np.ndarray, seed: int = 0
) -> tuple[Segment, ...]:
    """``weak_segments`` as a report looks for them."""
    rows = searched_rows(len(table), seed)
    return weak_segments(table.iloc[rows], RowsRead(pit[rows]), cce[rows], expected[rows]).segments


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


def test_the_rows_of_a_segment_are_those_of_the_ends_that_are_written() -> None:
    """Of many rows, three digits of an end between two of them are the end of others."""
    rng = np.random.default_rng(7)
    found = 0
    for wrong_rows in (12, 60, 4000):
        table = pd.DataFrame(rng.normal(loc=1000.0, size=(20_000, 3)), columns=["a", "b", "c"])
        cut = np.sort(table["a"])[-wrong_rows]
        z = rng.normal(size=len(table)) + (4.0 if wrong_rows < 100 else 1.0) * (table["a"] >= cut)
        for segment in segments_in(table, stats.norm.cdf(z), np.ones(len(table)), np.ones(len(table))):
            chosen = np.ones(len(table), dtype=bool)
            for part in segment.name.split(", "):
                name, low, high = re.fullmatch(r"(\w) (?:above )?([\d.]+)?(?: ?(?:up )?to ([\d.]+))?", part).groups()  # type: ignore[union-attr]
                chosen &= (table[name] > float(low or -np.inf)) & (table[name] <= float(high or np.inf))
            assert chosen.sum() == segment.finding.rows, segment.name
            found += 1
    assert found >= 3


def test_a_segment_of_a_sample_says_of_how_many_rows_it_is() -> None:
    """34 % of a million rows are not the 13,771 of them that were looked at."""
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"x0": rng.normal(size=2000)})
    pit, ones = stats.norm.cdf(rng.normal(size=2000) + (table["x0"] > 0.5)), np.ones(2000)
    (whole, *_), (sampled, *_) = (
        weak_segments(table, RowsRead(pit), ones, ones, is_sample=is_sample).segments for is_sample in (False, True)
    )
    rows, share = whole.finding.rows, round(100 * whole.finding.share)
    assert f"({rows} rows, {share} %) the targets lie" in whole.finding.sentence
    assert f"({share} % of the rows, read in {rows} of a sample of 2,000) the targets" in sampled.finding.sentence


def test_few_rows_that_are_far_off_are_named_by_the_ends_of_their_range_in_the_first_sentence() -> None:
    rng = np.random.default_rng(5)
    table = pd.DataFrame(rng.normal(size=(2000, 5)), columns=[f"x{k}" for k in range(5)])
    wrong = table["x0"].to_numpy() > 2.33
    pit, ones = stats.norm.cdf(rng.normal(size=2000) + 4.0 * wrong), np.ones(2000)
    segments = segments_in(table, pit, ones, ones)
    assert segments[0].name.startswith("x0 above 2.3")
    assert abs(segments[0].finding.rows - wrong.sum()) <= 3
    assert segments[0].finding.short == "targets above the predictions"
    assert segments[0].p_value == 0.005
    said, label = sentences_of(None, [], 0, [segments[0].finding])
    where = r"Where x0 is above 2\.3\d? \(2\d rows, 1(\.\d\d?)? %\)"
    assert re.match(where + r" the targets lie [34](\.\d)? predicted spreads above", said[0])
    assert label.startswith("targets above the predictions where x0 is above 2.3")


def test_what_is_wrong_everywhere_alike_is_in_no_segment() -> None:
    named, ones = 0, np.ones(ROWS)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pit = stats.norm.cdf(1.5 * rng.normal(size=ROWS) + 0.5)
        named += bool(segments_in(features(rng), pit, ones, ones, seed=seed))
    assert named <= 4


def test_a_column_of_texts_without_any_is_read() -> None:
    """Of pandas' own strings none is left to ask: its sum of nothing is an error."""
    assert points._is_feature(pd.Series([None, None], dtype="string"))
    assert not points._is_feature(pd.Series([[1.0], None]))


def test_missing_and_infinite_values_and_constant_columns_do_no_harm() -> None:
    rng = np.random.default_rng(0)
    table = features(rng).assign(nothing=1.0, gap=np.where(rng.uniform(size=ROWS) < 0.3, np.nan, 1.0))
    table["ratio"] = np.where(table["age"] < 21, np.inf, table["area"])
    table.loc[5, "city"] = None
    pit, ones = rng.uniform(size=ROWS) ** np.where(table["age"] > 40, 2, 1), np.ones(ROWS)
    assert segments_in(table, pit, ones, ones)[0].name.startswith("age ")
    assert segments_in(table[["nothing"]], pit, ones, ones) == ()
    assert segments_in(table.head(100), pit[:100], ones[:100], ones[:100]) == ()


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
    fit = counted.count_fit
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


def test_wide_counts_are_binned(make_evaluation: Any) -> None:
    rng = np.random.default_rng(0)
    law = NegativeBinomial(np.full(118, 900.0), np.full(118, 0.5))
    y = rng.poisson(900, 118).astype(float)
    fit = make_evaluation(predictive=law, targets=y).count_fit
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
    assert data.totals.whole["ratio"] == counted.targets.sum() / counted.predictive.mean().sum()
    y, mean = counted.targets, counted.predictive.mean()
    terms = np.where(y > 0, y * np.log(np.maximum(y, 1.0) / mean), 0.0) - (y - mean)
    assert np.isclose(data.totals.deviance, 2.0 * np.mean(terms))
    assert sum(each["actual"] for each in data.totals.deciles) == counted.targets.sum()
    assert data.page["law"]["kind"] == "mass"
    names = [each["name"] for each in data.page["along"]]
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
    assert set(readings) == set(q_values) == {"half\nlow", "half\nhigh"}
    low = readings["half\nlow"]
    assert low.rows == int(np.sum(counted.scores["half"] == "low"))
    assert low.factor_interval[0] < low.factor < low.factor_interval[1]


def test_figures_of_rows_that_depend_on_each_other_name_no_fault() -> None:
    """The title of the PIT histogram, by a test of independent rows, named a fault of 6 of 12 such right versions."""
    rng = np.random.default_rng(8)
    groups = np.repeat(np.arange(12), 25)
    y = np.sqrt(0.5) * (rng.normal(size=12)[groups] + rng.normal(size=300))
    frame = pd.DataFrame({"x": rng.normal(size=300), "half": np.repeat(["low", "high"], 150)})
    asked = {"slices": ["half"], "metrics": ["cce", "calibration", "pit"], "progress": False}
    law = Normal(np.zeros(300), np.ones(300))
    found = congruence.evaluate(frame, y, law, groups=groups, **asked).evaluation
    assert found.verdict.state == "no fault found"
    assert slice_readings(found) == ({}, {})
    assert "pit_interpretation" not in {name for name, _ in evaluation_figures(found)}
    assert interpret_pit(law.cdf(y)).verdict.findings, "what the title said"


def test_a_figure_of_slices_blames_none_of_a_version_that_is_not_wrong() -> None:
    """One of twenty slices is certain by itself (q = .013), and the version not wrong by all tests together."""
    rng = np.random.default_rng(3)
    y, part = rng.normal(size=900), np.arange(900) % 20
    y[part == 0] += 0.45
    frame = pd.DataFrame({"x": rng.normal(size=900), "part": [f"p{each}" for each in part]})
    found = congruence.evaluate(
        frame,
        y,
        Normal(np.zeros(900), np.ones(900)),
        slices=["part"],
        metrics=["cce", "calibration", "pit"],
        progress=False,
    ).evaluation
    readings, q_values = slice_readings(found)
    assert found.verdict.state == "no fault found"
    assert min(reading.p_value for reading in readings.values()) < 0.01
    assert set(q_values.values()) == {1.0}


def test_no_line_and_no_bin_is_marked_of_counts_in_which_no_fault_is_found() -> None:
    """Of right counts a page marked one of eight shares as "outside" in .24 to .37 of splits, and 1 of 20 bins."""
    rng = np.random.default_rng(5)
    rate = 5.0 * np.exp(0.3 * rng.normal(size=300))
    y = rng.poisson(rate).astype(float)
    frame, asked = (
        pd.DataFrame({"x": rng.normal(size=300)}),
        {"metrics": ["cce", "calibration", "pit"], "progress": False},
    )
    found = congruence.evaluate(frame, y, Poisson(rate), **asked).evaluation
    fit = found.count_fit
    assert fit is not None
    assert any(not each.low <= each.observed <= each.high for each in fit.shares)
    assert found.verdict.state == "no fault found"
    page = evaluation_report(found)
    assert not Page(page).data["wrong"]
    assert "outside</span>" not in page
    assert "Orange squares" not in page
    wrong = evaluation_report(congruence.evaluate(frame, y, Poisson(2.0 * rate), **asked).evaluation)
    assert Page(wrong).data["wrong"]
    assert "outside</span>" in wrong
    assert "Orange squares" in wrong


def test_a_version_in_which_no_fault_is_found_has_none_around_a_row() -> None:
    """Beside "no fault found", .03 of 774 right versions had a share with a fault around, or rows coloured by one."""
    drawn = np.random.default_rng([100, 19, 77])
    x = drawn.integers(0, 2, (100, 3)).astype(float)
    mean, spread = 10.0 + 2.0 * x[:, 0], 1.0 + 0.5 * x[:, 1]
    y, frame = drawn.normal(mean, spread), pd.DataFrame(x, columns=["f0", "f1", "f2"])
    asked = {"metrics": ["cce", "congruence_test", "calibration", "pit"], "seed": 19, "progress": False}
    found = congruence.evaluate(frame, y, Normal(mean, spread), **asked).evaluation
    assert found.verdict.state == "no fault found"
    assert (found.scores["cce_q_value"] <= 0.05).any(), "by the points alone"
    assert found.metrics["cce_significant_share"].value == 0.0
    assert "calibration_fault" not in {column["name"] for column in Page(evaluation_report(found)).data["columns"]}
    wrong = congruence.evaluate(frame, y, Normal(mean + 2.0, spread), **asked).evaluation
    assert wrong.metrics["cce_significant_share"].value > 0.5
    assert "calibration_fault" in {column["name"] for column in Page(evaluation_report(wrong)).data["columns"]}


def test_slices_of_few_members_are_read_as_the_distribution_they_are_drawn_from() -> None:
    """Five members whose spread is half of what is needed: their ranks alone say 1.5."""
    rng = np.random.default_rng(4)
    y, half = rng.normal(size=1000), np.repeat(["low", "high"], 500)
    members = Samples(0.5 * rng.normal(size=(1000, 5)))
    frame = pd.DataFrame({"x": rng.normal(size=1000), "half": half})
    evaluation = congruence.evaluate(
        frame, y, members, slices=["half"], metrics=["cce", "calibration", "pit"], progress=False
    ).evaluation
    readings, _ = slice_readings(evaluation)
    assert [reading.factor for reading in readings.values()] == pytest.approx([2.0, 2.0], rel=0.15)


def test_of_a_long_split_the_features_of_some_rows_are_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "MOST_SEARCHED", 20)
    monkeypatch.setattr(points, "_ROWS_AT_ONCE", 16)
    monkeypatch.setattr(points, "HIGHEST", 15)
    cce = np.random.default_rng(0).permutation(100).astype(float)
    searched, looked_at = rows_looked_at(cce, seed=3)
    assert (len(searched), searched.tolist()) == (20, rows_looked_at(-cce, seed=3)[0].tolist())
    assert set(np.argsort(cce)[:10]) | set(np.argsort(cce)[-15:]) | set(searched) == set(looked_at)
    frame = pd.DataFrame({"x": np.arange(100.0), "z": np.arange(100) % 7, "y": 0.0})
    frame.to_parquet(tmp_path / "data.parquet")
    settings = of_features(tmp_path / "data.parquet", ["x", "z"], shard_rows=30)
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


@pytest.mark.parametrize("d", [1, 2, 9])
def test_valid_rows_have_a_place_whatever_the_number_of_features(d: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, d)) * np.arange(1, d + 1)
    valid = np.array([True] * 4 + [False] + [True] * 3)
    rows: Any = SimpleNamespace(valid=valid, embeddings_of=lambda chosen: x[chosen])
    picture = principal_axes(rows, np.arange(7), np.arange(7))
    assert picture.shape == (7, max(2, min(8, d)))
    assert picture.index.tolist() == np.flatnonzero(valid).tolist()
    assert np.isfinite(picture.to_numpy()).all()
    _, scales, axes = np.linalg.svd(x - x.mean(axis=0))
    expected = np.abs((x - x.mean(axis=0)) @ axes[0])
    np.testing.assert_allclose(np.abs(picture[0]), expected, atol=1e-9 * scales[0])
    others = principal_axes(rows, np.arange(5), np.array([0, 1, 2, 3, 4, 6]))
    alone = principal_axes(rows, np.arange(5), np.arange(5))
    np.testing.assert_allclose(np.abs(others.iloc[:5]), np.abs(alone), atol=1e-9 * scales[0])


@pytest.mark.parametrize("digits", [2, 9, 17])
def test_every_row_that_a_long_report_shows_is_looked_at(digits: int) -> None:
    cce = np.random.default_rng(0).random(60_000).round(digits)
    searched, looked_at = rows_looked_at(cce, 0)
    assert len(searched) == 40_000
    assert set(searched) < set(looked_at)
    assert set(shown_rows(pd.DataFrame({"cce": cce.astype(np.float32)}), looked_at)) <= set(looked_at)


@pytest.mark.parametrize("written", [4, 7, 100])
def test_a_table_written_in_parts_is_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    monkeypatch.setattr(runs, "_WRITTEN_ROWS", written)
    frame = pd.DataFrame(
        {
            "key": [f"row {row}" for row in range(10)],
            "valid": np.arange(10) != 9,
            "reason": np.array([None] * 9 + ["no target"], dtype=object),
            "none": np.full(10, None, dtype=object),
            "score": np.linspace(0.0, 1.0, 10),
            "count": np.arange(10),
        }
    )
    for single, dtype in (([], "float64"), (["score"], "float32")):
        runs.write_parquet(frame, tmp_path / "table.parquet", single=single)
        found = pd.read_parquet(tmp_path / "table.parquet")
        assert found["score"].dtype == dtype
        assert found["count"].dtype == "int64"
        assert found["reason"].tolist()[-1] == "no target"
        assert found["none"].isna().all()
        assert found["reason"].isna().tolist() == [True] * 9 + [False]
        pd.testing.assert_frame_equal(
            found[["key", "valid", "score", "count"]],
            frame[["key", "valid", "score", "count"]].astype({"score": dtype}),
        )


def test_texts_by_their_code_are_texts_in_the_file(tmp_path: Path) -> None:
    texts = ["", "bias", None] * 4
    runs.write_parquet(pd.DataFrame({"fault": pd.Categorical(texts)}), tmp_path / "coded.parquet")
    runs.write_parquet(pd.DataFrame({"fault": texts}), tmp_path / "texts.parquet")
    assert (tmp_path / "coded.parquet").read_bytes() == (tmp_path / "texts.parquet").read_bytes()


def test_runs_of_neighbours_stand_for_a_long_split() -> None:
    assert np.array_equal(points.runs_looked_at(1000), np.arange(1000))
    rows = points.runs_looked_at(3_000_000)
    assert len(np.unique(rows)) == len(rows) == 250_000
    assert (rows[0], rows[-1]) == (0, 2_999_999)
    assert np.sum(np.diff(rows) != 1) == 15


def test_groups_of_a_slice_column_take_four_bytes_a_row() -> None:
    codes, names = slice_groups(pd.Series(["b", None, "a", "b", "missing"]))
    assert codes.dtype == np.int32
    assert names[codes].tolist() == ["b", "missing", "a", "b", "missing"]
