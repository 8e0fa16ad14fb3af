"""Counts: scored without random numbers of our own, with their level and power, and read in their own terms."""

import numpy as np
import pytest
import scipy.integrate
from scipy import stats

from congruence.kernels import (
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    Samples,
    prepare,
)
from congruence.kernels.conditional_calibration.counts import (
    CountRows,
    Tally,
    by_group,
    count_reading,
)
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.dependence.blocks import RowDependence, blocks_of_groups
from congruence.kernels.kernel_functions import RBF
from congruence.kernels.pit import cell_step, mean_scores, pit_scores
from congruence.tasks.sentences.counts import count_finding
from congruence.tasks.sentences.findings import sentences_of


def test_mean_scores_are_integrals_over_the_jump() -> None:
    lower, upper = np.array([0.0, 0.2, 0.7, 0.4]), np.array([0.95, 0.9, 1.0, 0.4 + 1e-12])
    for a, b, found in zip(lower, upper, mean_scores(lower, upper), strict=True):
        direct = [scipy.integrate.quad(lambda u, j=j: pit_scores([u])[0, j], a, b)[0] / (b - a) for j in range(4)]
        np.testing.assert_allclose(found, direct, atol=1e-3 if b - a < 1e-9 else 1e-12)


@pytest.fixture(scope="module")
def split() -> tuple[PreparedCalibration, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((800, 2))
    return prepare_calibration(x, input_kernel=RBF(0.5), settings=CalibrationSettings(draws=199, directions=30)), x


def test_no_seed_and_no_key_changes_a_p_value(split) -> None:
    prepared, x = split
    rate = 0.3 * np.exp(0.5 * x[:, 0])
    y = np.random.default_rng(1).poisson(rate)
    one, other = (prepared.version(y, Poisson(rate), seed=seed, keys=np.arange(800) + seed) for seed in (0, 9))
    assert one.test.p_value == other.test.p_value
    assert one.test.effects == other.test.effects
    np.testing.assert_array_equal(one.reading.ratios, other.reading.ratios)


def test_level_and_power_of_rare_counts(split) -> None:
    prepared, x = split
    rate = 0.08 * np.exp(0.7 * x[:, 0])
    rng = np.random.default_rng(2)
    true, flat = Poisson(rate), Poisson(np.full(800, rate.mean()))
    targets = [rng.poisson(rate) for _ in range(40)]
    assert sum(prepared.test_version(y, true).p_value <= 0.05 for y in targets) <= 6
    assert sum(prepared.test_version(y, flat).p_value <= 0.05 for y in targets[:10]) >= 8
    law = NegativeBinomial(rate, np.full(800, 0.5))
    assert sum(prepared.test_version(law.sample(1, seed=s)[:, 0], law).p_value <= 0.05 for s in range(20)) <= 4


def test_smoothed_scores_of_true_counts_have_the_stated_spread(split) -> None:
    prepared, x = split
    rate = 0.1 * np.exp(0.5 * x[:, 0])
    rng = np.random.default_rng(3)
    readings = [prepared.version(rng.poisson(rate), Poisson(rate)).reading for _ in range(60)]
    spread = np.std([reading.ratios for reading in readings], axis=0)
    np.testing.assert_allclose(spread.mean(axis=0), 1.0, atol=0.15)


@pytest.mark.parametrize("step", [0.25, 1.0, 2.0])
def test_a_right_version_of_rounded_targets_is_left_alone_and_a_wrong_one_is_found(step: float) -> None:
    """The same mean in all rows: PIT values lie on few points, on which .4 of right versions were called wrong."""
    rng, n = np.random.default_rng(6), 100
    prepared = prepare_calibration(rng.standard_normal((n, 2)), settings=CalibrationSettings(draws=199, directions=30))
    right, narrow, low = Normal(np.zeros(n), 1.0), Normal(np.zeros(n), 1.0 / 1.5), Normal(np.full(n, -0.5), 1.0)
    targets = [np.round(rng.standard_normal(n) / step) * step for _ in range(60)]
    assert sum(prepared.test_version(y, right).p_value <= 0.05 for y in targets) <= 7
    for law in (narrow, low):
        assert sum(prepared.test_version(y, law).p_value <= 0.05 for y in targets[:10]) >= 8


def test_rounded_targets_of_a_right_version_are_congruent_and_those_in_groups_are_calibrated() -> None:
    """Rounded to two spreads all of 100 right versions were incongruent; of groups .16 were not calibrated."""
    rng, n = np.random.default_rng(7), 250
    x, law, groups = rng.standard_normal((n, 2)), Normal(np.zeros(n), 1.0), np.arange(n) // 5
    split = prepare(x, input_kernel=RBF(0.5))
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=199, directions=30))
    dependence, found = RowDependence.of(n, groups=groups), []
    for seed in range(40):
        y = 2.0 * np.round(rng.standard_normal(n) / 2.0)
        together = np.sqrt(0.5) * (rng.standard_normal(50)[groups] + rng.standard_normal(n))
        of_groups = prepared.test_version(2.0 * np.round(together / 2.0), law, dependence=dependence)
        found.append([split.congruence_test(y, law, draws=99, seed=seed).p_value <= 0.05, of_groups.p_value <= 0.05])
    assert np.sum(found, axis=0).max() <= 6
    assert split.congruence_test(2.0 * np.round((x[:, 0] + 1.0) / 2.0), law, draws=99).p_value <= 0.05


