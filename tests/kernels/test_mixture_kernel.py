"""The lifted Wasserstein distance of mixtures: closed forms against linear programs, and its properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.kernels import RBF
from congruence.kernels.distributions import Laplace, Mixture, Normal, Poisson
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration import MixtureWasserstein, Wasserstein, squared_kernel_calibration_error
from congruence.kernels.kernel_calibration.mixture_kernel import _linear_programs, _transport
from congruence.kernels.kernel_calibration.quantile_embedding import wasserstein_coordinates


def mixture(n: int, weights: np.ndarray, seed: int) -> Mixture:
    rng = np.random.default_rng(seed)
    size = np.shape(weights)[-1]
    return Mixture(weights, tuple(Normal(rng.normal(size=n), rng.uniform(0.2, 2, n)) for _ in range(size)))


def rows(predictive: Mixture) -> np.ndarray:
    return MixtureWasserstein().coordinates([predictive], RBF(1.0))[0]


@given(st.integers(1, 5), st.booleans(), st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_closed_forms_equal_linear_programs(size, equal, seed):
    rng = np.random.default_rng(seed)
    p, q = (np.full((3, size), 1 / size) if equal else rng.dirichlet(np.ones(size), 3) for _ in range(2))
    costs = rng.uniform(size=(3, 3, size, size))
    np.testing.assert_allclose(_transport(p, q, costs), _linear_programs(p, q, costs), atol=1e-9)


@pytest.mark.parametrize("weights", [np.ones(1), np.array([0.3, 0.7]), np.full(3, 1 / 3), np.full(6, 1 / 6)])
def test_a_distance_above_the_wasserstein_distance(weights):
    predictive = mixture(6, weights, 0)
    lifted = MixtureWasserstein().distances(rows(predictive), rows(predictive))
    np.testing.assert_allclose(np.diag(lifted), 0.0, atol=1e-7)
    np.testing.assert_allclose(lifted, lifted.T, atol=1e-12)
    assert np.all(lifted[:, None, :] <= lifted[:, :, None] + lifted[None, :, :].transpose(0, 2, 1) + 1e-9)
    (quantiles,) = wasserstein_coordinates([predictive])
    exact = np.linalg.norm(quantiles[:, None] - quantiles, axis=2)
    assert np.all(exact <= lifted + 1e-3)


def test_one_component_is_that_component():
    rng = np.random.default_rng(0)
    component = Laplace(rng.normal(size=20), rng.uniform(0.5, 2, 20))
    y = component.sample(1)[:, 0]
    lifted = squared_kernel_calibration_error(
        y, Mixture(np.ones(1), (component,)), prediction_kernel=MixtureWasserstein()
    )
    assert lifted == pytest.approx(
        squared_kernel_calibration_error(y, component, prediction_kernel=Wasserstein()), abs=1e-8
    )


def test_the_order_of_components_means_nothing():
    predictive = mixture(10, np.array([0.2, 0.3, 0.5]), 1)
    turned = Mixture(predictive.weights[:, [2, 0, 1]], tuple(predictive.components[k] for k in (2, 0, 1)))
    y = predictive.sample(1)[:, 0]
    values = [
        squared_kernel_calibration_error(y, part, prediction_kernel=MixtureWasserstein(scale=None))
        for part in (predictive, turned)
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-9)


@pytest.mark.parametrize(
    ("predictive", "message"),
    [
        (Normal(np.zeros(3), np.ones(3)), "predictions are Normal"),
        (Mixture(np.full(2, 0.5), (Normal(np.zeros(3), np.ones(3)), Laplace(np.zeros(3), np.ones(3)))), "different"),
        (Mixture(np.ones(1), (Poisson(np.ones(3)),)), "no closed distance"),
    ],
)
def test_what_it_cannot_compare_is_named(predictive, message):
    with pytest.raises(InvalidInputError, match=message):
        squared_kernel_calibration_error(np.arange(3.0), predictive, prediction_kernel=MixtureWasserstein())
