"""Versions against each other, on the same rows and on different ones, and what of it MLflow keeps."""

import re
import tracemalloc
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from comparable import angle, as_compared, congruence_of, if_honest

import congruence
from congruence.kernels.distributions import Normal, Samples
from congruence.kernels.errors import InvalidInputError, ProtocolError
from congruence.kernels.protocol import EXACT, PREPRINT
from congruence.kernels.score_parts import Part, ScoreParts
from congruence.kernels.split import prepare
from congruence.tasks.comparison.compared import ComparedVersion, Pair
from congruence.tasks.comparison.differences import point_differences
from congruence.tasks.comparison.explored import ALL_ROWS, WhoWon, _sentence
from congruence.tasks.comparison.gate import apply_gate
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.comparison.versions import compare_pair, compare_versions
from congruence.tasks.mlflow.comparisons import log_comparison
from congruence.tasks.report.comparison import comparison_data, comparison_report
from congruence.tasks.scores.evaluation import MetricValue, SplitSummary
from congruence.tasks.sentences.calibration import percent
from congruence.tasks.settings.sections import ModelVersion


@pytest.fixture(scope="module")
def honest(compared):
    """The same with the scores that each would have if it were recalibrated."""
    return [if_honest(version) for version in compared]


@pytest.fixture(scope="module")
def comparison(honest):
    return compare_versions(honest)


def test_the_truth_wins_and_the_numbers_are_the_scores_own(compared):
    comparison = compare_versions(compared)
    assert comparison.versions[0].label == "angle/1"
    assert comparison.baseline.label == "angle/1"
    pair = comparison.pairs["angle/3"]
    first, second = (version.scores[version.scores["valid"]] for version in (compared[2], compared[0]))
    for name, column in (("cce_mean", "cce"), ("nll_mean", "nll"), ("crps_mean", "crps"), ("mae", "absolute_error")):
        item = pair.differences[name]
        assert item.difference == pytest.approx(first[column].mean() - second[column].mean(), rel=1e-9)
        assert 0 < item.low < item.difference < item.high
        assert name == "cce_mean" or item.p_value < 0.01
        assert pair.points[name].won == (first[column] < second[column]).sum()
    squared = pair.differences["cce_squared_mean"]
    assert squared.difference == pytest.approx((first["cce"] ** 2).mean() - (second["cce"] ** 2).mean(), rel=1e-9)
    assert pair.differences["cce_mean"].p_value is None  # the test is that of the squares, which are unbiased
    assert squared.p_value < 0.01
    assert pair.differences["rmse"].first == pytest.approx(np.sqrt(first["squared_error"].mean()))
    assert pair.differences["ece"].first == pytest.approx(compared[2].metrics["ece"].value, abs=1e-6)
    assert pair.rows == 398


def test_what_is_the_same_is_not_called_different(compared):
    pair = compare_pair(compared[1], compared[0])
    assert pair.differences["mae"].difference == 0  # half the scale leaves the mean alone
    assert pair.differences["mae"].p_value == 1
    assert pair.points["mae"].tied == pair.rows


def test_the_difference_of_congruence_is_that_of_the_kernels_whose_level_is_known(make_evaluation):
    """Of stored influences; by points, which share the targets of the same rows, equal versions were told apart."""
    high, low = (
        as_compared(make_evaluation(model=angle(version), bias=bias, rows=152))
        for version, bias in (("1", 0.2), ("2", -0.2))
    )
    found = compare_pair(high, low, resamples=50).differences["cce_squared_mean"]
    at = np.random.default_rng(7).uniform(0, np.pi, 152)[:150]
    y, laws = high.scores["target"].to_numpy()[:150], [Normal(2 * at + bias, np.ones(150)) for bias in (0.2, -0.2)]
    split = prepare(EXACT.apply(np.column_stack([np.cos(at), np.sin(at)])), input_kernel=EXACT.input_kernel)
    expected = split.compare(y, *laws)
    assert found.difference == pytest.approx(expected.difference, rel=1e-5)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-4)
    assert found.p_value == pytest.approx(expected.p_value, rel=1e-4)


