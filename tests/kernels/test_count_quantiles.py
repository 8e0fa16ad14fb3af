from typing import Any

import numpy as np
import pytest

from congruence.kernels.distributions import Binomial, NegativeBinomial, Poisson
from congruence.kernels.distributions.quadrature import probability_rule
from congruence.kernels.distributions.scipy_counts import ScipyCount

RATE = np.random.default_rng(5).gamma(2.0, 3.0, 300)
LAWS: list[ScipyCount] = [
    Poisson(RATE),
    NegativeBinomial(RATE, np.full(300, 0.3)),
    NegativeBinomial(RATE, RATE),  # some so wide that they are searched
    Binomial(np.full(300, 40.0), RATE / (1.0 + RATE)),
]


@pytest.mark.parametrize("law", LAWS)
def test_quantiles_counted_from_zero_on_are_those_searched_for(law: ScipyCount) -> None:
    levels, _ = probability_rule(20, 8)
    np.testing.assert_array_equal(law.quantile(levels[None, :]), law._quantile(levels[None, :]))
    assert (law.counted_quantiles(levels) is not None) == (law is LAWS[0] or law is LAWS[1])


@pytest.mark.parametrize("tail", [1e-12, 1e-6, 0.1])
@pytest.mark.parametrize("law", LAWS)
def test_an_interval_looks_for_few_quantiles_and_has_the_ends_of_all(
    law: ScipyCount, tail: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = float(np.min(law.quantile(tail))), float(np.max(law.quantile(1.0 - tail)))
    asked: list[int] = []
    quantile = type(law).quantile

    def count(self: ScipyCount, q: Any) -> Any:
        asked.append(len(self))
        return quantile(self, q)

    monkeypatch.setattr(type(law), "quantile", count)
    assert law[np.arange(len(law))].interval(tail) == expected
    assert sum(asked) < len(law)
