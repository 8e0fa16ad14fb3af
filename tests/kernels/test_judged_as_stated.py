"""Predictions that state a few quantiles, or bins, are judged by these: cells, null, level, power, coverage, words."""

import numpy as np
import pytest
import scipy.stats

from congruence.kernels import RBF, Histogram, Normal, Quantiles, Samples, calibration_test, prepare
from congruence.kernels.conditional_calibration.counts import JumpScores, by_group
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.reading import level_reading
from congruence.kernels.dependence.blocks import blocks_of_groups
from congruence.kernels.distributions.recalibrated import recalibrated
from congruence.kernels.distributions.score_map import NormalScoreMap
from congruence.kernels.pit import cell_step, pit_values
from congruence.tasks.sentences.counts import level_fault, level_finding
from congruence.tasks.sentences.findings import sentences_of

LEVELS = np.array([0.05, 0.5, 0.95])
RNG = np.random.default_rng(3)


def of_normal(n: int, spread: float = 1.0) -> Quantiles:
    return Quantiles(LEVELS, np.tile(spread * scipy.stats.norm.ppf(LEVELS), (n, 1)))


def test_a_distribution_says_what_it_states() -> None:
    histogram = Histogram([0.0, 1.0, 2.0], [[0.3, 0.7]])
    assert [law.stated for law in (Normal([0.0], [1.0]), of_normal(1), histogram, Samples([[1.0, 2.0]]))] == [
        "all",
        "cells",
        "cells",
        "draws",
    ]
    assert Normal([0.0], [1.0]).cells(np.zeros(1)) is None
    np.testing.assert_allclose(histogram.pit_range(np.array([1.0])), [[0.0], [0.3]])
    np.testing.assert_allclose(histogram.pit_range(9.0), [[0.3], [1.0]])


def test_an_outcome_is_known_up_to_its_cell_and_one_at_a_quantile_lies_in_the_cell_below() -> None:
    y = np.array([-9.0, 0.0, 0.1, 1.6448536269514722, 7.0])
    low, high = of_normal(5).pit_range(y)
    np.testing.assert_allclose(low, [0.0, 0.05, 0.5, 0.5, 0.95])
    np.testing.assert_allclose(high, [0.05, 0.5, 0.95, 0.95, 1.0])
    pit = pit_values(np.full(4000, -0.1), of_normal(4000))
    assert scipy.stats.kstest((pit - 0.05) / 0.45, "uniform").pvalue > 0.01


def test_cells_beside_an_atom_are_one_where_the_atom_explains_the_outcomes() -> None:
    n = 1000
    y = np.where(np.arange(n) < 600, 0.0, np.arange(n) / n)
    law = Quantiles(LEVELS, np.column_stack([np.zeros(n), np.zeros(n), np.full(n, 0.95)]))
    low, high = law.pit_range(y)
    np.testing.assert_allclose(np.unique([low, high], axis=1).T, [[0.0, 0.95], [0.95, 1.0]])
    # With fewer zeros than the median of 0 needs, more lie above it than .45: it stays.
    few = np.where(np.arange(n) < 200, 0.0, np.arange(n) / n)
    low, high = law.pit_range(few)
    np.testing.assert_allclose(np.unique([low, high], axis=1).T, [[0.0, 0.5], [0.5, 0.95], [0.95, 1.0]])
    assert np.mean(high <= 0.5) == 0.2


def test_ties_on_a_grid_are_dealt_out_so_that_right_levels_hold() -> None:
    y = RNG.poisson(6.0, size=5000).astype(float)
    law = Quantiles(LEVELS, np.tile(scipy.stats.poisson.ppf(LEVELS, 6.0), (5000, 1)))
    held = [np.mean(law.pit_range(y)[1] <= level) for level in LEVELS]
    np.testing.assert_allclose(held, LEVELS, atol=2e-3)


@pytest.mark.parametrize("truth", [scipy.stats.norm(), scipy.stats.gamma(2.0), scipy.stats.t(3.0)])
def test_rounded_outcomes_are_in_cells_as_often_as_what_was_rounded(truth) -> None:
    """The same law in all rows: of their values, .1 too many or too few lie below a level that is right."""
    n, levels = 20_000, np.linspace(0.05, 0.95, 9)
    law = Quantiles(levels, np.tile(0.3 + truth.ppf(levels), (n, 1)))
    y = np.round(0.3 + truth.rvs(size=n, random_state=np.random.default_rng(3)))
    held = np.mean(law.cells(y, 1.0).place[:, None] <= np.arange(9), axis=0)
    np.testing.assert_allclose(held, levels, atol=0.012)
    assert cell_step(y, law) == 1.0
    assert cell_step(y, Quantiles(levels, np.round(law.values))) is None  # these tie, and are dealt out


