"""The PIT-histogram interpreter: what it says where the truth is known, and when it says nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import ndtr
from scipy.stats import wasserstein_distance

from congruence.kernels.distributions.continuous import Normal
from congruence.kernels.distributions.count_families import Poisson
from congruence.kernels.distributions.mixture import Mixture
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import pit_values
from congruence.kernels.pit_interpreter import shape
from congruence.kernels.pit_interpreter.interpretation import ABSTAINED, CALIBRATED, interpret_pit
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