def test_a_version_without_influence_is_named_with_its_remedy_and_gets_no_p_value(compared):
    old = replace(compared[0], influence=None, influence_noise=None)
    comparison = compare_versions([old, compared[2]])
    pair = comparison.pairs["angle/3"]
    assert not {"cce_mean", "cce_squared_mean"} & set(pair.differences)
    assert pair.differences["mae"].p_value < 0.01
    assert pair.points["cce_mean"].won + pair.points["cce_mean"].lost == pair.rows
    (note,) = comparison.notes
    assert "CCE of angle/1 has no interval" in note
    assert "congruence evaluate FILE --again -m models:/angle/1" in note
    assert "cce_p_value" not in comparison.table()
    assert "--again" in comparison_report(comparison)


def test_other_reference_rows_are_not_compared_in_cce(compared):
    moved = compared[1].influence.assign(key=compared[1].influence["key"].to_numpy()[::-1])
    pair = compare_pair(compared[0], replace(compared[1], influence=moved))
    assert "cce_squared_mean" not in pair.differences
    assert "estimated on other reference rows" in pair.notes[0]


def test_other_settings_are_said(compared):
    other = replace(compared[1], settings_digest="other")
    assert any("other predictions" in note for note in compare_versions([compared[0], other]).notes)


def test_the_inputs_they_differ_most_on_come_first(compared):
    largest = compare_pair(compared[2], compared[0]).largest
    size = largest["cce_difference"].abs()
    assert size.is_monotonic_decreasing
    every = (compared[2].scores["cce"] - compared[0].scores["cce"]).abs()
    assert size.iloc[0] == every.max()
    assert largest["key"].iloc[0] == compared[0].scores["key"].iloc[int(largest["row"].iloc[0])]


def test_other_digests_are_refused(compared, make_evaluation):
    other_protocol = as_compared(make_evaluation(model=angle("4"), rows=400, protocol=PREPRINT))
    other_split = as_compared(make_evaluation(model=angle("4"), rows=400, split_digest="t" * 64))
    with pytest.raises(ProtocolError, match="protocol differs"):
        compare_versions([compared[0], other_protocol])
    with pytest.raises(ProtocolError, match="split differs"):
        compare_versions([compared[0], other_split])
    renamed = replace(compared[1], scores=compared[1].scores.assign(key="x"))
    with pytest.raises(ProtocolError, match="other keys"):
        compare_pair(compared[0], renamed)


def test_what_is_not_a_comparison_is_refused(compared):
    with pytest.raises(InvalidInputError, match="at least two"):
        compare_versions(compared[:1])
    with pytest.raises(InvalidInputError, match="angle/9 is not among the compared versions angle/1"):
        compare_versions(compared, baseline="angle/9")
    with pytest.raises(InvalidInputError, match="twice"):
        compare_versions([compared[0], compared[0]])


def test_a_point_invalid_in_one_version_counts_in_neither(compared):
    scores = compared[1].scores.copy()
    scores.loc[:9, "valid"] = False
    scores.loc[:9, "cce"] = np.nan
    assert compare_pair(compared[0], replace(compared[1], scores=scores)).rows == 388


def test_the_report_stands_alone(compared):
    hostile = replace(compared[1], metrics={**compared[1].metrics, "mae": MetricValue(1.0)},
                      model=ModelVersion("<script>alert(1)</script>", "2", "models:/x/2"))  # fmt: skip
    html = comparison_report(compare_versions([compared[0], hostile]))
    assert "<script>alert" not in html
    assert html.count("<script") == 2
    assert set(re.findall(r"https?://[^\"'\s]+", html)) == {"http://www.w3.org/2000/svg"}
    assert "rows better / worse / same" in html


