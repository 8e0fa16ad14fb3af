"""What is printed of versions whose faults are known is true of the rows that it speaks of, and said once."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from readings import SENTENCES
from scipy import stats
from scipy.special import ndtr

import congruence
from congruence.kernels import Normal, Poisson, Samples
from congruence.kernels.conditional_calibration.rare import extremes
from congruence.kernels.conditional_calibration.reading import group_reading
from congruence.kernels.conditional_calibration.searched_ranges import Feature, SearchedRows
from congruence.kernels.conditional_calibration.segments import faulty_segments
from congruence.tasks.report.evaluation import headlines, worst_coverage
from congruence.tasks.scores.correction import _range
from congruence.tasks.sentences.calibration import p_value_in_words, percent
from congruence.tasks.sentences.findings import Finding

ROWS = 800
RNG = np.random.default_rng(2)
X = RNG.normal(size=(ROWS, 3))
TABLE = pd.DataFrame(X, columns=["age", "wind", "load"])
MEAN, SPREAD = 10.0 + 2.0 * X[:, 0], np.exp(0.3 * X[:, 1])
Y = RNG.normal(MEAN, SPREAD)
WIDE = SPREAD * np.where(X[:, 2] > 0.0, 2.0, 1.0)
"""Twice too wide in half of the rows."""


def told(y: np.ndarray, predicted: object, **asked: object) -> tuple[str, ...]:
    return congruence.evaluate(TABLE, y, predicted, metrics=SENTENCES, progress=False, **asked).sentences


def test_rows_that_are_too_wide_in_places_have_no_heavier_tails() -> None:
    """Fewer targets than predicted lie far out."""
    said = told(Y, Normal(MEAN, WIDE))
    found = re.match(r"Where load is above (\S+) \((\d+) rows", said[0])
    assert found, said
    assert int(found[2]) == np.count_nonzero(X[:, 2] > float(found[1]))
    assert not any("heavier tails" in each for each in said)
    assert not any("too small" in each for each in said)
    heavy = ndtr(RNG.standard_t(3.0, 2000) / 3.0**0.5)
    assert group_reading(heavy).dominant == "tails"
    assert group_reading(ndtr(RNG.uniform(-(3.0**0.5), 3.0**0.5, 2000))).strength < 0.0


@pytest.mark.parametrize("levels", [9, 99])
def test_places_share_a_fault_of_quantiles_whichever_level_tells_it_best_there(levels: int) -> None:
    at = np.arange(1, levels + 1) / (levels + 1.0)
    said = told(Y, MEAN[:, None] + 2.0 * SPREAD[:, None] * stats.norm.ppf(at), levels=list(at))
    assert re.match(r"The \d+ % interval holds \d+ % of the targets", said[0])
    assert said[1:] == ("All places share the overall fault.",)


def test_a_range_has_no_end_that_says_nothing_and_is_told_where_it_is_wrong_itself() -> None:
    """Of the right half beside a wrong one it was said that its spread is 1.06 times too large (0.91 to 1.25)."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=800)
        pit = ndtr(rng.normal(size=800) / np.where(x > 0.0, 2.0, 1.0))
        (first, *_) = faulty_segments([Feature("x", x)], SearchedRows.of(pit), draws=39, most=1)
        assert first.ranges[0].up_to == np.inf
        assert first.ranges[0].above == pytest.approx(0.0, abs=0.3)


def test_a_segment_within_another_with_the_same_fault_is_not_told_again() -> None:
    """170 rows up to -0.977 were told after 169 rows up to -0.98."""
    y = stats.truncnorm.rvs(-X[:, 0], np.inf, loc=X[:, 0], random_state=np.random.default_rng(3))
    said = told(y, Normal(X[:, 0], np.ones(ROWS)))
    ends = [float(end) for each in said for end in re.findall(r"^Where age is up to (\S+) \(", each)]
    assert len(ends) == len({round(end, 1) for end in ends}) <= 2, said


