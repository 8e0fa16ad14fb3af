"""Marginal calibration against uncertainty-toolbox, the public code's variant, and what a true law must show."""

from collections.abc import Callable

import numpy as np
import pytest

from congruence.kernels import distributions as families
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.marginal_calibration import (
    calibration_error_of_pit,
    expected_calibration_error,
    reliability_curve,
)
from congruence.kernels.pit import chi_square, cramer_von_mises, kolmogorov_smirnov, pit_values
from congruence.kernels.rng import keyed_uniforms

RNG = np.random.default_rng(11)
RATE = RNG.uniform(1, 10, 20_000)
POISSON, COUNTS = families.Poisson(RATE), RNG.poisson(RATE).astype(float)


def test_a_perfect_poisson_is_calibrated_only_by_randomised_pit_values() -> None:
    assert expected_calibration_error(COUNTS, POISSON) < 0.01
    assert expected_calibration_error(COUNTS, POISSON, pit="mid") < 0.01
    assert expected_calibration_error(COUNTS, POISSON, pit="nonrandomized") == pytest.approx(0.071, abs=0.004)
    assert expected_calibration_error(COUNTS, POISSON, weights="frequency") < 0.01


def test_coarsely_rounded_targets_have_the_error_of_their_cells() -> None:
    """Of the point 0 alone the right distribution had an error of .09."""
    y, law = 2.0 * np.round(RNG.standard_normal(20_000) / 2.0), families.Normal(np.zeros(20_000), 1.0)
    assert expected_calibration_error(y, law) < 0.01
    assert expected_calibration_error(y, families.Normal(np.zeros(20_000), 0.5)) > 0.05


def test_frequency_weights_are_the_public_codes_variant() -> None:
    law, y = families.Normal(np.zeros(500), 1.0), RNG.normal(0.4, 1.3, 500)
    levels = np.linspace(1e-5, 1 - 1e-5, 50)
    observed = np.array([np.mean(law.cdf(y) <= level) for level in levels])
    expected = np.sum(observed / observed.sum() * np.abs(levels - observed))
    assert expected_calibration_error(y, law, weights="frequency") == pytest.approx(expected, rel=1e-12)
    uniform = expected_calibration_error(y, law, alpha=2.0)
    assert uniform == pytest.approx(np.mean((levels - observed) ** 2), rel=1e-12)


def test_randomised_pit_repeats_in_any_sharding() -> None:
    keys = np.array([f"image-{i}" for i in range(3000)], dtype=object)
    law, y = POISSON[:3000], COUNTS[:3000]
    whole = pit_values(y, law, keys=keys, seed=5)
    order = RNG.permutation(3000)
    parts = [pit_values(y[rows], law[rows], keys=keys[rows], seed=5) for rows in np.array_split(order, 4)]
    np.testing.assert_array_equal(np.concatenate(parts), whole[order])
    assert not np.array_equal(whole, pit_values(y, law, keys=keys, seed=6))
    for test in (kolmogorov_smirnov, cramer_von_mises, chi_square):
        assert test(whole).p_value > 0.001


def test_keyed_uniforms_are_uniform_for_neighbouring_keys() -> None:
    values = keyed_uniforms(np.arange(100_000), 1, "randomized PIT")
    assert chi_square(values, bins=100).p_value > 1e-3
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.01
    for seed, purpose in ((2, "randomized PIT"), (1, "buckets of rows")):
        other = keyed_uniforms(np.arange(100_000), seed, purpose)
        assert abs(np.corrcoef(values, other)[0, 1]) < 0.01
        assert chi_square((values + other) % 1.0, bins=100).p_value > 1e-3


def test_uniformity_tests_reject_a_biased_model() -> None:
    pit = pit_values(RNG.normal(size=400), families.Normal(np.full(400, 0.3), 1.0))
    for test in (kolmogorov_smirnov, cramer_von_mises, chi_square):
        assert test(pit).p_value < 0.01
    with pytest.raises(InvalidInputError, match="values per bin"):
        chi_square(pit[:8])


def test_the_probability_of_cramer_and_von_mises_is_small_where_the_statistic_is_large() -> None:
    pit = np.random.default_rng(4).random(2_000_000)
    for wrong in (pit**1.2, pit**3):  # SciPy has 0 / 0 there, and says nan
        found = cramer_von_mises(wrong)
        assert found.statistic > 1000.0
        assert found.p_value == 0.0
    right = (np.arange(2000) + 0.5) / 2000
    at = [cramer_von_mises(np.clip(right + shift, 0.0, 1.0)) for shift in np.linspace(0.030, 0.045, 40)]
    assert at[0].statistic < 2.0 < 3.0 < at[-1].statistic
    p_values = np.array([found.p_value for found in at])
    assert np.all(np.diff(p_values) < 0.0)
    # 7.5677e-8 beyond 3 by Smirnov's integral (quadrature), from there as exp(-pi^2 W / 2) / sqrt(W).
    far = [found for found in at if found.statistic > 3.0]
    assert far
    three = 7.5677e-8 * np.sqrt(3.0 / far[0].statistic) * np.exp(-(np.pi**2) / 2.0 * (far[0].statistic - 3.0))
    assert far[0].p_value == pytest.approx(three, rel=0.03)


def test_unknown_settings_are_refused() -> None:
    law, y = POISSON[:10], COUNTS[:10]
    for arguments in ({"weights": "odd"}, {"alpha": 0.0}, {"levels": [0.5, 1.5]}, {"pit": "odd"}, {"keys": [1, 2]}):
        with pytest.raises(InvalidInputError):
            expected_calibration_error(y, law, **arguments)


def test_levels_are_a_number_of_any_kind() -> None:
    pit = RNG.random(200)
    for levels in (np.int64(50), np.int32(50)):
        np.testing.assert_array_equal(reliability_curve(pit, levels=levels), reliability_curve(pit, levels=50))
        assert calibration_error_of_pit(pit, levels=levels) == calibration_error_of_pit(pit)
    for levels in (0, -3, True, [], [0.5, np.nan], np.nan):
        with pytest.raises(InvalidInputError, match="levels"):
            reliability_curve(pit, levels=levels)


@pytest.mark.parametrize("read", [reliability_curve, calibration_error_of_pit, kolmogorov_smirnov, chi_square])
@pytest.mark.parametrize(
    ("bad", "message"), [(np.nan, "row 3 .nan."), (1.2, r"row 3 is 1\.2"), (-0.1, r"row 3 is -0\.1")]
)
def test_what_is_no_pit_value_is_refused(read: Callable[[np.ndarray], object], bad: float, message: str) -> None:
    pit = RNG.random(50)
    pit[3] = bad
    with pytest.raises(InvalidInputError, match=message):
        read(pit)
