"""Every family at random extreme parameters: what it says is finite and agrees with itself."""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from congruence.kernels import distributions as families
from congruence.kernels.distributions import Distribution

Draw = st.DataObject


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers over many orders of magnitude."""
    return st.floats(low, high).map(lambda exponent: float(10.0**exponent))


scale, location = powers(-12, 12), st.one_of(st.just(0.0), st.floats(-1e6, 1e6))
share = st.one_of(st.sampled_from([0.0, 1e-300, 1e-12, 0.5, 1.0 - 1e-12, 1.0]), st.floats(0.0, 1.0))
rate = st.one_of(st.just(0.0), powers(-300, -20), powers(-20, 4))
trials = st.integers(0, 2000)
dispersion = st.one_of(st.just(0.0), powers(-300, -20), powers(-20, 2))
shape = powers(-4, 12)

LAWS: dict[str, st.SearchStrategy[Distribution]] = {
    "Normal": st.builds(families.Normal, location, scale),
    "Laplace": st.builds(families.Laplace, location, scale),
    "Logistic": st.builds(families.Logistic, location, scale),
    "StudentT": st.builds(families.StudentT, powers(0.02, 18), location, scale),
    "LogNormal": st.builds(families.LogNormal, powers(-8, 0.7), scale),
    "Gamma": st.builds(families.Gamma, shape, scale),
    "Beta": st.builds(families.Beta, shape, shape),
    "Uniform": st.builds(families.Uniform, location, scale),
    "TruncatedNormal": st.builds(
        lambda loc, scale, lower, width: families.TruncatedNormal(loc, scale, lower, lower + width),
        location, powers(-3, 9), st.floats(-10, 10), st.one_of(st.just(np.inf), powers(-3, 3)),
    ),
    "CensoredNormal": st.builds(
        lambda loc, scale, lower, width: families.CensoredNormal(loc, scale, lower, lower + width),
        location, powers(-3, 9), st.floats(-10, 10), st.one_of(st.just(np.inf), powers(-3, 3)),
    ),
    "Poisson": st.builds(families.Poisson, rate),
    "NegativeBinomial": st.builds(families.NegativeBinomial, rate, dispersion),
    "Binomial": st.builds(families.Binomial, trials, share),
    "DoublePoisson": st.builds(families.DoublePoisson, powers(-250, 3), powers(-2, 6)),
    "ZeroInflatedPoisson": st.builds(families.ZeroInflatedPoisson, rate, share),
    "ZeroInflatedNegativeBinomial": st.builds(families.ZeroInflatedNegativeBinomial, rate, dispersion, share),
    "ZeroInflatedBinomial": st.builds(families.ZeroInflatedBinomial, trials, share, share),
    "ZeroInflatedDoublePoisson": st.builds(
        families.ZeroInflatedDoublePoisson, powers(-250, 3), powers(-2, 6), share
    ),
    "HurdlePoisson": st.builds(families.HurdlePoisson, rate, share),
    "HurdleNegativeBinomial": st.builds(families.HurdleNegativeBinomial, rate, dispersion, share),
    "HurdleBinomial": st.builds(families.HurdleBinomial, st.integers(1, 2000), share, share),
    "HurdleDoublePoisson": st.builds(families.HurdleDoublePoisson, powers(-250, 3), powers(-2, 6), share),
    "Mixture": st.builds(
        lambda weight, loc, scale, other: families.Mixture(
            [[weight, 1.0 - weight]], [families.Normal(loc, scale), families.Laplace(0.0, other)]
        ),
        share, location, scale, scale,
    ),
}  # fmt: skip
LEVELS = np.array([[1e-9, 1e-3, 0.05, 0.3, 0.5, 0.8, 0.97, 1.0 - 1e-6]])
each_family = pytest.mark.parametrize("family", LAWS)
quick = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def on_a_law(check: Callable[[Distribution], None]) -> Callable[[str, Draw], None]:
    """``check`` for random laws of the family that the test names."""

    @each_family
    @quick
    @given(data=st.data())
    def test(family: str, data: Draw) -> None:
        check(data.draw(LAWS[family]))

    return test


def resolution(law: Distribution, y: np.ndarray) -> np.ndarray:
    """What the cdf changes by where y moves by a rounding of itself, and of the location as far as inversion goes."""
    offset = max(float(np.max(np.abs(values))) for values in law.parameters().values() if np.all(np.isfinite(values)))
    step = 4e-16 * np.abs(y) + (1e-14 if isinstance(law, families.Mixture) else 4e-16) * offset
    return np.zeros_like(y) if law.is_discrete else law.cdf(y + step) - law.cdf_left(y - step)


def check_cdf_and_quantiles(law: Distribution) -> None:
    y = law.quantile(LEVELS)
    assert np.all(np.isfinite(y))
    assert np.all(np.diff(y, axis=1) >= 0)
    cdf, left, slack = law.cdf(y), law.cdf_left(y), resolution(law, y) + 1e-9 * LEVELS + 1e-14
    assert np.all((left >= 0) & (left <= cdf + 1e-14) & (cdf <= 1))
    assert np.all(np.diff(cdf, axis=1) >= -1e-14)
    assert np.all(cdf >= LEVELS - slack)
    assert np.all(left <= LEVELS + slack)
    np.testing.assert_allclose(law.cdf(np.array([[-1e100, 1e100]])), [[0.0, 1.0]], atol=1e-14)


def check_scores(law: Distribution) -> None:
    y = law.quantile(LEVELS)
    mean, std = law.mean(), law.std()
    assert np.all(np.isfinite(mean))
    assert np.all(std >= 0)
    spread = y.max() - y.min()
    outside = np.array([[y.min() - 3 * spread - 1, y.max() + 3 * spread + 1]])
    for values in (y, outside):
        crps = law.crps(values)
        assert np.all(np.isfinite(crps))
        assert np.all(crps >= 0)
    # |y - E Y| - E |Y - Y'| / 2 <= crps <= E |y - Y|, E |Y - Y'| / 2 <= std / 3^(1/2), and what lies beyond y, 10^-6 of
    # the mass, moves E |y - Y| from |y - E Y| by no more than 2 10^-3 std.
    if np.isfinite(std):
        distance = np.abs(outside[0] - mean)
        assert np.all(law.crps(outside)[0] <= distance * (1 + 1e-9) + 2e-3 * std)
        assert np.all(law.crps(outside)[0] >= distance * (1 - 1e-9) - 0.578 * std)


def check_log_prob(law: Distribution) -> None:
    y = law.quantile(LEVELS)
    log_prob = law.log_prob(y)
    assert not np.any(np.isnan(log_prob))
    rounded_to_an_end = (law.cdf_left(y) == 0.0) | (law.cdf(y) == 1.0)
    assert np.all((log_prob > -np.inf) | (rounded_to_an_end & (not law.is_discrete)))
    if law.is_discrete:
        np.testing.assert_allclose(np.exp(log_prob), law.cdf(y) - law.cdf_left(y), rtol=1e-7, atol=1e-11)
        assert np.all(law.log_prob(np.array([[-1.0, 0.5]])) == -np.inf)


def check_characteristic_function(law: Distribution) -> None:
    width = float(law.quantile(0.99)[0] - law.quantile(0.01)[0])
    t = np.array([0.0, 0.1, 1.0, 4.0]) / (width if width > 0 else 1.0)
    wave = law.characteristic_function(t)
    assert np.all(np.isfinite(wave))
    np.testing.assert_allclose(wave[:, 0], 1.0, atol=1e-12)
    assert np.all(np.abs(wave) <= 1 + 1e-9)


def check_draws(law: Distribution) -> None:
    draws = law.sample(400, seed=3)
    assert np.all(np.isfinite(draws))
    shares = np.mean(draws[:, None, :] <= law.quantile(LEVELS)[:, :, None], axis=2)
    allowed = 5 * np.sqrt(law.cdf(law.quantile(LEVELS)) * (1 - LEVELS) / 400) + 0.02
    assert np.all(shares >= LEVELS - allowed)
    if law.is_discrete:
        assert np.all((draws >= 0) & (draws == np.floor(draws)))


test_cdf_and_quantiles = on_a_law(check_cdf_and_quantiles)
test_scores = on_a_law(check_scores)
test_log_prob = on_a_law(check_log_prob)
test_characteristic_function = on_a_law(check_characteristic_function)
test_draws = on_a_law(check_draws)


@pytest.mark.parametrize(
    ("check", "law"),
    [
        (check_cdf_and_quantiles, families.Gamma(1e5, 1e-8)),
        (check_cdf_and_quantiles, families.Beta(0.6618509500770257, 0.6618509500770257)),
        (check_cdf_and_quantiles, families.Beta(717456940849.631, 179287076698.67944)),
        (check_cdf_and_quantiles, families.Beta(1000.0, 1e9)),
        (check_cdf_and_quantiles, families.Beta(29427271762.09282, 1000.0)),
        (check_log_prob, families.Uniform(1.0, 1e-10)),
        (check_scores, families.LogNormal(1e-8, 1.0)),
        (check_characteristic_function, families.Beta(1.0, 10.0**-3.5)),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_what_a_longer_search_found(check: Callable[[Distribution], None], law: Distribution) -> None:
    check(law)


# Shapes with frequencies in and out of the range where the ends of the law say all.
@pytest.mark.parametrize(
    ("a", "b"),
    [(1.09, 42.5), (0.5, 0.7), (20.0, 3.0), (200.0, 90.0), (1e-3, 2.0), (7e-4, 50.0), (0.3, 7.5), (1e-4, 1e-4)],
)
def test_characteristic_functions_of_beta_laws_are_confluent_hypergeometric(a: float, b: float) -> None:
    law = families.Beta(a, b)
    t = np.array([0.3, -2.0, 9.0, 45.0, 300.0, -3e3, 1e5, 1e9]) / float(law.std()[0])
    with mp.workdps(40):
        exact = [complex(mp.hyp1f1(a, a + b, 1j * mp.mpf(float(value)), maxterms=10**6)) for value in t]
    np.testing.assert_allclose(law.characteristic_function(t)[0], exact, atol=1e-10)


def test_every_family_is_drawn() -> None:
    fixed = {
        "Distribution",
        "MultivariateNormal",
        "Samples",
        "Quantiles",
        "Histogram",
        "WeightedSamples",
        "Deterministic",
    }
    assert set(LAWS) == set(families.__all__) - fixed
