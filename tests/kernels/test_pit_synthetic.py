"""The synthetic histograms, the measures and the parts of the network, against direct definitions."""

import numpy as np
import pytest
import scipy.stats
from scipy.special import ndtr, ndtri
from train_pit_interpreter import draw

from congruence.kernels.pit import smooth_test
from congruence.kernels.pit_interpreter import shape
from congruence.kernels.pit_interpreter.shape import FEATURES, decompose, features


def test_bins_are_the_twenty_of_the_paper_with_the_outer_two_split() -> None:
    values = np.random.default_rng(0).random(5000)
    counts = shape.count(values)
    assert counts.sum() == 5000
    np.testing.assert_array_equal(shape.merge(counts), np.histogram(values, 20, (0.0, 1.0))[0])
    assert shape.histogram(counts).mean() == pytest.approx(1.0)


def test_the_paper_s_prior_is_the_paper_s() -> None:
    """Section 4: variances 2^U(-2, 2), d = 2 (1 - a^2), so means within +-0.99, and 10^4 outcomes."""
    drawn = draw(np.random.default_rng(1), 2000, prior="paper")
    assert set(drawn.rows) == {10_000}
    np.testing.assert_array_equal(drawn.counts.sum(axis=1), drawn.rows)
    measured = shape.measure(drawn.cdf)
    assert np.abs(measured.location).max() < 1.0
    assert 0.5 <= measured.spread.min() < measured.spread.max() < 2.2


def test_counts_follow_the_truth_that_comes_with_them() -> None:
    drawn = draw(np.random.default_rng(2), 200, rows=1_000_000)
    below = np.cumsum(drawn.counts, axis=1)[:, :-1] / 1_000_000
    truth = np.stack([np.interp(shape.NORMAL_EDGES, shape.SUPPORT, row) for row in drawn.cdf])
    assert np.abs(below - truth).max() < 0.01


def test_wide_prior_covers_the_sizes_the_faults_and_calibration() -> None:
    drawn = draw(np.random.default_rng(3), 3000)
    assert drawn.rows.min() < 50
    assert drawn.rows.max() > 500_000
    shares = shape.faults(shape.measure(drawn.cdf)).mean(axis=0)
    assert (shares > 0.05).all()
    assert 0.1 < shape.is_calibrated(drawn.cdf).mean() < 0.4


def test_measures_are_the_l_moments() -> None:
    """A normal has none of the faults; an exponential has L-skewness 1/3 and L-kurtosis 1/6 (Hosking, 1990)."""
    exponential = scipy.stats.expon(loc=-1.0).cdf(shape.SUPPORT)
    measured = shape.measure(np.stack([ndtr(shape.SUPPORT), ndtr((shape.SUPPORT - 0.4) / 1.3), exponential]))
    np.testing.assert_allclose(measured.location[:2], [0.0, 0.4], atol=1e-4)
    np.testing.assert_allclose(measured.spread[:2], [1.0, 1.3], atol=1e-3)
    np.testing.assert_allclose(measured.skewness, [0.0, 0.0, 1.0 / 3.0], atol=0.01)
    np.testing.assert_allclose(measured.tails, [0.0, 0.0, 1.0 / 6.0 - shape.NORMAL_L_KURTOSIS], atol=0.01)
    np.testing.assert_allclose(measured.valley, 0.0, atol=1e-9)
    assert shape.is_calibrated(ndtr(shape.SUPPORT)[None]).all()
    assert not shape.is_calibrated(ndtr(shape.SUPPORT + 0.5)[None]).any()


def test_features_are_zero_for_perfect_calibration() -> None:
    exact = np.round(np.diff(shape.EDGES) * 1e9)[None]
    seen = features(exact)
    assert seen.shape == (1, FEATURES)
    np.testing.assert_allclose(seen[:, :-1], 0.0, atol=1e-4)


def test_mixture_density_is_the_derivative_of_its_distribution_function() -> None:
    estimate = decompose(draw(np.random.default_rng(4), 20, rows=300).counts)
    parts = estimate.weights, estimate.means, estimate.scales
    at = np.linspace(-3.0, 3.0, 50)
    slope = (shape.mixture_cdf(*parts, at + 1e-5) - shape.mixture_cdf(*parts, at - 1e-5)) / 2e-5
    np.testing.assert_allclose(shape.mixture_density(*parts, at), slope, atol=1e-5)


def test_refinement_raises_the_likelihood_and_lowers_the_error_at_large_n() -> None:
    drawn = draw(np.random.default_rng(5), 300, rows=1_000_000)
    estimate = decompose(drawn.counts)
    before = estimate.weights, estimate.means, estimate.scales
    after = shape.refine(drawn.counts, *before)
    errors = [shape.wasserstein(shape.mixture_cdf(*p, shape.SUPPORT), drawn.cdf).mean() for p in (before, after)]
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.01

    def log_likelihood(parts: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
        at_edges = shape.mixture_cdf(*parts, shape.NORMAL_EDGES)
        share = np.maximum(np.diff(at_edges, axis=1, prepend=0.0, append=1.0), 1e-12)
        return (drawn.counts * np.log(share)).sum(axis=1)

    assert (log_likelihood(after) >= log_likelihood(before) - 1.0).mean() > 0.99


def test_smooth_test_keeps_its_level_and_has_power() -> None:
    rng = np.random.default_rng(6)
    for rows in (50, 300):
        p_values = np.array([smooth_test(rng.random(rows)).p_value for _ in range(2000)])
        assert 0.03 < (p_values < 0.05).mean() < 0.07
        assert (p_values < 0.01).mean() < 0.02
    assert smooth_test(ndtr(ndtri(rng.random(300)) * 1.4)).p_value < 1e-3