def test_the_page_says_who_wins_on_what_and_its_matrix_holds_the_differences(compared):
    comparison = compare_versions(compared, baseline="angle/3", resamples=200)
    data = comparison_data(comparison)
    assert data.summary.startswith("angle/1 wins: better than angle/3 on CCE by ")
    assert data.sentences["angle/1"].startswith("angle/1 is better than angle/3 on CCE by ")
    assert data.matrix["angle/1"]["crps_mean"].side == "better"
    assert data.matrix["angle/3"]["crps_mean"].difference is None
    html = comparison_report(comparison)
    found = comparison.pairs["angle/1"].differences["crps_mean"]
    assert f'data-difference="{found.difference}" data-low="{found.low}" data-high="{found.high}"' in html
    best = comparison_data(compare_versions(compared, resamples=200))
    assert best.summary.startswith("angle/1 wins: every other version is worse on something")
    same = replace(compared[1], model=angle("9"))
    twin = replace(compared[0], model=angle("8"))
    many = comparison_data(compare_versions([compared[0], twin, compared[2]], baseline="angle/3", resamples=200))
    assert many.summary.startswith("2 versions win: better than angle/3 on something, worse on nothing; these rows do")
    even = comparison_data(compare_versions([compared[1], same], resamples=50))
    assert even.summary.startswith("Nobody wins: on CCE")
    assert " no version is better than angle/" in even.summary
    pair = compare_pair(if_honest(same), if_honest(compared[1]))
    assert pair.won.sentence == "angle/9 and angle/2 score the same in every row: they predict the same."


@pytest.mark.parametrize("stated", ["quantiles", "draws"])
def test_the_nll_of_what_we_draw_is_shown_and_does_not_say_who_wins(compared, stated):
    """Quantiles and draws that are not true may have a lower one than the true ones."""
    biased, truth = (
        replace(version, scores=version.scores.assign(nll=sign * version.scores["nll"]))
        for version, sign in ((compared[2], -1.0), (compared[0], 1.0))
    )
    said = comparison_data(compare_versions([truth, biased], baseline="angle/3", resamples=200))
    assert said.summary.startswith("Nobody wins on everything: angle/1 is better than angle/3 on something and worse")
    versions = [truth, replace(biased, stated=stated)]
    said = comparison_data(compare_versions(versions, baseline="angle/3", resamples=200))
    assert said.summary.startswith("angle/1 wins: better than angle/3 on CCE by ")
    assert said.matrix["angle/1"]["nll_mean"].side == "worse"


def test_an_infinite_nll_is_shown_where_all_versions_have_one(compared):
    found = []
    for version in compared[:2]:
        scores = version.scores.assign(nll=version.scores["nll"].where(version.scores.index != 3, np.inf))
        metrics = {name: metric for name, metric in version.metrics.items() if name != "nll_mean"}
        found.append(replace(version, scores=scores, metrics=metrics))
    comparison = compare_versions(found, resamples=50)
    assert "nll_mean" in comparison_data(comparison).metrics
    assert comparison.infinite["angle/1"] == {"nll_mean"}
    assert comparison_report(comparison).count("<td>infinite</td>") == 2
    assert not any(compare_versions(compared[:2], resamples=50).infinite.values())


@pytest.mark.parametrize("other", [("all", ()), ("quantiles", (0.1, 0.5, 0.9))])
def test_crps_of_other_levels_names_no_winner(honest, other):
    """Of right quantiles at .1 and .9 it is a sixth higher than that of the distribution that they are of."""
    first = replace(honest[0], stated="quantiles", levels=(0.1, 0.9))
    second = replace(honest[2], stated=other[0], levels=other[1])
    alike = compare_pair(first, replace(second, stated=first.stated, levels=first.levels))
    assert alike.won is not None
    assert {"crps_mean", "ece"} < alike.differences.keys()
    comparison = compare_versions([first, second], baseline="angle/3", resamples=200)
    pair = comparison.pairs["angle/1"]
    assert not {"crps_mean", "ece"} & pair.differences.keys()
    assert pair.won is pair.explored is None
    lowest = replace(second, metrics=second.metrics | {"crps_mean": MetricValue(0.0, 0.0, 0.0)})
    assert compare_versions([first, lowest], resamples=50).baseline.label == "angle/1", "by CCE"
    assert comparison.best == comparison.best_recalibrated == {}
    said = comparison_data(comparison)
    assert said.matrix["angle/1"]["crps_mean"].difference is None
    other_words = "whole distributions" if other[0] == "all" else "quantiles at 0.1, 0.5, 0.9"
    assert pair.unlike.startswith(f"are different quantities (quantiles at 0.1, 0.9; {other_words})")
    assert said.sentences["angle/1"].endswith(f" Their CRPS and ECE {pair.unlike}.")
    assert not any("different quantities" in each for each in comparison.notes), "it is said once"
    assert ("evaluate both by their quantiles at 0.1, 0.9 alone" in pair.unlike) == (other[0] == "quantiles")
    decided = apply_gate(first, second, GateSettings(baseline="3", not_worse_on=["crps_mean"]))
    said = f"CRPS and ECE of angle/1 and angle/3 {pair.unlike}"
    assert (decided.outcome, decided.checks[0].reason) == ("undecided", said)
    elsewhere = replace(second, split=replace(second.split, digest="other"), is_stored=True)
    apart = compare_pair(replace(first, is_stored=True), elsewhere)
    assert "crps_mean" not in apart.differences
    assert apart.unlike == pair.unlike


