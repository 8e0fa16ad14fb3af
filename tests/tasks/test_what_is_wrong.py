"""What is wrong, in sentences, pictures and the report: faults that are there are named, and no others."""

import io
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparable import as_compared
from databases import mlflow_database
from encoder_inputs import of_features
from mlflow import MlflowClient
from PIL import Image
from readings import SENTENCES, Read, read_versions
from scipy import stats

import congruence
from congruence.kernels import EXACT, MultivariateNormal, Normal, Poisson, Samples
from congruence.kernels.conditional_calibration.counts import CountRows, JumpScores
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.reading import group_reading, group_readings
from congruence.kernels.conditional_calibration.searched_ranges import Range
from congruence.kernels.conditional_calibration.segments import FoundSegment
from congruence.kernels.pit import pit_values
from congruence.kernels.resampling import ScoreStatistics
from congruence.kernels.rng import hashed_keys
from congruence.kernels.verdict import NO_FAULT
from congruence.tasks.comparison.gate import apply_gate
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.comparison.versions import compare_pair, compare_versions
from congruence.tasks.data.split import open_split
from congruence.tasks.mlflow.evaluations import log_evaluation
from congruence.tasks.mlflow.reading import read_version
from congruence.tasks.plots.evaluation import evaluation_figures
from congruence.tasks.plots.style import png
from congruence.tasks.report.comparison import comparison_report
from congruence.tasks.report.evaluation import evaluation_report, report_data
from congruence.tasks.scores import faults
from congruence.tasks.scores.evaluation import Evaluation, MetricValue, SplitSummary, WhatIsWrong, verdict_of
from congruence.tasks.scores.faults import read_vector_targets, weak_segments, with_faults
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.metrics.registry import metric_names, metric_of
from congruence.tasks.scores.points import features_of_inputs, named_features, over_all_rows
from congruence.tasks.scores.reading import RowsRead, read_what_is_wrong
from congruence.tasks.scores.summary import _value, calibration_metrics
from congruence.tasks.sentences.calibration import is_off, place_in_words, significant
from congruence.tasks.sentences.findings import Finding, group_finding, sentences_of
from congruence.tasks.sentences.target_rows import TargetRows
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings
from congruence.tasks.solving.pass_runner import VersionMeasurement
from congruence.tasks.solving.solve import from_bytes, measure, to_bytes

ROWS = 1000
RNG = np.random.default_rng(11)
X = RNG.normal(size=(ROWS, 3))
SPREAD = np.exp(0.5 * X[:, 0])
Y = X[:, 1] + SPREAD * RNG.normal(size=ROWS)
VERSIONS = {
    "right": Normal(X[:, 1], SPREAD),
    "overconfident": Normal(X[:, 1], SPREAD / 2.0),
    "homoscedastic": Normal(X[:, 1], np.full(ROWS, np.sqrt(np.mean(SPREAD**2)))),
}
NAMES = list(VERSIONS)


@pytest.fixture(scope="module")
def read() -> dict[str, Read]:
    return read_versions(X, Y, VERSIONS, segments=False)


@pytest.fixture(scope="module")
def evaluations(read: dict[str, Read]) -> dict[str, Evaluation]:
    return {name: evaluated(name, found) for name, found in read.items()}


def evaluated(name: str, read: Read) -> Evaluation:
    scores = pd.DataFrame({"key": np.arange(ROWS), "valid": True, "reason": None, **read.points})
    return Evaluation(
        ModelVersion("model", str(NAMES.index(name)), f"models:/model/{NAMES.index(name)}"),
        SplitSummary("test", "s" * 64, ROWS, ROWS),
        EXACT,
        read.metrics,
        scores,
        embedding_map=pd.DataFrame(X[:, :2]),
        wrong=read.wrong,
    )


def by_half(*few: int) -> WhatIsWrong:
    """The homoscedastic version by halves of the rows, and a slice of a few."""
    halves = pd.DataFrame({"half": np.where(X[:, 0] < 0.0, "left", "right")})
    halves.loc[list(few), "half"] = "few"
    law = {"homoscedastic": VERSIONS["homoscedastic"]}
    return read_versions(X, Y, law, slices=halves, segments=False)["homoscedastic"].wrong


