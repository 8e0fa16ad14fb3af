"""Counts are scored without random numbers of our own: the definition, the null of the version, level and power."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate

from congruence.kernels import NegativeBinomial, Normal, Poisson, ZeroInflated
from congruence.kernels.conditional_calibration.counts import TAIL, JumpScores
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.kernel_functions import RBF
from congruence.kernels.pit import mean_scores, pit_scores


def test_mean_scores_are_integrals_over_the_jump() -> None:
    lower, upper = np.array([0.0, 0.2, 0.7, 0.4]), np.array([0.95, 0.9, 1.0, 0.4 + 1e-12])
    for a, b, found in zip(lower, upper, mean_scores(lower, upper), strict=True):
        direct = [scipy.integrate.quad(lambda u, j=j: pit_scores([u])[0, j], a, b)[0] / (b - a) for j in range(4)]
        np.testing.assert_allclose(found, direct, atol=1e-3 if b - a < 1e-9 else 1e-12)


@pytest.mark.parametrize("law", [Poisson([0.02, 3.0, 30.0]), ZeroInflated(Poisson([2.0, 5.0, 0.3]), [0.7, 0.1, 0.5])])
def test_they_have_mean_zero_and_the_stated_variance(law: Poisson) -> None:
    counts = JumpScores.of(np.zeros(3), law)
    assert counts is not None
    starts = np.concatenate([np.zeros((3, 1)), counts.ends[:, :-1]], axis=1)
    chance, scores = counts.ends - starts, mean_scores(starts, counts.ends)
    np.testing.assert_allclose(np.einsum("nk,nkj->nj", chance, scores), 0.0, atol=1e-6)
    np.testing.assert_allclose(np.einsum("nk,nkj->nj", chance, scores**2), counts.variance, 1e-5)
    drawn = counts.drawn(np.random.default_rng(1).random((3, 10_000)))
    np.testing.assert_allclose(drawn.var(axis=2), counts.variance, rtol=0.2, atol=0.01)


@pytest.mark.parametrize(
    "law",
    [
        Poisson([0.02, 3.0, 30.0]),
        NegativeBinomial(np.array([0.02, 3.0, 90.0]), np.array([0.0, 0.4, 0.2])),
        ZeroInflated(Poisson([2.0, 5.0, 0.3]), [0.7, 0.1, 0.5]),
    ],
)
def test_tables_of_each_row_s_own_counts_are_the_cdf_and_parts_know_their_variances(law: Poisson) -> None:
    counts = JumpScores.of(np.zeros(3), law)
    assert counts is not None
    table = law.quantile(np.array([[TAIL]])) + np.arange(counts.ends.shape[1])
    np.testing.assert_allclose(law.cumulative(table), law.cdf(table), atol=1e-13)
    some = counts[np.array([2, 0])].variance
    np.testing.assert_allclose(some, counts.variance[[2, 0]], rtol=1e-9)
    np.testing.assert_array_equal(counts.variance[[2, 0]], counts[np.array([2, 0])].variance)


def test_laws_that_are_no_counts_are_left_alone() -> None:
    assert JumpScores.of(np.zeros(3), Normal(np.zeros(3), 1.0)) is None


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