def test_several_rounded_targets_and_those_of_draws_are_judged_by_their_cells() -> None:
    """At two spreads every right version was incongruent, and .4 of the ensembles were not calibrated."""
    rng, n, spread = np.random.default_rng(9), 120, np.array([1.0, 3.0])
    x = rng.standard_normal((n, 2))
    split, few = prepare(x, input_kernel=RBF(0.5)), CalibrationSettings(draws=199, directions=30)
    prepared, found = prepare_calibration(x, input_kernel=RBF(0.5), settings=few), []
    for seed in range(30):
        values = rng.standard_normal((n, 21))
        y, law = 2.0 * np.round(values[:, 0] / 2.0), Samples(values[:, 1:])
        tests = [split.congruence_test(y, law, draws=99, seed=seed), prepared.test_version(y, law, seed=seed)]
        if seed < 3:
            pairs = 2.0 * np.round(rng.standard_normal((n, 2)) / 2.0) * spread
            of_two = MultivariateNormal(np.zeros((n, 2)), np.broadcast_to(spread, (n, 2)))
            drawn = Samples(spread * rng.standard_normal((n, 5, 2)))
            tests += [split.congruence_test(pairs, each, draws=99, seed=seed) for each in (of_two, drawn)]
            tests.append(prepared.test_version(pairs, drawn, seed=seed))
        found.append([test.p_value <= 0.05 for test in tests])
    assert np.sum([each[:2] for each in found], axis=0).max() <= 5
    assert np.sum([each[2:] for each in found[:3]], axis=0).max() <= 1
    assert split.congruence_test(y, Samples(0.5 * values[:, 1:]), draws=99).p_value <= 0.05
    assert split.congruence_test(y + 2.0, law, draws=99).p_value <= 0.05


def test_rounding_that_is_finer_than_matters_changes_nothing() -> None:
    rng = np.random.default_rng(8)
    y, law = rng.standard_normal(400), Normal(np.zeros(400), 1.0)
    assert cell_step(y, law) is None
    assert cell_step(np.round(y, 2), law) is None
    assert cell_step(np.round(2.0 * y) / 2.0, law) == 0.5
    assert cell_step(np.round(np.exp(y)), Poisson(np.full(400, 2.0))) is None  # counts have jumps of their own


MANY = 20_000
RNG = np.random.default_rng(5)
RATE = 0.05 * np.exp(0.5 * RNG.normal(size=MANY))
REGION = RNG.integers(20, size=MANY)
GROUPS = {f"Region R{number}": np.flatnonzero(number == REGION) for number in range(20)}