def test_counts_are_randomised_by_the_keys_of_the_scores() -> None:
    rate = np.exp(0.5 * X[:200, 0])
    law, y = Poisson(rate), RNG.poisson(rate).astype(float)
    keys = np.array([f"row-{number}" for number in range(200)])
    by_text = measure(EXACT, X[:200], y, {"": law}, metrics=SENTENCES, keys=keys)[""].calibration
    by_hash = measure(EXACT, X[:200], y, {"": law}, metrics=SENTENCES, keys=hashed_keys(keys))[""].calibration
    np.testing.assert_array_equal(by_text.reading.scores, by_hash.reading.scores)
    system = {"input_kernel": EXACT.input_kernel, "regularization": EXACT.regularization}
    own = prepare_calibration(EXACT.apply(X[:200]), **system).test_version(y, law, keys=keys)
    assert (by_text.test.p_value, by_text.test.means) == (own.p_value, own.means)
    assert pit_values(y, law, keys=keys).shape == (200,)


def test_faults_that_are_there_are_named_and_no_others(evaluations: dict[str, Evaluation]) -> None:
    said = {name: found.wrong.sentences for name, found in evaluations.items() if found.wrong is not None}
    assert all(len(sentences) <= 5 for sentences in said.values())
    assert len(said["right"]) == 1
    assert said["right"][0].startswith("No fault found")
    assert said["overconfident"][0].startswith("The predicted spread is too small by a factor of")
    regional = " ".join(said["homoscedastic"])
    assert "heavier tails than predicted" not in regional, "a mixture of too wide and too narrow is no fault of tails"
    assert "the predicted spread is too large by a factor of 2" in regional
    assert "In the region where income is mostly between" in regional
    right, homoscedastic = evaluations["right"], evaluations["homoscedastic"]
    assert set(right.scores["calibration_fault"]) == {""}
    assert {"predicted spread too small", "predicted spread too large"} <= set(homoscedastic.wrong.places["fault"])


def test_the_slices_are_read_where_the_split_has_them() -> None:
    wrong = by_half()
    assert dict(zip(wrong.places["place"], wrong.places["fault"], strict=True)) == {
        "half left": "predicted spread too large",
        "half right": "predicted spread too small",
    }
    assert "here half is left (" in " ".join(wrong.sentences)


def test_what_its_cce_alone_contradicts_has_no_named_fault(read: dict[str, Read]) -> None:
    calibration = read["right"].found.calibration
    above = {"cce_mean": MetricValue(0.3), "cce_p_value": MetricValue(0.001), "calibration_p_value": MetricValue(0.5)}
    rows, none = RowsRead(pit_values(Y, VERSIONS["right"])), pd.DataFrame(index=range(ROWS))
    wrong = read_what_is_wrong(calibration, calibration.regions, rows, above, np.arange(ROWS), none, with_faults)
    assert wrong.sentences[0].startswith("The predictions are wrong somewhere, but in no place")


def test_one_p_value_of_all_parts_decides(evaluations: dict[str, Evaluation]) -> None:
    assert evaluations["right"].verdict.state == NO_FAULT
    assert str(evaluations["right"].verdict) == "no fault found in 1,000 rows"
    assert str(evaluations["overconfident"].verdict) == "wrong: predicted spread too small"
    one = {"cce_p_value": MetricValue(0.03)}
    assert str(verdict_of(one)) == "wrong"
    both = one | {"calibration_p_value": MetricValue(0.03)}
    assert verdict_of(both).state == NO_FAULT, "each may spend its share of the level"
    assert verdict_of(both).p_value == pytest.approx(0.03 * 0.7 / 0.4)
    assert verdict_of(both | {"calibration_p_value": MetricValue(0.02)}).is_wrong
    assert str(verdict_of({"mae": MetricValue(1.0)})) == "not judged: no test was made"
    assert str(verdict_of({}, reason="8 runs of time")) == "not judged: 8 runs of time"


def test_effects_are_logged_with_intervals_and_meanings(evaluations: dict[str, Evaluation]) -> None:
    assert "calibration" in metric_names()
    for found in evaluations.values():
        for order in ("bias", "spread", "skew", "tails"):
            metric = found.metrics[f"calibration_effect_{order}"]
            assert 0.0 <= metric.low <= metric.value <= metric.high
            assert metric_of(f"calibration_effect_{order}").reading
        assert metric_of("calibration_p_value").reading
    spread = [evaluations[name].metrics["calibration_effect_spread"] for name in NAMES]
    assert spread[0].high < spread[1].low
    assert spread[0].high < spread[2].low