def test_one_interval_of_many_that_misses_0_by_little_names_no_winner(compared):
    comparison = compare_versions(compared[:2], baseline="angle/2", resamples=50)
    (pair,) = comparison.pairs.values()
    near = {name: replace(each, difference=0.1, low=-0.1, high=0.3) for name, each in pair.differences.items()}
    near["mae"] = replace(near["mae"], low=0.01, high=0.19)  # p = .03
    said = comparison_data(replace(comparison, pairs={pair.first.label: replace(pair, differences=near)}))
    assert said.matrix["angle/1"]["mae"].side == "worse"
    nobody = "no version is better than angle/2 by more than chance explains."
    assert said.summary.startswith("Nobody wins: on CCE")
    assert said.summary.endswith(f"MAE and ECE {nobody}")
    stated = replace(pair, first=replace(pair.first, stated="quantiles"), differences=near)
    drawn = comparison_data(replace(comparison, pairs={pair.first.label: stated}))
    assert "MAE" not in drawn.summary, "of quantiles it decides nothing, and may differ in the table"
    assert drawn.summary.endswith(nobody)
    near["mae"] = replace(near["mae"], low=0.04, high=0.16)  # p = .001
    said = comparison_data(replace(comparison, pairs={pair.first.label: replace(pair, differences=near)}))
    assert said.summary.startswith("angle/2 wins: every other version is worse on something")


@pytest.mark.parametrize(
    ("looks", "words"), [(1, "is better than b, with a CRPS 10 %"), (20, "have the same CRPS within chance")]
)
def test_what_owes_to_knowledge_and_honesty_is_told_where_it_shows_among_all_that_is_told(looks, words):
    clear, hardly, none = (Part(-0.1, -0.19, -0.01, p) for p in (0.001, 0.03, 0.5))

    def said_of(parts):
        return _sentence("a", "b", WhoWon({"crps": {ALL_ROWS: parts}}, {"crps": 1.0}, ""), 0.05 / looks)

    total = ScoreParts(hardly, hardly, none, (none, none), none, 100)
    assert words in (said := said_of(total))
    assert ("more honest" in said) == (looks == 1)
    part = ScoreParts(none, clear, none, (none, none), none, 100)
    assert "within chance: a is more honest (10 %)." in said_of(part)


def test_the_rows_of_a_pair_are_those_that_differ_most_with_the_score_of_both(compared):
    pair = compare_versions(compared, baseline="angle/1", resamples=50).pairs["angle/3"]
    assert pair.explored.score == "crps"
    frame = pair.explored.frame
    scores = [version.scores["crps"].to_numpy() for version in (compared[2], compared[0])]
    difference = scores[0] - scores[1]
    np.testing.assert_allclose(frame["difference"], difference[frame["row"]], rtol=1e-6)
    assert np.all(np.diff(np.abs(frame["difference"])) <= 0.0)
    by_prediction = next(each for each in pair.explored.along if each.name == "prediction of angle/1")
    assert by_prediction.rows.sum() == len(frame) == 398
    assert by_prediction.rows @ by_prediction.value / 398 == pytest.approx(np.nanmean(difference))
    assert "half" in {each.name for each in pair.explored.along}
    assert "target" not in {each.name for each in pair.explored.along}, "scores given the target favour extremes"