def test_a_slice_of_whole_numbers_is_not_told_again_as_a_range_of_one_of_them() -> None:
    rng = np.random.default_rng(0)
    digit, x = rng.integers(0, 5, 1500), rng.standard_normal(1500)
    predicted = Normal(x, np.where(digit == 1, 1.0 / 1.3, 1.0 / 2.1))
    given = pd.DataFrame({"x": x, "digit": digit}), x + rng.standard_normal(1500), predicted
    found = congruence.evaluate(*given, slices=["digit"], metrics=SENTENCES, progress=False)
    assert [each.startswith("Where digit is 1 (") for each in found.sentences] == [False, True, False], found.sentences


def test_a_spread_that_is_called_wrong_has_no_interval_that_calls_it_right() -> None:
    """Of all rows but a range a sixth are too narrow: "too small by a factor of 1.04 (0.993 to 1.09)" was said."""
    rng = np.random.default_rng(0)
    place, x = rng.integers(0, 6, 1500), rng.standard_normal(1500)
    rng.random(1500), rng.choice(3, 1500)  # of columns that played no part when it was said
    predicted = Normal(x - 0.8 * (x > 1.0), np.where(place == 0, 0.6, 1.0))
    given = pd.DataFrame({"x": x, "place": place}), x + rng.standard_normal(1500), predicted
    found = congruence.evaluate(*given, slices=["place"], metrics=SENTENCES, progress=False)
    (said,) = (each for each in found.sentences if each.startswith("In all other rows, the predicted spread is too"))
    low, high = map(float, re.findall(r"\(([\d.]+) to ([\d.]+)\)", said)[0])
    assert low > 1.0, said
    assert high > low


def test_a_fault_of_half_of_the_rows_is_told_there_whatever_the_mean_over_all_rows_has() -> None:
    """All rows have half of it: that the predicted spread is 1.31 times too large was all that was said."""
    draws = Samples(MEAN[:, None] + WIDE[:, None] * RNG.normal(size=(ROWS, 200)))
    said = told(Y, draws)
    assert re.match(r"Where load is above .* the predicted spread is too large by a factor of [12]\.\d+", said[0]), said
    half = Finding("a", "where it is a", 500, 0.5, "", "", 0.36, "spread-", 0.6)
    assert not half.repeats(Finding("", "", 1000, 1.0, "", "", 0.09, "spread-", 0.31))
    assert half.repeats(Finding("", "", 1000, 1.0, "", "", 0.25, "spread-", 0.5))


def test_one_target_where_nothing_was_predicted_is_found() -> None:
    """Of one row 50 spreads away it was said that predictions agree with the targets."""
    said = told(np.where(np.arange(ROWS) == 5, 60.0, Y), Normal(MEAN, SPREAD))
    expected = (
        "1 of 800 targets lies where the predictions put less than 1e-9; fewer than 0.001 were to be expected (row 5)."
    )
    assert said[0] == expected
    rng, false = np.random.default_rng(0), 0
    for _ in range(400):
        y = rng.normal(size=50)
        found = extremes(y, Normal(np.zeros(50), np.ones(50)))
        false += found.p_value is not None and found.p_value <= 0.05
    assert false <= 20


def test_rare_events_that_one_half_of_the_rows_has_none_of_are_evaluated_all_the_same() -> None:
    """Trying a correction on a half without any was refused, and with it the evaluation."""
    y = (np.arange(ROWS) < 3).astype(float)
    found = congruence.evaluate(TABLE, y, Poisson(np.full(ROWS, 0.1)), progress=False)
    assert found.verdict == "wrong"
    assert found.evaluation.preview is None


def test_draws_are_not_asked_whether_their_spread_is_a_variance() -> None:
    """The spread of five draws is so noisy that spreads look like the square of what is needed."""
    draws = Samples(MEAN[:, None] + WIDE[:, None] * RNG.normal(size=(ROWS, 5)))
    assert not any("square" in each for each in told(Y, draws))