def test_the_report_begins_with_what_is_wrong(evaluations: dict[str, Evaluation]) -> None:
    found = evaluations["homoscedastic"]
    figures = {name: png(figure) for name, figure in evaluation_figures(found)}
    assert next(iter(figures)) == "local_reliability"
    assert np.asarray(Image.open(io.BytesIO(figures["local_reliability"])).convert("L")).std() > 5
    page = evaluation_report(found)
    assert page.index('class="largest"') < page.index("<h2>Map</h2>") < page.index("<h2>Metrics</h2>")
    assert "the predicted spread is too large by a factor of" in page
    assert "predicted spread too small" in page
    assert "against 9,999 simulations of a right version: exact" in page
    assert "The predictive distribution is too narrow" in page, "the interpreter reads the regions"
    assert all(selection for _, selection in report_data(found).sentences)


def test_the_pit_interpreter_reads_slices_and_regions(evaluations: dict[str, Evaluation]) -> None:
    homoscedastic, right = evaluations["homoscedastic"].wrong, evaluations["right"].wrong
    said = homoscedastic.places.loc[homoscedastic.places["fault"] == "predicted spread too small", "pit"]
    assert said.str.contains("too narrow").any()
    assert set(right.places["pit"]) <= {"no evidence of miscalibration", "abstained", ""}
    wrong = by_half(*range(10))
    words = dict(zip(wrong.places["place"], wrong.places["pit"], strict=True))
    assert "too wide" in words["half left"]
    assert "too narrow" in words["half right"]
    assert words["half few"] == ""


def test_vector_targets_are_tested_and_each_target_is_read() -> None:
    n = 120
    rng = np.random.default_rng(4)
    mean = np.column_stack([X[:n, 0], X[:n, 1]])
    y = mean + rng.normal(size=(n, 2)) * np.array([1.0, 2.0])
    laws = {
        "right": MultivariateNormal(mean, np.broadcast_to([1.0, 2.0], (n, 2))),
        "narrow": MultivariateNormal(mean, np.broadcast_to([1.0, 1.0], (n, 2))),
        "members": Samples(mean[:, None] + rng.normal(size=(n, 12, 2)) * np.array([1.0, 2.0])),
    }
    found = measure(EXACT, X[:n], y, laws, metrics=SENTENCES)
    said = {}
    for name, law in laws.items():
        calibration = found[name].calibration
        assert calibration.columns() == {}
        metrics = calibration_metrics(calibration.test)
        assert list(metrics) == ["calibration_p_value"]
        said[name] = read_vector_targets(calibration, Rows({}, y, law), ["width", "height"], metrics)
    assert said["right"].sentences[0].startswith("No fault found")
    assert said["members"].sentences[0].startswith("No fault found")
    assert said["narrow"].sentences[0].startswith("For height the predicted spread is too small by a factor of")
    assert said["narrow"].sentences[1] == "No fault was found for 1 of 2 targets."
    assert said["narrow"].places["place"].tolist() == ["height", "width"]
    assert "199 simulations" in said["narrow"].method
    kept = from_bytes(to_bytes(found["narrow"]))
    assert isinstance(kept, VersionMeasurement)
    assert kept.calibration.reading is None
    assert kept.calibration.test.by_order == found["narrow"].calibration.test.by_order
    # Each by the cells around targets that are rounded as coarsely as they vary: of these .2 had a fault at 200 rows.
    off, calibration = 0, found["right"].calibration
    law = MultivariateNormal(np.zeros((400, 2)), np.broadcast_to([1.0, 2.0], (400, 2)))
    for _ in range(20):
        rounded = np.round(rng.normal(size=(400, 2))) * np.array([1.0, 2.0])
        read = read_vector_targets(calibration, Rows({}, rounded, law), ["width", "height"], metrics)
        off += int(np.sum(read.places["q_value"] < 0.05))
    assert off <= 4


