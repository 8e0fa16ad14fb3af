"""The page of one version: what it holds is what was logged, and it stays small, safe and whole."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

from congruence.kernels.calibration import pit_values
from congruence.kernels.calibration.pit_scores import pit_scores
from congruence.kernels.conditional_calibration.regions import calibration_by_group
from congruence.kernels.distributions import Gamma, Normal, Poisson
from congruence.tasks.report.evaluation import evaluation_report
from congruence.tasks.report.laws import drawn_laws
from congruence.tasks.report.sample import shown_rows
from congruence.tasks.report.selections import of_sentence, places_of
from congruence.tasks.scores.correction import advise
from congruence.tasks.scores.evaluation import MetricValue, verdict_of
from congruence.tasks.scores.summary import tenths
from congruence.tasks.scores.wrong import CorrectionPreview, PreviewRow
from congruence.tasks.sentences.calibration import significant


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
        assert found is not None
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


def test_bins_have_the_intervals_of_their_own_rows_and_of_a_version_that_is_right() -> None:
    rng = np.random.default_rng(5)
    codes = np.repeat([0, 1], 4_000)
    mean = np.zeros(8_000)
    y = rng.normal(size=8_000) * np.where(codes, 2.0, 1.0) + np.where(codes, 0.0, 0.5)
    law = Normal(mean, np.ones(8_000))
    found = calibration_by_group(codes, 2, y, mean, law.std(), pit_scores(law.cdf(y)))
    assert found.bias.value[0] == pytest.approx(0.5, abs=3.5 / np.sqrt(4_000))
    assert found.bias.high[0] - found.bias.value[0] == pytest.approx(1.96 / np.sqrt(4_000), rel=0.05)
    assert found.bias.null_high[0] == pytest.approx(1.96 / np.sqrt(4_000), rel=1e-3)
    assert found.spread.value[1] == pytest.approx(2.0, abs=0.1)
    assert found.spread.null_low[1] < 1.0 < found.spread.null_high[1]
    assert found.explained > 0.05
    right = law.sample(1, seed=6)[:, 0]
    assert calibration_by_group(codes, 2, right, mean, law.std(), pit_scores(law.cdf(right))).explained < 0.002


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
    known = places_of({"digit": ["1", "10"], "calibration_region": ["age up to 30", "region 2"]})
    places = pd.DataFrame({"place": ["digit 1", "digit 10", "region 2"], "fault": ["heavier tails", "", ""]})
    one = of_sentence("Where digit is 10 (12 rows, 12 %) predictions are 3 too low.", places, known, True)
    assert one == {"any": [[{"column": "slice:digit", "value": "10"}]]}
    named = of_sentence("Where age is up to 30 (3 rows, 3 %) they are too wide.", places, known, True)
    assert named == {"any": [[{"column": "calibration_region", "value": "age up to 30"}]]}
    right = of_sentence("In 2 of 3 regions no fault was found.", places, known, True)
    assert right is not None
    assert len(right["any"]) == 2
    everywhere = of_sentence("The predictions are wrong: over all rows, too narrow.", places, known, True)
    assert everywhere == {"any": [[{"column": "calibration_fault", "not": ""}]]}


def test_advice_is_what_helps_on_held_out_rows() -> None:
    skill = {"crps_skill": MetricValue(0.6, 0.5, 0.7), "crps_uncertainty": MetricValue(1.2)}
    right, wrong = ({"calibration_p_value": MetricValue(p), **skill} for p in (0.4, 0.0001))

    def advised(metrics: dict[str, MetricValue], now: float = 0.0, then: float = 0.0) -> str:
        rows = (PreviewRow("CRPS", now, then, 0.0001), PreviewRow("calibration p", 0.001, 0.4))
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
    assert advised(wrong) == "change the model"
    assert advised({}) == "bring more rows"
    found = wrong | {"row_correlation": MetricValue(0.6)}
    correlated = advise(verdict_of(found), found)
    assert correlated is not None
    assert "time:" in correlated.reason


def test_all_rows_are_shown_where_they_are_few() -> None:
    scores = pd.DataFrame({"cce": [0.1, 0.3, 0.2]})
    assert shown_rows(scores, None).tolist() == [1, 2, 0]
    assert shown_rows(scores, np.array([0, 2]), most=20).tolist() == [1, 2, 0]