def test_comparisons_in_mlflow(logged):
    versions, settings, client = logged
    comparison = compare_versions(versions, baseline="angle/1", resamples=200)
    run_id = log_comparison(comparison, settings).run_id
    assert log_comparison(comparison, settings).run_id == run_id
    run = client.get_run(run_id)
    metrics = run.data.metrics
    assert metrics["angle-2/cce_mean_difference"] < 0
    assert metrics["angle-2/cce_squared_mean_difference"] < metrics["angle-2/cce_squared_mean_difference_high"] < 0
    assert metrics["angle-2/cce_squared_mean_p_value"] < 0.05
    assert "angle-2/cce_mean_p_value" not in metrics
    note = run.data.tags["mlflow.note.content"]
    assert "| angle/2 |" in note
    data = comparison_data(comparison)
    assert note.startswith(f"**{data.summary}** {data.best}")
    assert all(f"- {sentence}" in note for sentence in data.sentences.values())
    assert {item.path for item in client.list_artifacts(run_id)} >= {"comparison.html", "versions.json"}


class Counted:
    """A version's scores that are made anew for every column asked for, as a logged evaluation's are read."""

    def __init__(self, rows: int, version: int, reads: Counter[str]) -> None:
        self.rows, self.version, self.reads = rows, version, reads
        self.columns = {"valid", "key", "target", "cce", "nll", "crps", "absolute_error", "squared_error", "pit", "std"}

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> pd.Series:
        self.reads[f"{self.version} {name}"] += 1
        if name == "valid":
            return pd.Series(np.ones(self.rows, dtype=bool))
        return pd.Series(np.random.default_rng([self.version, len(name)]).random(self.rows))

    def close(self) -> None:
        self.reads[f"{self.version} released"] += 1


def test_versions_are_read_pair_by_pair_and_no_more_than_the_columns_needed(compared):
    def peak(versions: int, reads: Counter[str], rows: int = 60_000) -> int:
        items = [
            replace(compared[0], model=angle(str(number)), scores=Counted(rows, number, reads), rows_digest="same",
                    influence=None, influence_noise=None)
            for number in range(versions)
        ]  # fmt: skip
        tracemalloc.start()
        compare_versions(items, resamples=20)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    reads: Counter[str] = Counter()
    few, many = peak(2, Counter()), peak(12, reads)
    assert many < 1.1 * few
    read = {name.split()[1] for name in reads if name.startswith("7 ")}
    scores = {"cce", "nll", "crps", "absolute_error", "squared_error", "pit", "std"}
    assert read == scores | {"released"}  # no rows of its own
    assert reads["7 pit"] == reads["7 std"] == reads["7 released"] == 1


def test_why_the_better_version_is_better(comparison):
    """Half the spread and a bias of everything know as much, and are less honest."""
    assert comparison.baseline.label == "angle/1"
    for label in ("angle/2", "angle/3"):
        won = comparison.pairs[label].won
        for score in ("crps", "nll"):
            parts = won.scores[score]["all rows"]
            assert parts.honesty.value + parts.knowledge.value == pytest.approx(parts.total.value, abs=1e-9)
            assert parts.honesty.low > 0.0
            assert set(won.scores[score]) == {"all rows", "half = left", "half = right"}
        total = won.parts.total.value / won.means["crps"]
        assert won.sentence.startswith(
            f"{label} is worse than angle/1, with a CRPS {percent(total)} higher: it is less"
        )
        assert "less honest" in won.sentence
        assert "knows" not in won.sentence
        gain = won.parts.gains[0].value
        own = comparison.pairs[label].first.metrics["crps_mean"].value - gain
        assert comparison.recalibrated[label]["crps_mean"].first == pytest.approx(own, rel=1e-3)
        assert won.table().groupby(["score", "rows of"]).size().tolist() == [6] * 6
    assert comparison.may_be_best == ["angle/1"]
    page = comparison_report(comparison)
    assert "The best by CRPS is angle/1 (95 % confidence set)." in page
    assert "is less honest" in page
    assert "Knowledge or honesty" in page