def test_a_comparison_says_of_each_version_what_its_own_report_says_first(evaluations: dict[str, Evaluation]) -> None:
    right, narrow, _ = (as_compared(evaluations[name]) for name in NAMES)
    page = comparison_report(compare_versions([right, narrow], baseline="model/0", resamples=100))
    assert f"<td>{right.verdict}</td>" in page
    assert str(right.verdict).startswith("no fault found")
    assert narrow.wrong[0].startswith("The predicted spread is too small by a factor of ")
    assert f"<td>{narrow.wrong[0]}</td>" in page


def test_a_gate_holds_effects_to_a_limit(evaluations: dict[str, Evaluation]) -> None:
    gate = GateSettings(maximum={"calibration_effect_spread": 0.05})
    right, narrow = (as_compared(evaluations[name]) for name in ("right", "overconfident"))
    assert apply_gate(right, None, gate).passed
    assert apply_gate(narrow, None, gate).outcome == "failed"
    compared = compare_pair(right, narrow, resamples=100).differences["calibration_effect_spread"]
    assert compared.high < 0.0
    assert compared.p_value < 1e-6
    assert not [name for name in compare_pair(right, right, resamples=100).differences.values() if name.difference]
    against = GateSettings(baseline="1", not_worse_on=["calibration_effect_spread"])
    assert apply_gate(right, narrow, against).passed
    assert apply_gate(narrow, right, against).outcome == "failed"
    uncalibrated = replace(right, metrics=right.metrics | {"calibration_p_value": MetricValue(0.001)})
    found = apply_gate(uncalibrated, None, GateSettings(at_noise_floor=True))
    assert found.reasons == ["wrong (p = 0.002)"]


def test_a_gate_fails_a_version_that_is_wrong_in_a_large_slice(
    evaluations: dict[str, Evaluation], tmp_path: Path
) -> None:
    right, narrow = evaluations["right"], evaluations["overconfident"]
    none = GateSettings(largest_wrong_slice=0.0)
    assert apply_gate(as_compared(right), None, none).reasons == [
        "no slice of more than 0 % of the rows is named wrong"
    ]
    (check,) = apply_gate(as_compared(narrow), None, none).checks
    largest = max(narrow.wrong.named(), key=lambda place: place.rows)
    first = narrow.wrong.places.iloc[0]
    assert check.outcome == "failed"
    named = f"named wrong: {first.fault} {place_in_words(first.place)} ({first.rows:,} rows)"
    assert named in check.reason, "the most wrong first"
    assert check.value == largest.rows / ROWS
    smaller = GateSettings(largest_wrong_slice=check.value)
    assert apply_gate(as_compared(narrow), None, smaller).passed
    settings = TrackingSettings(uri=mlflow_database(tmp_path), report=False)
    MlflowClient(settings.uri).create_registered_model("model")
    logged = read_version(log_evaluation(narrow, settings), settings)
    assert apply_gate(logged, None, none).reasons == [check.reason]
    (unknown,) = apply_gate(replace(logged, wrong_places=None), None, none).checks
    assert unknown.outcome == "undecided"
    assert "--again -m models:/model/1" in unknown.reason


def test_few_rows_equal_inputs_and_a_law_without_ends_are_measured() -> None:
    class Endless(Normal):
        def predictive_quantile(self, levels: np.ndarray) -> np.ndarray:
            return np.full((len(self), np.shape(levels)[-1]), np.inf)

    for rows, x in ((30, X[:30]), (60, np.ones((60, 2)))):
        law = Endless(X[:rows, 1], SPREAD[:rows])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = measure(EXACT, x, Y[:rows], {"": law}, metrics=SENTENCES)[""]
        calibration = found.calibration
        assert 0.0 < calibration.test.p_value <= 1.0
        assert "own quantiles" not in calibration.test.by_basis
        metrics = calibration_metrics(calibration.test)
        read = RowsRead(pit_values(Y[:rows], law))
        wrong = read_what_is_wrong(
            calibration, calibration.regions, read, metrics, np.arange(rows), pd.DataFrame(), with_faults
        )
        assert wrong.sentences
    few = measure(EXACT, X[:20], Y[:20], {"": Normal(X[:20, 1], SPREAD[:20])}, metrics=SENTENCES)
    assert not few[""].calibration


