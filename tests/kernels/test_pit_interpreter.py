"""The PIT-histogram interpreter: its parts by definition, what it says of known truths, when it says nothing."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import ndtr, ndtri
from scipy.stats import wasserstein_distance
from train_pit_interpreter import draw

from congruence.kernels.distributions.continuous import Normal
from congruence.kernels.distributions.count_families import Poisson
from congruence.kernels.distributions.mixture import Mixture
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import pit_values, smooth_test
from congruence.kernels.pit_interpreter import shape
from congruence.kernels.pit_interpreter.interpretation import ABSTAINED, CALIBRATED, interpret_pit
from congruence.kernels.pit_interpreter.shape import FEATURES, decompose, features
from congruence.tasks.sentences.calibration import interpretation_sentence

ROWS = 3000


def kinds(values: np.ndarray) -> list[str]:
    return [finding.kind for finding in interpret_pit(values, resamples=50).verdict.findings]


def test_calibrated_models_of_300_rows_are_not_accused() -> None:
    rng = np.random.default_rng(0)
    labels = [interpret_pit(rng.random(300), resamples=50).verdict.label for _ in range(100)]
    assert sum(label in (CALIBRATED, ABSTAINED) for label in labels) >= 95
    assert labels.count(CALIBRATED) >= 60


@pytest.mark.parametrize("rows", [1000, 10_000, 1_000_000])
def test_calibrated_models_are_called_so_at_every_size(rows: int) -> None:
    verdict = interpret_pit(np.random.default_rng(rows).random(rows), resamples=50).verdict
    assert verdict.label == CALIBRATED
    assert verdict.probability > 0.5


def test_simple_faults_are_named_with_their_direction() -> None:
    z = np.random.default_rng(1).standard_normal(ROWS)
    assert kinds(ndtr(z + 0.5)) == ["biased down"]
    assert kinds(ndtr(z - 0.5)) == ["biased up"]
    assert kinds(ndtr(1.5 * z)) == ["underdispersed"]
    assert kinds(ndtr(0.7 * z)) == ["overdispersed"]


def test_shapes_are_named() -> None:
    rng = np.random.default_rng(2)
    gamma = (rng.gamma(4.0, size=ROWS) - 4.0) / 2.0
    assert "skewed right" in kinds(ndtr(gamma))
    assert "skewed left" in kinds(ndtr(-gamma))
    assert "heavy-tailed" in kinds(ndtr(rng.standard_t(3, ROWS) / np.sqrt(3.0)))
    assert "light-tailed" in kinds(ndtr(rng.uniform(-1.0, 1.0, ROWS) * np.sqrt(3.0)))


def test_several_faults_are_told_together() -> None:
    z = np.random.default_rng(3).standard_normal(ROWS)
    assert {"biased down", "underdispersed"} <= set(kinds(ndtr(0.6 + 1.6 * z)))


def test_the_paper_s_inverse_problem_lacks_a_mode() -> None:
    """x = u^2, y = u + eps / 4 under N(0, x + 1/16), the best normal forecast (section 4.1)."""
    rng = np.random.default_rng(4)
    u = rng.uniform(-1.0, 1.0, 10_000)
    forecast = Normal(np.zeros_like(u), np.sqrt(u**2 + 0.0625))
    interpretation = interpret_pit(forecast.cdf(u + 0.25 * rng.standard_normal(u.size)))
    assert interpretation.verdict.label == "more modes"
    assert "lacks a mode" in interpretation_sentence(interpretation)
    assert interpretation.verdict.probability > 0.9
    assert interpretation.modes == pytest.approx((-0.9, 0.9), abs=0.15)


def test_counts_are_read_through_the_randomised_pit() -> None:
    rng = np.random.default_rng(5)
    rate = rng.uniform(0.5, 5.0, ROWS)
    counts = rng.poisson(rate).astype(float)
    assert interpret_pit(pit_values(counts, Poisson(rate), seed=0)).verdict.label == CALIBRATED
    overdispersed = rng.poisson(rng.gamma(1.0, rate)).astype(float)
    assert "underdispersed" in kinds(pit_values(overdispersed, Poisson(rate), seed=0))


def test_repeated_values_are_not_read() -> None:
    counts = np.random.default_rng(6).poisson(3.0, 1000).astype(float)
    found = interpret_pit(Poisson(np.full(1000, 3.0)).cdf(counts))
    assert found.verdict.abstained
    assert 'kind="randomized"' in interpretation_sentence(found)


def test_underflow_to_zero_and_one_is_no_repetition() -> None:
    z = np.random.default_rng(7).standard_normal(ROWS)
    assert kinds(ndtr(100.0 * z + 50.0))[0] in ("underdispersed", "biased down")


def test_few_rows_are_not_judged() -> None:
    found = interpret_pit(np.random.default_rng(8).random(12))
    assert found.verdict.abstained
    assert "12 PIT values are too few" in interpretation_sentence(found)


def test_a_histogram_that_no_mixture_explains_is_not_judged() -> None:
    """A comb: every other bin of twenty is empty."""
    values = (np.random.default_rng(9).integers(0, 10, 20_000) + 0.5 * np.random.default_rng(10).random(20_000)) / 10
    found = interpret_pit(values)
    assert found.verdict.abstained
    assert "explains the histogram" in interpretation_sentence(found)


def test_the_decomposition_rebuilds_the_histogram_and_finds_the_truth() -> None:
    rng = np.random.default_rng(11)
    outcomes = np.where(rng.random(100_000) < 0.3, rng.normal(-1.2, 0.4, 100_000), rng.normal(0.7, 0.6, 100_000))
    result = interpret_pit(ndtr(outcomes))
    assert result.histogram.mean() == pytest.approx(1.0)
    assert result.reconstruction.mean() == pytest.approx(1.0, abs=1e-6)
    assert result.reconstruction_distance < result.sampling_distance + 0.01
    step = result.support[1] - result.support[0]
    assert result.density.sum() * step == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose(
        result.data_generating.cdf(result.support[None])[0][120], (outcomes < 0).mean(), atol=0.01
    )
    assert wasserstein_distance(outcomes, result.support, None, result.density) < 0.05
    assert all(item.low <= item.high for item in result.measures.values())
    assert result.measures["location"].value == pytest.approx(outcomes.mean(), abs=0.03)


def test_same_seed_same_result() -> None:
    values = np.random.default_rng(12).beta(2.0, 3.0, 500)
    first, second = interpret_pit(values, seed=3), interpret_pit(values, seed=3)
    plain = [
        {name: value for name, value in vars(found).items() if not isinstance(value, np.ndarray | Mixture)}
        for found in (first, second)
    ]
    assert plain[0] == plain[1]
    np.testing.assert_array_equal(first.density, second.density)
    assert first.measures != interpret_pit(values, seed=4).measures


@settings(max_examples=25, deadline=None)
@given(st.integers(30, 3000), st.floats(-2.0, 2.0), st.floats(0.2, 4.0), st.integers(0, 100))
def test_every_histogram_gets_finite_numbers(rows: int, loc: float, scale: float, seed: int) -> None:
    values = ndtr(loc + scale * np.random.default_rng(seed).standard_normal(rows))
    result = interpret_pit(values, resamples=20)
    assert all(0.0 <= p <= 1.0 for p in result.fault_probabilities.values())
    assert np.isfinite(result.density).all()
    assert np.isfinite(result.reconstruction_distance)
    assert (result.data_generating.std() > 0.0).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.empty(0), "shape"),
        (np.full((3, 2), 0.5), "shape"),
        (np.array([0.1, np.nan, 0.3]), "row 1"),
        (np.array([0.1, 0.2, 1.3]), "row 2 is 1.3"),
        (np.array(["a"]), "values: holds <U1 values, expected numbers"),
    ],
)
def test_bad_values_are_refused_by_row(values: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        interpret_pit(values)


def test_a_flat_law_has_no_second_mode():
    """A mixture of normals has ripples on it: "more modes" was said of every uniform sample."""
    for n, samples in ((1000, 8), (10_000, 4), (100_000, 2)):
        named = 0
        for seed in range(samples):
            outcomes = np.random.default_rng(seed).uniform(-np.sqrt(3.0), np.sqrt(3.0), n)
            found = interpret_pit(ndtr(outcomes), resamples=50, seed=seed)
            named += any(finding.kind == "more modes" for finding in found.verdict.findings)
            assert found.verdict.label != "more modes" or found.unimodality.p_value < 0.01
        assert named <= 1
    assert found.verdict.label == "light-tailed"
    assert found.fault_probabilities["more modes"] < 0.1


@pytest.mark.parametrize(("distance", "n"), [(3.0, 100), (2.0, 1000), (1.4, 10_000), (2.0, 100_000)])
def test_two_modes_are_seen(distance, n):
    rng = np.random.default_rng(n)
    outcomes = (rng.choice([-distance, distance], n) + rng.normal(size=n)) / np.sqrt(1.0 + distance**2)
    found = interpret_pit(ndtr(outcomes))
    assert "more modes" in [finding.kind for finding in found.verdict.findings]
    assert found.unimodality.p_value < 0.01


def test_verdicts_on_uniform_values_and_on_counts_are_no_faults():
    faulty = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n = (100, 1000, 10_000)[seed % 3]
        counts = rng.poisson(0.5, n)
        values = rng.uniform(size=n) if seed % 2 else pit_values(counts, Poisson(np.full(n, 0.5)), seed=seed)
        faulty += bool(interpret_pit(values, resamples=20, seed=seed).verdict.findings)
    assert faulty <= 2  # at most 0.3 expected


def test_the_unimodality_test_against_a_direct_search():
    """The best unimodal densities: no others, found by a general optimiser, are likelier."""
    counts = np.random.default_rng(3).multinomial(400, np.full(28, 1 / 28))
    inner = shape._inner(counts[None])[0]
    fitted = shape._best_unimodal(inner)
    assert np.sum(fitted * shape.WIDTHS) == pytest.approx(inner.sum())
    peak = int(np.argmax(fitted))
    assert np.all(np.diff(fitted[: peak + 1]) >= 0.0)
    assert np.all(np.diff(fitted[peak:]) <= 0.0)

    def loss(steps, top):
        signs = np.concatenate([np.cumsum(np.exp(steps[: top + 1])), np.cumsum(np.exp(steps[:top:-1]))[::-1]])
        density = signs / np.sum(signs * shape.WIDTHS)
        return -np.sum(inner * np.log(density))

    best = min(minimize(loss, np.zeros(20), args=(top,), method="L-BFGS-B").fun for top in range(0, 20, 3))
    reached = -np.sum(inner * np.log(fitted / inner.sum()))
    assert reached <= best + 1e-6
    statistic = shape.unimodality_test(counts, seed=0).statistic
    free = np.sum(inner * np.log(inner / shape.WIDTHS))
    assert statistic == pytest.approx(2.0 * (free - np.sum(inner * np.log(fitted))), rel=1e-9)


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