def test_versions_as_they_would_be_when_recalibrated_stand_beside_the_others(compared, comparison, honest):
    assert list(comparison.recalibrated) == ["angle/2", "angle/3"], "the true one would gain nothing"
    scores = compared[0].scores
    for label, found in comparison.recalibrated.items():
        assert set(found) == {"crps_mean", "nll_mean"}
        assert found["crps_mean"].second == pytest.approx(np.nanmean(scores["crps"]), rel=1e-6)
        as_is = comparison.pairs[label].differences["crps_mean"]
        assert found["crps_mean"].difference < 0.2 * as_is.difference
    assert set(comparison.may_be_best_recalibrated) >= {"angle/1"}
    assert "angle/2" not in comparison.may_be_best_recalibrated
    assert comparison_data(comparison).matrix["angle/2, recalibrated"]["crps_mean"].side in ("", "worse")
    page = comparison_report(comparison)
    assert "congruence recalibrate FILE --version models:/angle/2" in page
    dishonest = compare_versions(honest, baseline="angle/2")
    assert dishonest.recalibrated["angle/2"]["crps_mean"].high < 0.0, "the baseline's own correction"


def test_a_recalibration_that_no_report_would_advise_stands_nowhere(compared):
    """It takes off half a percent, or makes the NLL worse; and none is said to be the best that is not."""

    def asked(version, crps, nll):
        scores = version.scores
        recalibrated = {"crps_recalibrated": scores["crps"] * crps, "nll_recalibrated": scores["nll"] + nll}
        return replace(version, scores=scores.assign(**recalibrated))

    for crps, nll, is_worth_it in ((0.995, -0.01, False), (0.9, 0.1, False), (0.995, -0.1, True), (0.9, -0.01, True)):
        found = compare_versions([asked(compared[0], 1.0, 0.0), asked(compared[1], crps, nll)], resamples=50)
        assert list(found.recalibrated) == list(found.corrections) == ["angle/2"] * is_worth_it
        assert any("recalibrated by what each states itself" in note for note in found.notes) == is_worth_it
    assert replace(found, best_recalibrated={"angle/1": 1.0}).may_be_best_recalibrated == []


def test_without_recalibrated_scores_nobody_says_why(compared):
    assert compare_pair(compared[1], compared[0]).won is None


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