def test_regions_are_named_by_the_features_of_the_valid_rows(tmp_path: Path) -> None:
    rows = {"age": X[:60, 0], "income": X[:60, 1], "vector": list(X[:60]), "y": Y[:60]}
    pd.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    listed = of_features(tmp_path / "rows.parquet", ["age", "income"])
    valid = np.arange(60) % 3 > 0
    for settings, names in ((listed, ["age", "income"]), (listed.model_copy(update={"input": "vector"}), [])):
        split = open_split(settings)
        found = features_of_inputs(split, named_features(split, np.flatnonzero(valid)))
        assert list(found) == names
        for number, name in enumerate(names):
            np.testing.assert_array_equal(found[name], X[:60, number][valid])
    placed = over_all_rows(np.array(["spread", ""]), np.array([True, False, True]))
    assert placed.tolist() == ["spread", None, ""]
    np.testing.assert_array_equal(over_all_rows(np.array([1, 2]), np.array([True, False, True])), [1.0, np.nan, 2.0])
    few = np.array(["spread", ""], dtype=object)[[0, 1, 1]]
    assert over_all_rows(few, np.ones(3, bool)) is few


def fault(place: str, share: float, amount: float, kind: str = "spread+", **more: Any) -> Finding:
    """Of a share of 900 rows."""
    words = f"in the region where age is mostly {place}" if place[:1].isdigit() else f"where {place}"
    return Finding(place, words, round(900 * share), share, f"off by {amount}", "", amount**2, kind, amount, **more)


def test_the_largest_fault_comes_first_by_size_and_share_of_the_rows() -> None:
    """Two slices with opposite biases: over all rows they look like one spread that is too small."""
    z = np.random.default_rng(3).normal(size=2000)
    names = np.array(["a", "b"])[np.arange(2000) % 2]
    pit = stats.norm.cdf(z + np.where(names == "a", 0.6, -0.6))
    groups = {f"shop {name}": names == name for name in "ab"}
    readings, q_values = group_readings(pit, groups)
    places = [group_finding(reading, name) for name, reading in readings.items() if q_values[name] <= 0.05]
    said, _ = sentences_of(group_finding(group_reading(pit)), places, len(readings))
    assert re.match(r"On shop [ab] \(1,000 rows, 50 %\) the targets lie 0\.[56]", said[0])
    assert any(re.match(r"On shop [ab] \(1,000 rows, 50 %\) the targets lie 0\.[56]", each) for each in said[1:])


def test_a_region_that_lies_in_a_range_with_its_fault_is_counted_and_not_told_again() -> None:
    wide = fault("age is 50 or more", 0.5, 0.5)
    regions = [
        fault("region 1", 0.2, 0.5, lies_in=("age is 50 or more",)),
        fault("region 2", 0.15, 1.2, lies_in=("age is 50 or more",)),
        fault("region 3", 0.1, 0.5),
    ]
    said, _ = sentences_of(None, regions, 4, [wide])
    assert [sentence.split(" (")[0] for sentence in said[:3]] == [
        "Where region 2",
        "Where age is 50 or more",
        "Where region 3",
    ]
    assert said[3:] == ["1 place is off only because of rows named above; no fault was found in 1 of 4 places."]
    low = fault("age is up to 20", 0.1, -0.5)
    said, _ = sentences_of(None, [], 4, [wide, low])
    assert said[2:] == ["No fault was found in 4 of 4 places taken alone."]


def test_places_share_the_fault_of_all_other_rows_and_none_is_said_to_be_right_beside_it() -> None:
    oslo, rome, rest = fault("Oslo", 1 / 3, 1.0, "bias"), fault("Rome", 1 / 3, 0.3), fault("", 2 / 3, 0.28)
    said, _ = sentences_of(
        None,
        [oslo, rome],
        3,
        others=lambda first, place: rest if first is oslo else None if place in ("", "Oslo") else first,
    )
    assert said == [
        "Where Oslo (300 rows, 33 %) off by 1.0.",
        "In all other rows, off by 0.28.",
        "1 place has the same fault as all other rows; no fault was found in 1 of 3 places taken alone.",
    ]
    assert sentences_of(None, [oslo, rome], 3, others=lambda _, place: rome if place else None)[0][1:] == [
        "Where Rome (300 rows, 33 %) off by 0.3.",
        "No fault was found in 1 of 3 places.",
    ]
    whole, mixed = fault("", 1.0, 0.4, "bias"), fault("a", 1 / 6, 0.35, "bias")
    said, _ = sentences_of(whole, [oslo, mixed], 3, others=lambda *_: None)
    assert said[1:] == ["In all other rows no fault was found.", "1 place is off only because of rows named above."]
    assert sentences_of(rest, [], 3)[0][1:] == ["No fault was found in 3 of 3 places taken alone."]
    mass = fault("", 1.0, 2.0, "mass")
    assert sentences_of(None, [], 3, [mass, oslo])[0][2:] == ["No fault was found in 3 of 3 places taken alone."]


