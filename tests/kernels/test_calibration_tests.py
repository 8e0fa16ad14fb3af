"""Calibration tests: level on calibrated models, power on uncalibrated ones, and honesty about both."""

import numpy as np
import pytest

from congruence.kernels import RBF, Laplacian, Polynomial
from congruence.kernels.distributions import Laplace, MultivariateNormal, Normal, Samples
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration import Wasserstein, calibration_test
from congruence.kernels.kernel_calibration.hypothesis_tests import kernel_supremum
from congruence.kernels.kernel_calibration.pairs import pair_terms
from congruence.kernels.kernel_calibration.resampling import bootstrap_statistics, consistency_statistics
from congruence.kernels.streams import stream

KERNEL = RBF(0.5)
METHODS = ("asymptotic", "block", "distribution_free", "cme", "consistency")


def synthetic(n: int, seed: int, *, calibrated: bool) -> tuple[Normal, np.ndarray]:
    """The paper's experiment: P = N(c, .1^2) with c ~ U(0, 1); targets from P, or from N(.1, .1^2)."""
    rng = np.random.default_rng(seed)
    center = rng.uniform(size=n)
    return Normal(center, np.full(n, 0.1)), (center if calibrated else 0.1) + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize(
    ("method", "n", "repetitions", "options"),
    [
        ("asymptotic", 256, 300, {"replicates": 199}),
        ("block", 1024, 100, {}),
        ("consistency", 64, 150, {"replicates": 39}),
        ("cme", 1024, 200, {}),
    ],
)
def test_level_on_calibrated_models(method, n, repetitions, options):
    """At most the level plus three standard errors (they overlap .05 +- .02 in the record of the long experiment)."""
    rejected = 0
    for seed in range(repetitions):
        predictive, y = synthetic(n, seed, calibrated=True)
        rejected += (
            calibration_test(y, predictive, method=method, output_kernel=KERNEL, seed=seed, **options).p_value <= 0.05
        )
    assert rejected / repetitions <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repetitions)


@pytest.mark.parametrize("method", ["asymptotic", "block", "consistency", "cme"])
def test_power_on_the_uncalibrated_model(method):
    for seed in range(5):
        predictive, y = synthetic(256, seed, calibrated=False)
        assert calibration_test(y, predictive, method=method, output_kernel=KERNEL, seed=seed).p_value <= 0.05


@pytest.mark.parametrize("method", ["asymptotic", "consistency", "cme"])
def test_ten_targets(method):
    """The paper's experiment in ten dimensions: only the first target is off."""
    rng = np.random.default_rng(0)
    center = np.repeat(rng.uniform(size=(200, 1)), 10, axis=1)
    predictive = MultivariateNormal(center, np.full((200, 10), 0.1))
    y = center + 0.1 * rng.normal(size=(200, 10))
    options = {"method": method, "output_kernel": KERNEL, "replicates": 39}
    assert calibration_test(y, predictive, **options).p_value > 0.05
    y[:, 0] = 0.1 + 0.1 * rng.normal(size=200)
    assert calibration_test(y, predictive, **options).p_value <= 0.05


def test_distribution_free_bounds_reject_only_gross_errors():
    predictive, y = synthetic(1024, 0, calibrated=True)
    far = Normal(predictive.loc + 5.0, predictive.scale)
    for estimator in ("unbiased", "biased"):
        options = {"method": "distribution_free", "output_kernel": KERNEL, "estimator": estimator}
        assert calibration_test(y, predictive, **options).p_value > 0.5
        assert calibration_test(y, far, **options).p_value < 1e-3


def test_an_estimate_below_zero_is_no_evidence():
    predictive, y = Normal(np.array([0.0, 1.0]), np.array([1.0, 2.0])), np.array([1.0, 0.0])
    result = calibration_test(y, predictive, method="distribution_free", output_kernel=KERNEL)
    assert result.estimate < 0
    assert result.p_value == 1.0


def test_ordinary_least_squares_illustration_is_rejected():
    """Quantiles of a line through y = sin(pi x) + |1 + x| eps look calibrated; the joint law is not."""
    rejections = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1, 1, size=150)
        y = np.sin(np.pi * x) + np.abs(1 + x) * 0.15 * rng.normal(size=150)
        slope, intercept = np.polyfit(x[:100], y[:100], 1)
        spread = np.std(y[:100] - intercept - slope * x[:100], ddof=1)
        predictive = Normal(intercept + slope * x[100:], np.full(50, spread))
        rejections.append(calibration_test(y[100:], predictive, output_kernel=KERNEL, seed=seed).p_value < 0.05)
    assert np.mean(rejections) >= 0.75


def test_the_bootstrap_equals_its_definition():
    """The U-statistic of the centred h at resampled rows, written out."""
    predictive, y = synthetic(30, 0, calibrated=False)
    terms = pair_terms(predictive, y, None, KERNEL)
    h = terms.h(terms.rows(slice(None)), terms.rows(slice(None)))
    centred = h - h.mean(axis=0) - h.mean(axis=1, keepdims=True) + h.mean()
    expected = []
    for rows in stream(4, "bootstrap of pairs").integers(30, size=(5, 30)):
        resampled = centred[np.ix_(rows, rows)]
        expected.append((resampled.sum() - np.trace(resampled)) / (30 * 29))
    np.testing.assert_allclose(bootstrap_statistics(terms, 5, 4), expected, atol=1e-14)