def test_right_quantiles_of_rounded_targets_are_left_alone_and_wrong_ones_are_found() -> None:
    """All of the right ones were called wrong."""
    rng, n, levels = np.random.default_rng(5), 400, np.linspace(0.05, 0.95, 9)
    prepared = prepare_calibration(
        rng.standard_normal((n, 2)), settings=CalibrationSettings(draws=199, directions=30), input_kernel=RBF(0.5)
    )
    scores = scipy.stats.norm.ppf(levels)
    right, wide, low = (Quantiles(levels, np.tile(values, (n, 1))) for values in (scores, 1.4 * scores, scores - 0.4))
    targets = [np.round(rng.standard_normal(n)) for _ in range(20)]
    assert sum(prepared.test_version(y, right).p_value <= 0.05 for y in targets) <= 3
    assert all(prepared.test_version(y, law).p_value <= 0.05 for law in (wide, low) for y in targets[:3])


@pytest.mark.parametrize("levels", [np.array([0.1, 0.5, 0.9]), np.arange(1, 10) / 10.0])
@pytest.mark.parametrize("mean", [1.5, 5.0])
def test_right_quantiles_of_counts_are_left_alone_and_wrong_ones_are_found(levels: np.ndarray, mean: float) -> None:
    """Dealt out over all rows alike, of right ones .65 to 1.00 were called wrong at a mean of 1.5, to .90 at 5."""
    rng, n = np.random.default_rng(6), 1000
    x = rng.standard_normal((n, 2))
    rate = mean * np.exp(0.5 * x[:, 0])
    law = Quantiles(levels, scipy.stats.poisson.ppf(levels, rate[:, None]))
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=199), input_kernel=RBF(0.5))
    assert sum(prepared.test_version(rng.poisson(rate).astype(float), law).p_value <= 0.05 for _ in range(12)) <= 2
    assert all(prepared.test_version(rng.poisson(1.5 * rate).astype(float), law).p_value <= 0.05 for _ in range(2))


def test_a_recalibrated_version_states_the_cells_of_its_base() -> None:
    law = recalibrated(of_normal(5), NormalScoreMap.affine(np.zeros(5), np.full(5, 2.0)))
    low, high = law.pit_range(np.array([-9.0, -1.0, 0.1, 1.0, 7.0]))
    ends = [0.0, *scipy.stats.norm.cdf(scipy.stats.norm.ppf(LEVELS) / 2.0), 1.0]
    np.testing.assert_allclose(low, np.array(ends)[[0, 1, 2, 2, 3]], atol=1e-12)
    np.testing.assert_allclose(high, np.array(ends)[[1, 2, 3, 3, 4]], atol=1e-12)


@pytest.mark.parametrize(
    ("truth", "power"), [(scipy.stats.norm(), 0.9), (scipy.stats.gamma(2.0), 0.9), (scipy.stats.t(3.0), 0.5)]
)
def test_level_and_power_of_three_levels(truth, power: float) -> None:
    n, splits = 500, 60
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, 2))
    prepared = prepare_calibration(x, input_kernel=RBF(0.5), settings=CalibrationSettings(draws=199, directions=30))
    spread = np.exp(0.4 * x[:, 1])
    right = Quantiles(LEVELS, spread[:, None] * truth.ppf(LEVELS))
    wide = Quantiles(LEVELS, spread[:, None] * (truth.median() + 1.25 * (truth.ppf(LEVELS) - truth.median())))
    found = []
    for _ in range(splits):
        y = spread * truth.rvs(size=n, random_state=rng)
        found.append([prepared.version(y, law, read=False).test.p_value for law in (right, wide)])
    rejected = np.mean(np.array(found) <= 0.05, axis=0)
    assert rejected[0] <= 0.12
    assert rejected[1] >= power