def test_where_one_range_is_wrong_alone_nothing_is_said_to_share_an_overall_fault() -> None:
    """Clusters hold rows of the range, and differ from what is predicted by these: so do all rows together."""
    overall, narrow = fault("", 1.0, 0.2), fault("dose is up to 0.8", 0.36, 0.5)
    clusters = [fault("20 to 40", 0.4, 0.2), fault("40 to 60", 0.6, 0.2)]
    bias, rest = fault("60 to 80", 0.1, 0.3, "bias+"), fault("", 0.64, 0.1, "skew+")

    def told(places: list[Finding], **others: Finding) -> list[str]:
        said, _ = sentences_of(overall, places, 3, [narrow], lambda _, place: others.get(place.replace(" ", "_")))
        assert said[0] == "Where dose is up to 0.8 (324 rows, 36 %) off by 0.5."
        return said[1:]

    only = "2 places are off only because of rows named above"
    right = "In all other rows no fault was found."
    assert told(clusters) == [right, f"{only}."]
    assert told([*clusters, bias]) == [right, "3 places are off only because of rows named above."]
    assert told([*clusters, bias], **{"60_to_80": bias}) == [f"1 more place has another fault; {only}."]
    assert told(clusters, **{"": rest}) == [
        "In all other rows, off by 0.1.",
        f"{only}; no fault was found in 1 of 3 places taken alone.",
    ]
    whole = fault("", 1.0, 0.5)
    said, _ = sentences_of(whole, [fault("20 to 40", 0.4, 0.5)], 3, [], lambda *_: None)
    assert said == [
        "Off by 0.5.",
        "1 place shares the overall fault; no fault was found in 2 of 3 places taken alone.",
    ]


def test_a_place_whose_fault_is_the_second_of_all_rows_shares_it() -> None:
    """Of predicted quantiles a level and an interval are told together, the more certain of the two first."""
    overall = Finding("", "", 1000, 1.0, "84 % lie below", "", 0.1, "level", 0.11, {"interval": 0.1})
    place = Finding("a", "where it is a", 100, 0.1, "the interval holds 71 %", "", 0.1, "interval", 0.19)
    assert place.repeats(overall)
    assert not replace(place, amount=0.21).repeats(overall)
    assert not replace(place, kind="another level").repeats(overall)
    assert sentences_of(overall, [place], 1)[0] == ["84 % lie below.", "All places share the overall fault."]


@pytest.mark.filterwarnings("error")
def test_point_masses_have_no_spread_and_spreads_beyond_the_scores_reach_no_size() -> None:
    rng = np.random.default_rng(3)
    x = pd.DataFrame({"a": rng.normal(size=400), "b": rng.normal(size=400)})
    mean, noise = (x.a + x.b).to_numpy(), rng.normal(size=400)
    points = Samples(np.repeat(mean[:, None], 5, axis=1))
    assert congruence.evaluate(x, mean, points).verdict == "no fault found"
    apart = significant(float(np.mean(np.abs(noise))))
    said = f"The predicted spread is 0 in all of the rows, and the targets lie {apart} away on average."
    assert said in str(congruence.evaluate(x, mean + noise, points))
    held = str(congruence.evaluate(x, mean, (mean, np.ones(400))))
    assert "The predicted spread is too large by a factor of 20 or more." in held


