"""Vector targets: exact by drawn targets, blind to units, and sees spread, dependence and shape."""

import numpy as np
import pytest

from congruence.kernels import RBF, MultivariateNormal, Normal, Samples
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.vector_targets import SCALES, whitened_targets
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.errors import InvalidInputError


def split(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, means and spreads of two targets."""
    x = np.random.default_rng(0).standard_normal((n, 3))
    return x, 2.0 * x[:, :2], np.exp(0.4 * x[:, 1:])


@pytest.mark.parametrize("ensemble", [False, True])
def test_level(ensemble: bool) -> None:
    x, mean, spread = split(80)
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=39, directions=20))
    p = []
    for seed in range(8):
        values = MultivariateNormal(mean, spread).sample(9, seed=seed)
        model = Samples(values[:, 1:]) if ensemble else MultivariateNormal(mean, spread)
        p.append(prepared.test_version(values[:, 0], model).p_value)
    assert np.mean(np.array(p) <= 0.1) <= 0.5
    assert 0.2 < np.mean(p) < 0.8


def test_spread_that_the_model_does_not_follow_is_found() -> None:
    x, mean, spread = split(300)
    y = np.random.default_rng(1).normal(mean, spread)
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=49))
    constant = np.broadcast_to(np.sqrt(np.mean(spread**2, axis=0)), spread.shape)
    test = prepared.test_version(y, MultivariateNormal(mean, constant))
    assert test.p_value == 0.02
    assert list(test.by_order) == list(SCALES)


def test_targets_that_depend_on_each_other_are_found() -> None:
    x, mean, spread = split(300)
    noise = np.random.default_rng(2).standard_normal((300, 2))
    noise[:, 1] = 0.8 * noise[:, 0] + 0.6 * noise[:, 1]
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=49))
    assert prepared.test_version(mean + spread * noise, MultivariateNormal(mean, spread)).p_value <= 0.02


def test_units_of_the_targets_do_not_matter() -> None:
    x, mean, spread = split(80)
    y = np.random.default_rng(3).normal(mean, spread)
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=39, directions=20))
    units = np.array([100.0, 0.01])
    one = prepared.test_version(y, MultivariateNormal(mean, 1.3 * spread))
    other = prepared.test_version(units * y + 5.0, MultivariateNormal(units * mean + 5.0, 1.3 * units * spread))
    assert other.statistic == pytest.approx(one.statistic, rel=1e-3)
    assert other.p_value == one.p_value


def test_whitening_treats_target_and_draws_alike() -> None:
    values = np.random.default_rng(4).standard_normal((20, 7, 2)) * np.array([5.0, 0.1])
    z, _, said = whitened_targets(values[:, 0], Samples(values[:, 1:]), seed=0)
    _, law, again = whitened_targets(values[:, 3], Samples(np.delete(values, 3, axis=1)), seed=0)
    np.testing.assert_allclose(said, again)
    np.testing.assert_allclose(z, law.draws[:, 0])
    constant = whitened_targets(np.zeros((4, 2)), Samples(np.zeros((4, 5, 2))), seed=0)[0]
    assert np.isfinite(constant).all()
    # In units that lie nine powers of ten apart the target of small numbers was 0, and the test saw the other alone.
    units = np.array([1e-6, 1e3])
    scaled = whitened_targets(units * values[:, 0], Samples(units * values[:, 1:]), seed=0)[0]
    np.testing.assert_allclose(scaled, z, rtol=1e-9)


def test_targets_of_another_shape_are_named() -> None:
    x, mean, spread = split(30)
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=19))
    with pytest.raises(InvalidInputError, match="1 targets per row"):
        prepared.test_version(mean[:, 0], MultivariateNormal(mean, spread))
    with pytest.raises(InvalidInputError, match="2 targets per row"):
        prepared.test_version(mean, Normal(mean[:, 0], spread[:, 0]))
    with pytest.raises(InvalidInputError, match="predictive: 29 rows"):
        prepared.test_version(mean, MultivariateNormal(mean[:29], spread[:29]))


def test_rows_of_one_group_are_one_observation_and_a_fault_is_found() -> None:
    rng, groups = np.random.default_rng(5), RowDependence.of(200, groups=np.repeat(np.arange(40), 5))
    x = np.repeat(rng.standard_normal((40, 2)), 5, axis=0)
    law = MultivariateNormal(np.zeros((200, 2)), np.ones((200, 2)))
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=99, directions=10, own_directions=5))
    alone = by_group = 0
    for _ in range(6):
        y = np.sqrt(0.5) * (np.repeat(rng.standard_normal((40, 2)), 5, axis=0) + rng.standard_normal((200, 2)))
        alone += prepared.test_version(y, law).p_value <= 0.05
        test = prepared.test_version(y, law, dependence=groups)
        by_group += test.p_value <= 0.05
    assert by_group <= 1 < 3 <= alone
    assert (test.null, test.blocks) == ("blocks", 40)
    assert "1/4 spread_p_value" in repr(test)
    assert prepared.test_version(y + 1.0, law, dependence=groups).p_value <= 0.02
    single = prepared.test_version(y, law, dependence=RowDependence.of(200, groups=np.arange(200)))
    assert single.null_statistics.tolist() == prepared.test_version(y, law).null_statistics.tolist()


def test_targets_that_are_rounded_as_coarsely_as_they_vary_are_tested_by_their_cells() -> None:
    """Taken as they are, every right version was called wrong."""
    rng, n = np.random.default_rng(8), 200
    prepared = prepare_calibration(
        rng.standard_normal((n, 2)), input_kernel=RBF(0.5), settings=CalibrationSettings(draws=99)
    )
    spread = np.broadcast_to([1.0, 3.0], (n, 2))
    law, narrow = MultivariateNormal(np.zeros((n, 2)), spread), MultivariateNormal(np.zeros((n, 2)), spread / 1.5)
    rounded = [np.round(rng.standard_normal((n, 2))) * spread for _ in range(10)]
    assert sum(prepared.test_version(y, law, seed=k).p_value <= 0.05 for k, y in enumerate(rounded)) <= 2
    assert all(prepared.test_version(y, narrow, seed=k).p_value <= 0.05 for k, y in enumerate(rounded))