def said(y: np.ndarray, law: Poisson) -> list[str]:
    rows = CountRows.of(y, law)
    readings, q_values = by_group(lambda chosen: count_reading(rows, chosen), GROUPS, 1)
    places = [count_finding(found, name) for name, found in readings.items() if q_values[name] <= 0.05 and found.is_off]
    overall = count_reading(rows)
    is_wrong = overall.is_off and overall.p_value <= 0.05
    sentences, _ = sentences_of(count_finding(overall) if is_wrong else None, places, len(GROUPS))
    assert len(sentences) <= 5
    assert not any(word in " ".join(sentences) for word in ("tails", "skew", "spreads above", "spreads below"))
    return sentences


def test_a_mean_that_is_too_large_is_said_first_with_the_ratio_and_the_counts() -> None:
    y = RNG.poisson(RATE).astype(float)
    sentences = said(y, Poisson(1.9 * RATE))
    ratio = y.sum() / (1.9 * RATE.sum())
    assert sentences[0].startswith(f"The predicted mean is {1.0 / ratio:.3g} times too high (")
    assert f"{y.sum():,.0f} observed, {1.9 * RATE.sum():,.0f} expected; is an exposure missing?" in sentences[0]


def test_targets_of_0_and_1_have_no_exposure() -> None:
    y = (np.random.default_rng(7).random(MANY) < RATE).astype(float)
    (first, *_) = said(y, Poisson(0.5 * RATE))
    assert "times too low (" in first
    assert first.endswith("expected.")


def test_zeros_that_are_too_few_are_said_before_a_mean_that_is_nearly_right() -> None:
    y = stats.nbinom.rvs(0.3, 0.3 / (0.3 + RATE * 4), random_state=1).astype(float)
    sentences = said(y, Poisson(RATE * 4 * 1.08))
    assert sentences[0].startswith("The counts are more widely spread than predicted: ")
    assert f"{100 * np.mean(y == 0):.0f} % of the targets are 0 where" in sentences[0]


def test_a_slice_without_any_of_the_counts_that_were_expected_is_named() -> None:
    y = RNG.poisson(RATE).astype(float)
    y[GROUPS["Region R7"]] = 0.0
    expected = RATE[GROUPS["Region R7"]].sum()
    text = " ".join(said(y, Poisson(RATE)))
    assert f"the predicted mean is too high: 0 observed, {expected:.3g} expected" in text
    assert "On Region R7 (" in text


def test_no_count_where_each_group_of_rows_expects_as_many_is_off() -> None:
    """Sums of groups that do not vary said that nothing could be known."""
    rows = CountRows.of(np.zeros(1000), Poisson(np.full(1000, 0.1)))
    reading = count_reading(rows, blocks=blocks_of_groups(np.arange(1000) // 10, 1000))
    assert reading.is_off
    assert reading.p_value < 1e-6


def test_a_true_version_is_seldom_blamed_and_its_interval_covers() -> None:
    named, covered = 0, 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        y = rng.poisson(RATE).astype(float)
        named += "in no place by enough" not in said(y, Poisson(RATE))[0]
        rows = CountRows.of(y, Poisson(RATE))
        reading = count_reading(rows, GROUPS["Region R3"])
        covered += reading.low <= 1.0 <= reading.high
    assert named <= 12, "before the verdict of all tests, which closes over it"
    assert covered >= 108


@pytest.mark.parametrize("observed", [0.0, 3.0, 20.0])
def test_the_p_value_of_a_poisson_sum_is_the_exact_one(observed: float) -> None:
    law = stats.poisson(9.3)
    exact = min(1.0, 2.0 * min(law.cdf(observed), law.sf(observed - 1.0)))
    assert Tally(observed, 9.3, 9.3).p_value == pytest.approx(exact, rel=1e-12)


def test_what_are_no_counts_with_many_zeros_are_not_read_so() -> None:
    y = np.arange(10.0, 40.0)
    assert CountRows.of(y, Poisson(y)) is None
    assert CountRows.of(y, Normal(y, np.ones(30))) is None