def test_targets_that_are_cut_off_are_not_said_to_reach_further_there() -> None:
    """What a cap holds back crowds about the median, and so has the score of a skew to the right."""
    rng = np.random.default_rng(2)
    z = np.minimum(rng.normal(size=2000), 0.2) - 0.3
    sizes = TargetRows(z, np.zeros(2000), np.ones(2000), stats.norm.cdf(z))
    reading = replace(group_reading(sizes.pit), dominant="skew", strength=0.8)
    found = group_finding(reading, "", "", sizes)
    between = np.mean((sizes.pit > 0.1) & (sizes.pit < 0.5))
    held = f"{100 * between:.0f} % lie between the 10 % quantile and the median, where 40 % should"
    assert found.clause.startswith(f"the targets are distributed otherwise than predicted: {held}")
    assert found.short == "distributed otherwise than predicted"
    # 4.9 % above the 95 % quantile beside 4.1 % below the 5 % one show no skew, either.
    even = np.concatenate(
        [np.full(12, 0.97), np.full(10, 0.03), np.linspace(0.05, 0.5, 120), np.linspace(0.5, 0.95, 98)]
    )
    sizes = TargetRows(stats.norm.ppf(even), np.zeros(240), np.ones(240), even)
    assert "44 % lie between the 10 % quantile and the median" in group_finding(reading, "", "", sizes).clause
    right = rng.gamma(2.0, size=2000) - 2.0
    sizes = TargetRows(right, np.zeros(2000), np.ones(2000), stats.norm.cdf(right / 2.0**0.5))
    skewed = group_finding(replace(reading, strength=0.4), "", "", sizes)
    assert skewed.clause.startswith("the targets are skewed to the right of the predictions: ")
    assert skewed.short == "skewed to the right"


def test_a_bias_that_is_within_chance_is_not_named_because_other_scores_are_off() -> None:
    """Targets at one value in a slice make tails of all rows that are no fault; a small bias is what is nearest."""
    reading = group_reading(np.concatenate([np.full(60, 0.5), np.random.default_rng(197).uniform(size=340)]))
    assert (reading.dominant, reading.p_value < 0.05, reading.order_p_values[0] > 0.1) == ("bias", True, True)
    assert not is_off(reading)
    assert is_off(group_reading(stats.norm.cdf(stats.norm.ppf((np.arange(340) + 0.5) / 340) + 0.3)))


def test_no_score_that_cannot_be_below_0_has_an_interval_that_is() -> None:
    draws = np.random.default_rng(3).lognormal(0.0, 4.0, 60)
    found = ScoreStatistics.of({"crps": draws}).estimates()["crps"]
    assert found.low < 0.0
    for name in ("crps_mean", "mae", "rmse"):
        assert _value(metric_of(name), found, 100.0).low == 0.0


def test_rows_that_have_a_value_at_all_are_a_place() -> None:
    """It was called "x up to inf"."""
    rng = np.random.default_rng(4)
    x = np.where(rng.uniform(size=1000) < 0.7, np.nan, rng.normal(size=1000))
    pit = stats.norm.cdf(rng.normal(size=1000) + 0.8 * ~np.isnan(x))
    (segment, *_) = weak_segments(pd.DataFrame({"x": x}), RowsRead(pit), np.ones(1000), np.ones(1000)).segments
    assert segment.name == "x is not missing"
    assert segment.finding.rows == np.count_nonzero(~np.isnan(x))
    assert segment.finding.sentence.startswith("Where x is not missing (")


@pytest.mark.parametrize(("certain", "named"), [(0.05, []), (0.005, ["x above 2"])])
def test_no_segment_is_named_that_is_less_certain_than_a_fault_too_small_to_be_named(
    monkeypatch: pytest.MonkeyPatch, certain: float, named: list[str]
) -> None:
    """Of a slope of 7 standard errors, small in any range, a chance find in 17 rows was all that was named."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=40_000)
    y = rng.poisson(np.where(x > 0.0, 1.02, 1.0) * np.where(x > 2.0, 1.3, 1.0)).astype(float)
    law, half, few = Poisson(np.ones(len(x))), np.flatnonzero(x > 0.0), np.flatnonzero(x > 2.0)
    rows = RowsRead(pit_values(y, law), CountRows.of(y, law), JumpScores.of(y, law))
    small = FoundSegment((Range("x", above=0.0),), half, 0.005, half)
    large = FoundSegment((Range("x", above=2.0),), few, certain, few)
    monkeypatch.setattr(faults, "faulty_segments", lambda *_, **__: [small, large])
    found = weak_segments(pd.DataFrame({"x": x}), rows, np.ones(len(x)), np.ones(len(x)))
    assert [each.name for each in found.segments] == named
