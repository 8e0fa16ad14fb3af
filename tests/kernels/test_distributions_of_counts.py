"""Counts at the edges of their parameters, against sums of 50 digits."""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest

from congruence.kernels import distributions as families
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.quadrature import probability_rule
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Laplacian

mp.mp.dps = 50
Mass = list["mp.mpf"]


def poisson(rate: float, size: int = 120) -> Mass:
    return [mp.exp(-mp.mpf(rate)) * mp.mpf(rate) ** k / mp.factorial(k) for k in range(size)]


def binomial(n: int, p: float, size: int = 120) -> Mass:
    p = mp.mpf(p)
    return [mp.binomial(n, k) * p**k * mp.exp((n - k) * mp.log1p(-p)) for k in range(min(size, n + 1))]


def negative_binomial(mean: float, dispersion: float, size: int = 120) -> Mass:
    """With the ratio of neighbouring masses (1 + d k) m / ((k + 1) (1 + d m)): no digit is lost at any dispersion."""
    m, d = mp.mpf(mean), mp.mpf(dispersion)
    masses = [mp.exp(-mp.log1p(d * m) / d)]
    for k in range(size - 1):
        masses.append(masses[-1] * (1 + d * k) * m / ((k + 1) * (1 + d * m)))
    return masses


def double_poisson(mean: float, phi: float, size: int = 120) -> Mass:
    mu, phi = mp.mpf(mean), mp.mpf(phi)
    powers = [mp.mpf(k) ** k if k else mp.mpf(1) for k in range(size)]
    weights = [
        mp.exp(-phi * mu - k) * power / mp.factorial(k) * (mp.exp(phi * k) * (mu / k) ** (phi * k) if k else 1)
        for k, power in enumerate(powers)
    ]
    return [weight / mp.fsum(weights) for weight in weights]


def hurdle(masses: Mass, zero: float) -> Mass:
    positive = mp.fsum(masses[1:])
    return [mp.mpf(zero)] + [(1 - mp.mpf(zero)) * mass / positive for mass in masses[1:]]


def assert_is_the_law(law: Distribution, masses: Mass, *, rtol: float = 1e-11, atol: float = 1e-12) -> None:
    """Every method of the one row of ``law`` against the masses of 0, 1, 2, ..."""
    size = len(masses)
    k = np.arange(min(size, 40.0))
    cumulative = [mp.fsum(masses[: j + 1]) for j in range(size)]
    expected = np.array([float(mp.log(masses[int(j)])) if masses[int(j)] > 1e-300 else -np.inf for j in k])
    seen = expected > -700
    np.testing.assert_allclose(law.log_prob(k[None, :])[0, seen], expected[seen], rtol=rtol, atol=1e-11)
    np.testing.assert_allclose(law.cdf(k[None, :])[0], [float(cumulative[int(j)]) for j in k], atol=atol, rtol=0)
    levels = np.array([1e-9, 0.01, 0.1, 0.3, 0.5, 0.77, 0.9, 0.999, 1 - 1e-9])
    quantiles = [next(j for j, total in enumerate(cumulative) if total >= level - mp.mpf(1e-15)) for level in levels]
    np.testing.assert_array_equal(law.quantile(levels[None, :])[0], quantiles)
    mean = mp.fsum(j * mass for j, mass in enumerate(masses))
    variance = mp.fsum((j - mean) ** 2 * mass for j, mass in enumerate(masses))
    np.testing.assert_allclose(law.mean(), float(mean), rtol=rtol)
    np.testing.assert_allclose(law.std(), float(mp.sqrt(variance)), rtol=rtol, atol=1e-100)
    t = np.array([0.0, 1e-3, 0.5, 2.0, 3.1])
    wave = [complex(mp.fsum(mass * mp.expj(f * j) for j, mass in enumerate(masses))) for f in t]
    np.testing.assert_allclose(law.characteristic_function(t)[0], wave, atol=atol, rtol=0)
    difference = mp.fsum(total * (1 - total) for total in cumulative)
    y = np.array([-1.5, 0.0, 1.0, 3.0, 3.5, 30.0])
    scores = [float(mp.fsum(abs(j - mp.mpf(v)) * mass for j, mass in enumerate(masses)) - difference) for v in y]
    np.testing.assert_allclose(law.crps(y[None, :])[0], scores, rtol=rtol, atol=1e-12)
    kernel, nodes = Laplacian(0.7), np.array([0.0, 1.5])
    expectation = [float(mp.fsum(mp.exp(-0.7 * abs(j - v)) * mass for j, mass in enumerate(masses))) for v in nodes]
    np.testing.assert_allclose(law.kernel_expectation(kernel, nodes)[0], expectation, atol=1e-12)
    draws = law.sample(4000, seed=1)[0]
    error = float(mp.sqrt(variance)) / np.sqrt(len(draws))
    assert abs(draws.mean() - float(mean)) <= 5 * error + 1e-12


@pytest.mark.parametrize("dispersion", [0.0, 1e-320, 1e-100, 1e-16, 1e-12, 1e-9, 1e-8, 1e-6, 1e-4, 0.01])
@pytest.mark.parametrize("mean", [1e-8, 0.3, 6.0])
def test_negative_binomial_becomes_poisson(mean: float, dispersion: float) -> None:
    masses = negative_binomial(mean, max(dispersion, 1e-40))
    assert_is_the_law(families.NegativeBinomial(mean, dispersion), masses)