def test_quantiles_that_are_given_as_draws_are_asked_about() -> None:
    """Ten right quantiles as draws beat the truth: their CRPS was lower, and nothing but their spread was named."""
    quantiles = MEAN[:, None] + WIDE[:, None] * stats.norm.ppf(np.arange(0.05, 1, 0.1))
    asked = "The 10 draws of each row stand in rising order: are they quantiles?"
    assert told(Y, Samples(quantiles))[0].startswith(asked)
    draws = MEAN[:, None] + SPREAD[:, None] * RNG.normal(size=(ROWS, 10))
    assert any(each.startswith(asked) for each in told(Y, Samples(np.sort(draws, axis=1))))
    assert not any("rising order" in each for each in told(Y, Samples(draws)))
    assert not any("rising order" in each for each in told(Y, Samples(np.repeat(MEAN[:, None], 10, axis=1))))


def test_what_counts_should_hold_is_said_beside_what_they_hold() -> None:
    rate = np.exp(0.5 * X[:, 0])
    law = Poisson(rate)
    low, high = stats.poisson.ppf([[0.05], [0.95]], rate)
    right = float(np.mean(stats.poisson.cdf(high, rate) - stats.poisson.cdf(low - 1.0, rate)))
    found = congruence.evaluate(TABLE, RNG.poisson(rate).astype(float), law, progress=False)
    (card,) = (each for each in headlines(found.evaluation) if each.name == "coverage_90")
    assert card.comment.startswith(f"{100 * right:.1f} % is right, as some values have masses")
    found = congruence.evaluate(TABLE, Y, Normal(MEAN, 3.0 * SPREAD), progress=False)
    (card,) = (each for each in headlines(found.evaluation) if each.name == "coverage_90")
    assert card.comment.startswith("90 % is right; worst: ")
    slices = {"slice": ["site", "site", "site"], "value": ["Bern", "Oslo", "Rome"], "rows": [27, 541, 132]}
    table = pd.DataFrame(slices | {"coverage_90": [0.11, 0.85, 0.83]})
    assert worst_coverage(replace(found.evaluation, slices=table), 0.9) == ("where site is Bern", 0.11)
    by_chance = table.assign(rows=[12, 541, 132], coverage_90=[0.8, 0.85, 0.83])
    assert worst_coverage(replace(found.evaluation, slices=by_chance), 0.9) == ("where site is Oslo", 0.85)
    assert (
        "Once the model is registered, <code>congruence recalibrate FILE --version models:/NAME/1</code>" in found.page
    )


def test_numbers_stand_on_their_side_of_a_limit_and_with_their_unit() -> None:
    assert [p_value_in_words(p) for p in (0.0498, 0.0502, 0.012, 1e-5)] == [
        "p = 0.0498",
        "p = 0.05",
        "p = 0.012",
        "p < 0.001",
    ]
    assert _range(np.array([-0.5, 0.5]), " of their spreads") == "-0.45 to 0.45 of their spreads, by the input"


def test_a_share_is_written_alike_everywhere_and_told_from_what_stands_beside_it() -> None:
    written = {
        0.0: "0 %",
        1e-12: "0 %",
        1e-5: "under 0.01 %",
        0.0013: "0.13 %",
        0.031: "3.1 %",
        0.05: "5 %",
        0.71: "71 %",
    }
    written |= {
        0.95: "95 %",
        0.9943: "99.43 %",
        0.99999: "over 99.99 %",
        1.0: "100 %",
        12.345: "1,234 %",
        -0.004: "-0.4 %",
    }
    assert {share: percent(share) for share in written} == written
    assert (percent(0.523, 0.516), percent(0.516, 0.523)) == ("52.3 %", "51.6 %")
    assert (percent(0.95, 0.91), percent(0.5, 0.5)) == ("95 %", "50 %")
