import numpy as np
import pytest

from congruence.kernels.distributions import Mixture, Normal
from congruence.kernels.distributions import successive_quantiles as module
from congruence.kernels.distributions.quadrature import probability_rule
from congruence.kernels.distributions.successive_quantiles import is_normal_mixture, successive_quantiles


@pytest.mark.parametrize("spread", [0.3, 8.0])
def test_quantiles_follow_from_one_another_as_they_are_searched_for(spread: float) -> None:
    rng = np.random.default_rng(3)
    n = 400  # up to four components, some a hundredth as wide as the others, or of no weight
    weights = rng.dirichlet([0.3] * 4, n)
    law = Mixture(weights, tuple(Normal(rng.normal(0.0, spread, n), rng.gamma(1.0, 1.0, n) + 0.01) for _ in range(4)))
    levels, shares = probability_rule(20, 8)
    error = (successive_quantiles(law, levels) - law.quantile(levels[None, :])) / law.std()[:, None]
    assert np.max(np.abs(error)) < 1e-6  # where F is 1 up to its rounding
    assert np.sqrt(np.max(error**2 @ shares)) < 1e-9


def test_rows_that_do_not_settle_are_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEPS", 1)
    narrow = Normal(np.array([-3.0, 0.0]), np.array([0.1, 1.0]))
    law = Mixture(np.array([0.5, 0.5]), (narrow, Normal(np.array([3.0, 0.0]), np.array([0.1, 2.0]))))
    levels = np.array([0.01, 0.3, 0.5, 0.7, 0.99])
    assert is_normal_mixture(law)
    np.testing.assert_allclose(successive_quantiles(law, levels), law.quantile(levels[None, :]), atol=1e-6)