LIMITS: dict[str, tuple[Callable[[float, float], Distribution], Callable[[float], Mass]]] = {
    "HurdlePoisson": (lambda rate, zero: families.HurdlePoisson(rate, zero), poisson),
    "HurdleBinomial of one trial": (lambda p, zero: families.HurdleBinomial(1, p, zero), lambda p: binomial(1, p)),
    "HurdleBinomial": (lambda p, zero: families.HurdleBinomial(30, p, zero), lambda p: binomial(30, p)),
    "HurdleNegativeBinomial, d = 1e-9": (
        lambda mean, zero: families.HurdleNegativeBinomial(mean, 1e-9, zero),
        lambda mean: negative_binomial(mean, 1e-9),
    ),
    "HurdleNegativeBinomial, d = 2": (
        lambda mean, zero: families.HurdleNegativeBinomial(mean, 2.0, zero),
        lambda mean: negative_binomial(mean, 2.0),
    ),
    "HurdleDoublePoisson": (
        lambda mean, zero: families.HurdleDoublePoisson(mean, 1.7, zero),
        lambda mean: double_poisson(mean, 1.7),
    ),
}


@pytest.mark.parametrize("zero", [0.0, 0.25])
@pytest.mark.parametrize("rate", [1e-250, 1e-17, 1e-8, 1e-3, 0.3, 0.9])
@pytest.mark.parametrize("family", LIMITS)
def test_hurdles_at_small_rates(family: str, rate: float, zero: float) -> None:
    make, masses = LIMITS[family]
    assert_is_the_law(make(rate, zero), hurdle(masses(rate), zero))


@pytest.mark.parametrize(
    "law",
    [
        families.HurdlePoisson(0.0, 0.25),
        families.HurdleBinomial(5, 0.0, 0.25),
        families.HurdleNegativeBinomial(0.0, 0.5, 0.25),
        families.HurdleNegativeBinomial(0.0, 0.0, 0.25),
        families.ZeroInflatedBinomial(1, 1.0, 0.25),
    ],
    ids=lambda law: type(law).__name__,
)
def test_what_is_positive_once_in_infinity_is_1_if_it_is(law: Distribution) -> None:
    assert_is_the_law(law, [mp.mpf(0.25), mp.mpf(0.75), mp.mpf(0), mp.mpf(0)])


@pytest.mark.parametrize(
    ("law", "value"),
    [
        (families.Poisson(0.0), 0),
        (families.NegativeBinomial(0.0, 1.0), 0),
        (families.NegativeBinomial(0.0, 0.0), 0),
        (families.Binomial(0, 0.3), 0),
        (families.Binomial(4, 0.0), 0),
        (families.Binomial(4, 1.0), 4),
        (families.ZeroInflatedPoisson(3.0, 1.0), 0),
        (families.HurdlePoisson(3.0, 1.0), 0),
        (families.HurdleDoublePoisson(3.0, 2.0, 1.0), 0),
        (families.ZeroInflatedBinomial(4, 1.0, 0.0), 4),
        (families.HurdleBinomial(4, 1.0, 0.0), 4),
    ],
    ids=lambda law: type(law).__name__ if isinstance(law, Distribution) else "",
)
def test_laws_of_one_value(law: Distribution, value: int) -> None:
    assert_is_the_law(law, [mp.mpf(int(k == value)) for k in range(6)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: families.HurdleBinomial([3, 0], 0.5, 0.1),
            "HurdleBinomial.n: row 1 is 0, expected at least one trial",
        ),
        (lambda: families.HurdlePoisson(1.0, 1.1), r"zero_probability: row 0 is 1\.1"),
        (lambda: families.DoublePoisson(0.0, 1.0), "DoublePoisson.mean: row 0 is 0, expected a positive"),
        (
            lambda: families.DoublePoisson(3.0, 1e-9),
            r"DoublePoisson.inverse_dispersion: row 0 is 1e-09, expected a spread",
        ),
        (lambda: families.Binomial(1e17, 0.5), "Binomial.n: row 0 is 1e.17, expected a whole number of trials"),
        (lambda: families.NegativeBinomial(1.0, -1e-9), "NegativeBinomial.dispersion: row 0 is -1e-09"),
    ],
)
def test_limits_that_do_not_exist_are_refused(make: Callable[[], Distribution], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_rare_successes_among_many_trials_are_poisson() -> None:
    """Binomial(1e12, 1e-12): the characteristic function was off by 4e-5."""
    assert_is_the_law(families.Binomial(10**12, 1e-12), poisson(1.0))


def test_poisson_at_rates_that_scipy_cannot_invert() -> None:
    law = families.Poisson([1e8, 1e12, 1e15])
    levels = np.array([[1e-9, 0.2, 0.5, 0.9, 1 - 1e-9]])
    values = law.quantile(levels)
    assert np.all(law.cdf(values) >= levels)
    assert np.all(law.cdf(values - 1) < levels)
    normal = families.Normal(law.rate, np.sqrt(law.rate))
    np.testing.assert_allclose(law.crps(law.rate + 1e4), normal.crps(law.rate + 1e4), rtol=1e-4)


RATES = np.exp(np.random.default_rng(0).normal(1.0, 1.5, 60))


@pytest.mark.parametrize(
    "law",
    [
        families.Poisson(np.concatenate([RATES, [0.0, 1e-9, 1e7]])),
        families.NegativeBinomial(np.concatenate([RATES, 5e3 * RATES]), np.full(120, 0.4)),
        families.Binomial(np.full(60, 30.0), 1.0 / (1.0 + RATES)),
        families.ZeroInflatedPoisson(RATES, np.full(60, 0.3)),
        families.DoublePoisson(RATES, np.full(60, 0.7)),
    ],
    ids=lambda law: type(law).__name__,
)
def test_quantiles_at_shared_levels_are_the_quantiles(law: Distribution) -> None:
    """Also of rows with so many likely counts that each level is looked for."""
    levels, _ = probability_rule(20, 8)
    np.testing.assert_array_equal(law.quantile(levels[None, :]), law.quantile(np.tile(levels, (len(law), 1))))