def said(y: np.ndarray, law: Quantiles, groups: dict[str, np.ndarray]) -> list[str]:
    rows = JumpScores.of(y, law)
    readings, q_values = by_group(lambda chosen: level_reading(rows, chosen), groups, 2)
    places = [level_finding(found, name) for name, found in readings.items() if q_values[name] <= 0.05 and found.is_off]
    overall = level_reading(rows)
    return sentences_of(level_finding(overall) if overall.is_off else None, places, len(groups))[0]


def test_faults_are_told_as_coverage() -> None:
    n = 4000
    age = RNG.uniform(20.0, 90.0, size=n)
    groups = {"age up to 60": age <= 60.0, "age above 60": age > 60.0}
    y = RNG.standard_normal(n)
    first, *_ = said(1.4 * y, of_normal(n), groups)
    assert first.startswith("The 90 % interval holds 7")
    shifted = said(y + 0.3, of_normal(n), groups)[0]
    assert "% of the targets (" in shifted
    assert "lie at or below the 50 % quantile" in shifted
    there = said(np.where(age > 60.0, 1.6 * y, y), of_normal(n), groups)
    assert there[0].startswith("Where age is above 60 (")
    assert "the 90 % interval holds" in there[0]
    assert not any("tails" in each or "spread" in each for each in [first, shifted, *there])


def test_intervals_of_coverage_hold_the_share() -> None:
    reading = level_reading(JumpScores.of(1.4 * RNG.standard_normal(800), of_normal(800)))
    (interval,) = reading.intervals
    true = 1.0 - 2.0 * scipy.stats.norm.sf(1.6448536269514722 / 1.4)
    assert interval.low < true < interval.high
    assert level_fault(reading).startswith("90 % interval holds 7")


def test_an_interval_that_holds_every_target_is_a_fault_of_rows_in_groups_too() -> None:
    """Sums that are alike in all groups had no variance, and the fault no certainty: a place of 21 rows was named."""
    rows = JumpScores.of(RNG.uniform(-1.5, 1.5, 800), of_normal(800))
    reading = level_reading(rows, blocks=blocks_of_groups(np.arange(800) // 8, 800))
    assert level_fault(reading) == "90 % interval holds 100 %"
    assert reading.intervals[0].low == pytest.approx(1.0 - 0.038, abs=0.002)  # as of 100 rows, one a group
    half = JumpScores.of(np.repeat(RNG.permutation(100) < 70, 8) * 9.0, of_normal(800))
    (alike,) = level_reading(half, blocks=blocks_of_groups(np.arange(800) // 8, 800)).intervals
    (alone,) = level_reading(half[::8]).intervals
    assert alike.high - alike.low == pytest.approx(alone.high - alone.low, rel=0.1)


@pytest.mark.parametrize(
    "truth", [scipy.stats.norm(), scipy.stats.gamma(2.0), scipy.stats.t(3.0)], ids=["normal", "gamma", "t(3)"]
)
def test_congruence_leaves_open_where_a_target_lies_in_its_cell(truth) -> None:
    """CCE of right quantiles was twice to three times that of a true version, and lower where they were too close."""
    n, splits = 300, 40
    rng = np.random.default_rng(5)
    x = rng.standard_normal((n, 2))
    prepared = prepare(x, input_kernel=RBF(0.5), regularization=0.1)
    right, low, close = (
        Quantiles(LEVELS, np.tile(truth.median() + factor * (truth.ppf(LEVELS) - truth.median()) - shift, (n, 1)))
        for shift, factor in ((0.0, 1.0), (0.6, 1.0), (0.0, 0.75))
    )
    p_values, errors = [], []
    for _ in range(splits):
        y = truth.rvs(size=n, random_state=rng)
        found, tested = prepared.evaluate(y, right, draws=99), prepared.congruence_test(y, low, draws=99)
        p_values.append([found.p_value, tested.p_value, calibration_test(y, right).p_value])
        wrong = [prepared.conditional_congruence_error(y, law).mean for law in (low, close)]
        errors.append([found.mean, *wrong, found.band.mean])
    of_right, of_low, of_pairs = np.mean(np.array(p_values) <= 0.05, axis=0)
    assert max(of_right, of_pairs) <= 0.15
    assert of_low >= 0.9
    right_error, low_error, close_error, expected = np.mean(errors, axis=0)
    assert right_error == pytest.approx(expected, rel=0.15)
    assert min(low_error, close_error) > 1.05 * right_error