def measured(name: str, rows: int, bias: float, seed: int) -> ComparedVersion:
    """A version that is ``bias`` off, on rows of its own."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 3))
    y = x[:, 0] + np.exp(0.3 * x[:, 1]) * draw.normal(size=rows)
    law = Normal(x[:, 0] + bias, np.exp(0.3 * x[:, 1]))
    result = congruence_of(x, y, law, seed)
    made = version(name, np.arange(rows), np.ones(rows), f"{name} {seed}")
    metrics = {"cce_mean": MetricValue(result.mean), "cce_squared_mean": MetricValue(*result.squared_mean_interval())}
    noise = result.uncertainty.influence.noise
    return replace(made, metrics=metrics, influence_noise=noise, scores=made.scores.assign(cce=result.values))


@pytest.mark.parametrize(
    ("biases", "truth", "least", "most"),
    [((0.4, 0.4), 0.0, 0.0, 0.15), ((0.0, 0.0), 0.0, 0.0, 0.15), ((0.4, 0.0), 0.147, 0.3, 1.0)],
)
def test_cce_on_other_rows_is_compared_without_their_noise(
    biases: tuple[float, float], truth: float, least: float, most: float
) -> None:
    """That of 120 rows of a true version is far above that of 360; the version that is .4 off has .147 on 12,000."""
    covered, found, higher, times = 0, 0, 0, 24
    for seed in range(times):
        pair = compare_pair(measured("a", 120, biases[0], 2 * seed), measured("b", 360, biases[1], 2 * seed + 1))
        covered += pair.differences["cce_mean"].low <= truth <= pair.differences["cce_mean"].high
        found += float(pair.differences["cce_squared_mean"].p_value or 0.0) < 0.05
        higher += pair.first.metrics["cce_mean"].value > pair.second.metrics["cce_mean"].value
        assert "the root of its mean square beyond this" in pair.notes[0]
    assert covered >= 0.85 * times
    assert least * times <= found <= most * times
    assert higher >= 0.8 * times or biases[0] > 0.0


def test_they_are_wider_than_those_of_pairs_and_say_so() -> None:
    draw = np.random.default_rng(1)
    common = draw.normal(size=400)
    first = version("a", np.arange(400), common + 0.1 * draw.normal(size=400), "A")
    second = version("b", np.arange(400), common + 0.1 * draw.normal(size=400), "B")
    apart = compare_pair(first, second)
    paired = point_differences(Pair(first, second, np.ones(400, bool)), resamples=200, seed=0)["nll_mean"]
    found = apart.differences["nll_mean"]
    assert found.difference == pytest.approx(paired.difference)
    assert found.standard_error > 8 * paired.standard_error
    expected = np.sqrt(sum(v.scores["nll"].var(ddof=1) / 400 for v in (first, second)))
    assert found.standard_error == pytest.approx(expected, rel=0.02)
    assert "cce_mean" not in apart.differences
    assert "an evaluation does not hold its noise" in apart.notes[0]
    assert "judged on different rows (400 and 400)" in apart.notes[0]
    assert "on the 400 keys that both scored" in apart.notes[0]
    page = comparison_report(compare_versions([first, second], baseline="a"))
    assert "judged on different rows" in page


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("row_weight", np.r_[np.full(10, 100.0), np.ones(390)], "effective rows of 400"),
        ("row_group", np.r_[np.zeros(200, int), 1 + np.arange(200) // 10], "one group holds 50 % of the rows"),
    ],
)
def test_other_rows_of_which_a_few_decide_have_no_interval_as_the_same_rows_have_none(
    column: str, values: np.ndarray, why: str
) -> None:
    draw = np.random.default_rng(2)
    first, second = (version(name, np.arange(400), draw.normal(size=400), name.upper()) for name in "ab")
    weighted = replace(first, scores=first.scores.assign(target=draw.normal(size=400), **{column: values}))
    for one, two in ((weighted, second), (second, weighted)):
        pair = compare_pair(one, two)
        assert why in pair.refused
        assert not pair.differences


def test_versions_that_are_asked_for_predictions_still_need_the_same_rows() -> None:
    values = np.ones(5)
    with pytest.raises(ProtocolError, match="split"):
        compare_pair(version("a", values, values, "A", is_stored=False), version("b", values, values, "B"))


def test_the_chance_of_few_draws_is_no_difference_of_cce():
    """Of 5 draws the mean CCE is 8 % above that of 50 of the same distribution, which is no fault of theirs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    z = x[:, :1] + rng.normal(size=(300, 56))
    laws = {"few": Samples(z[:, 1:6]), "many": Samples(z[:, 6:])}
    both = congruence.compare(x, z[:, 0], laws, baseline="many", metrics=["cce"], progress=False).comparison
    few, many = (next(each for each in both.versions if each.label == label) for label in ("few", "many"))
    noise = [
        np.mean(each.column("cce", each.valid) ** 2) - each.metrics["cce_squared_mean"].value for each in (few, many)
    ]
    found, one, two = both.pairs["few"].differences["cce_mean"], *(v.metrics["cce_mean"].value for v in (few, many))
    added = (noise[0] - noise[1]) / (one + two)
    assert found.difference == pytest.approx(one - two - added, abs=1e-9)
    assert 0.04 < added / two < 0.13
    assert (found.low + found.high) / 2.0 == pytest.approx(found.difference, abs=1e-9)
    assert any("chance of few draws" in note for note in both.notes)