@pytest.mark.parametrize("kernel", [RBF(0.5), Laplacian(0.5)])
def test_consistency_draws_have_mean_zero_and_follow_the_estimator(kernel):
    rng = np.random.default_rng(0)
    predictive = Laplace(rng.normal(size=40), rng.uniform(0.5, 1, 40))
    y = predictive.sample(1, seed=1)[:, 0]
    terms = pair_terms(predictive, y, None, kernel)
    drawn = consistency_statistics(terms, predictive, y, 60, 0)
    assert abs(drawn.mean()) < 4 * drawn.std() / np.sqrt(60)
    first = predictive.sample(60, seed=stream(0, "consistency resampling"))[:, 0]
    again = pair_terms(predictive, first, None, kernel)
    h = again.h(again.rows(slice(None)), again.rows(slice(None)))
    assert drawn[0] == pytest.approx((h.sum() - np.trace(h)) / (40 * 39), abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_repeats_the_result(method):
    predictive, y = synthetic(256, 0, calibrated=True)
    first, second = (calibration_test(y, predictive, method=method, seed=7) for _ in range(2))
    assert first == second
    assert 0.0 < first.p_value <= 1.0


def test_trust_names_few_rows_few_blocks_and_few_rows_per_location():
    predictive, y = synthetic(40, 0, calibrated=True)
    assert "40 rows" in str(calibration_test(y, predictive).trust)
    assert not calibration_test(y, predictive).trust.reliable
    block = calibration_test(y, predictive, method="block", block_size=2)
    assert "20 blocks" in str(block.trust)
    cme = calibration_test(y, predictive, method="cme")
    assert "35 rows for 5 locations" in str(cme.trust)
    assert not cme.trust
    assert calibration_test(*reversed(synthetic(1024, 0, calibrated=True)), method="cme").trust
    assert calibration_test(*reversed(synthetic(256, 0, calibrated=True))).trust


def test_trust_sees_a_kernel_on_predictions_of_the_wrong_scale():
    predictive, y = synthetic(256, 0, calibrated=True)
    narrow = calibration_test(y, predictive, prediction_kernel=Wasserstein(scale=1e5)).trust
    assert not narrow.reliable
    assert "scale=None" in str(narrow)
    wide = calibration_test(y, predictive, prediction_kernel=Wasserstein(scale=1e-4)).trust
    assert wide.reliable
    assert "nearly constant" in str(wide)
    assert calibration_test(y, predictive, prediction_kernel=Wasserstein(scale=None)).trust.reasons == ()


def test_trust_of_consistency_says_where_the_kernel_came_from():
    predictive, y = synthetic(64, 0, calibrated=True)
    assert "read off the targets" in str(calibration_test(y, predictive, method="consistency").trust)
    assert calibration_test(y, predictive, method="consistency", output_kernel=KERNEL).trust.reasons == ()


def test_two_blocks_are_refused():
    """Two blocks of a calibrated model can give p = 1e-63."""
    predictive, y = synthetic(256, 0, calibrated=True)
    with pytest.raises(InvalidInputError, match="leave 2 blocks"):
        calibration_test(y, predictive, method="block", block_size=128)


def test_locations_may_be_given():
    predictive, y = synthetic(500, 0, calibrated=False)
    centers = np.array([0.2, 0.8])
    result = calibration_test(
        y,
        predictive,
        method="cme",
        test_predictive=Normal(centers, np.full(2, 0.1)),
        test_y=centers,
        output_kernel=KERNEL,
    )
    assert result.p_value < 1e-6


def test_equal_locations_count_once():
    predictive, y = synthetic(500, 0, calibrated=True)
    same = Normal(np.full(3, 0.5), np.full(3, 0.1))
    result = calibration_test(y, predictive, method="cme", test_predictive=same, test_y=np.full(3, 0.5))
    assert "only 1 directions" in str(result.trust)
    assert 0.001 < result.p_value < 1.0


def test_bounds_of_kernels():
    assert kernel_supremum(RBF(1.0) + Laplacian(2.0) * RBF(0.1)) == 2.0
    predictive, y = synthetic(20, 0, calibrated=True)
    with pytest.raises(InvalidInputError, match="no finite bound"):
        calibration_test(y, predictive, method="distribution_free", output_kernel=Polynomial())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "t"}, "unknown"),
        ({"replicates": 5}, "at least 19"),
        ({"method": "cme", "locations": 30}, "a third"),
        ({"method": "cme", "test_y": np.zeros(3)}, "both or none"),
        ({"method": "distribution_free", "estimator": "block"}, "no bound"),
    ],
)
def test_bad_options_are_named(options, message):
    predictive, y = synthetic(40, 0, calibrated=True)
    with pytest.raises(InvalidInputError, match=message):
        calibration_test(y, predictive, **options)


def test_ensembles_are_tested_as_the_empirical_law_they_are():
    """Members around the true center that differ less than the targets do: overconfident."""
    rng = np.random.default_rng(0)
    center = rng.normal(size=(200, 1))
    y = center[:, 0] + rng.normal(size=200)
    wide = Samples(center + rng.normal(size=(200, 30)))
    narrow = Samples(center + 0.2 * rng.normal(size=(200, 30)))
    assert calibration_test(y, wide, output_kernel=RBF(1.0)).p_value > 0.05
    assert calibration_test(y, narrow, output_kernel=RBF(1.0)).p_value < 0.01
