"""Families at the edges of their parameters, against 25 digits."""

from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest

from congruence.kernels import distributions as families
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.counts import Count
from congruence.kernels.kernel_functions import Laplacian

mp.mp.dps = 25
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


LIMITS: dict[str, tuple[Callable[[float], Count], Callable[[float], Mass]]] = {
    "Poisson": (families.Poisson, poisson),
    "Binomial of one trial": (lambda p: families.Binomial(1, p), lambda p: binomial(1, p)),
    "Binomial": (lambda p: families.Binomial(30, p), lambda p: binomial(30, p)),
    "NegativeBinomial, d = 1e-9": (lambda m: families.NegativeBinomial(m, 1e-9), lambda m: negative_binomial(m, 1e-9)),
    "NegativeBinomial, d = 2": (lambda m: families.NegativeBinomial(m, 2.0), lambda m: negative_binomial(m, 2.0)),
    "DoublePoisson": (lambda m: families.DoublePoisson(m, 1.7), lambda m: double_poisson(m, 1.7)),
}
RATES = (1e-250, 1e-17, 1e-8, 1e-3, 0.3, 0.9)


@pytest.mark.parametrize(
    ("family", "rate", "zero"),
    [(family, rate, 0.25 * ((i + j) % 2)) for i, family in enumerate(LIMITS) for j, rate in enumerate(RATES)],
)
def test_hurdles_at_small_rates(family: str, rate: float, zero: float) -> None:
    make, masses = LIMITS[family]
    assert_is_the_law(families.Hurdle(make(rate), zero), hurdle(masses(rate), zero))


@pytest.mark.parametrize(
    "law",
    [
        families.Hurdle(families.Poisson(0.0), 0.25),
        families.Hurdle(families.Binomial(5, 0.0), 0.25),
        families.Hurdle(families.NegativeBinomial(0.0, 0.5), 0.25),
        families.Hurdle(families.NegativeBinomial(0.0, 0.0), 0.25),
        families.ZeroInflated(families.Binomial(1, 1.0), 0.25),
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
        (families.ZeroInflated(families.Poisson(3.0), 1.0), 0),
        (families.Hurdle(families.Poisson(3.0), 1.0), 0),
        (families.Hurdle(families.DoublePoisson(3.0, 2.0), 1.0), 0),
        (families.ZeroInflated(families.Binomial(4, 1.0), 0.0), 4),
        (families.Hurdle(families.Binomial(4, 1.0), 0.0), 4),
    ],
    ids=lambda law: type(law).__name__ if isinstance(law, Distribution) else "",
)
def test_laws_of_one_value(law: Distribution, value: int) -> None:
    assert_is_the_law(law, [mp.mpf(int(k == value)) for k in range(6)])


def test_rare_successes_among_many_trials_are_poisson() -> None:
    """Binomial(1e12, 1e-12): the characteristic function was off by 4e-5."""
    assert_is_the_law(families.Binomial(10**12, 1e-12), poisson(1.0))


def test_poisson_at_rates_that_scipy_cannot_invert() -> None:
    law = families.Poisson([1e8, 1e9])
    levels = np.array([[1e-9, 0.2, 0.5, 0.9, 1 - 1e-9]])
    values = law.quantile(levels)
    assert np.all(law.cdf(values) >= levels)
    assert np.all(law.cdf(values - 1) < levels)
    normal = families.Normal(law.rate, np.sqrt(law.rate))
    np.testing.assert_allclose(law.crps(law.rate + 1e4), normal.crps(law.rate + 1e4), rtol=1e-3)


Number = "mp.mpf"


def normal_cdf(z: Number) -> Number:
    return mp.erfc(-z / mp.sqrt(2)) / 2


def squared(upper: Callable[[Number], Number], start: Number, stop: Number, parts: int = 3) -> Number:
    return mp.quad(lambda s: upper(s) ** 2, mp.linspace(start, stop, parts + 1), maxdegree=4)


# loc, scale, lower, upper
TRUNCATED = [
    (0.0, 1.0, 30.0, np.inf),
    (0.0, 1.0, 1000.0, np.inf),
    (-1e6, 1.0, 0.0, np.inf),
    (1e6, 1.0, -np.inf, 0.0),
    (3.0, 1.0, -np.inf, -40.0),
    (0.0, 1.0, 40.0, 40.02),
    (0.0, 1e3, 0.0, 1.0),
    (0.3, 1e9, 0.0, 1.0),
    (1e7, 1e4, 0.0, 1.0),
    (0.5, 0.2, 0.0, 1.0),
    (0.0, 1.0, 1.0, np.inf),
    (0.0, 1.0, -0.1, 0.3),
]


class TruncatedOracle:
    """Offsets t from the center, in standard deviations."""

    def __init__(self, loc: float, scale: float, lower: float, upper: float) -> None:
        self.loc, self.scale = mp.mpf(loc), mp.mpf(scale)
        self.center = mp.mpf(min(max(loc, lower), upper))
        self.c = (self.center - self.loc) / self.scale
        reach = mp.mpf(180) / (abs(self.c) + mp.sqrt(self.c**2 + 180))
        self.low = max((mp.mpf(lower) - self.center) / self.scale, -reach)
        self.high = min((mp.mpf(upper) - self.center) / self.scale, reach)
        self.total = self.mass(self.high)

    def mass(self, t: Number) -> Number:
        """In closed form: erfc keeps its relative precision in its tail, and 80 digits bear the difference."""
        with mp.workdps(80):
            sign = -1 if self.c < 0 else 1
            ends = sorted((sign * (self.low + self.c), sign * (t + self.c)))
            difference = mp.erfc(ends[0] / mp.sqrt(2)) - mp.erfc(ends[1] / mp.sqrt(2))
            return mp.sqrt(mp.pi / 2) * mp.exp(self.c**2 / 2) * difference

    def cdf(self, t: Number) -> Number:
        return self.mass(t) / self.total

    def moment(self, f: Callable[[Number], Number]) -> Number:
        density = lambda t: f(t) * mp.exp(-t * (t + 2 * self.c) / 2)  # noqa: E731
        return mp.quad(density, mp.linspace(self.low, self.high, 4)) / self.total

    def crps(self, t: Number) -> Number:
        t = min(max(t, self.low), self.high)
        below = squared(self.cdf, self.low, t)
        return self.scale * (below + squared(lambda s: 1 - self.cdf(s), t, self.high))


@pytest.mark.parametrize("parameters", TRUNCATED, ids=str)
def test_truncated_normals(parameters: tuple[float, float, float, float]) -> None:
    law, oracle = families.TruncatedNormal(*parameters), TruncatedOracle(*parameters)
    levels = [1e-12, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-6]
    values = law.quantile(np.array([levels]))[0]
    offsets = [(mp.mpf(value) - oracle.center) / oracle.scale for value in values]
    spread = float(mp.sqrt(oracle.moment(lambda t: t * t) - oracle.moment(lambda t: t) ** 2))
    # A value that lies far from 0 is known to its own rounding only.
    rounding = float(np.max(np.abs(values)) * 2e-16 / (oracle.scale * spread))
    np.testing.assert_allclose([float(oracle.cdf(t)) for t in offsets], levels, rtol=1e-9, atol=1e-14 + 4 * rounding)
    np.testing.assert_allclose(law.cdf(values[None, :])[0], levels, rtol=1e-9, atol=1e-14 + 4 * rounding)
    expected = [float(-t * (t + 2 * oracle.c) / 2 - mp.log(oracle.total * oracle.scale)) for t in offsets]
    np.testing.assert_allclose(law.log_prob(values[None, :])[0], expected, rtol=1e-12, atol=1e-12)
    mean = oracle.center + oracle.scale * oracle.moment(lambda t: t)
    np.testing.assert_allclose(law.mean(), float(mean), rtol=1e-14, atol=1e-12 * float(oracle.scale) * spread)
    np.testing.assert_allclose(law.std(), float(oracle.scale) * spread, rtol=1e-10)
    scored = [1, 4]
    scores = [float(oracle.crps(offsets[i])) for i in scored]
    crps = law.crps(values[None, scored])[0]
    np.testing.assert_allclose(crps, scores, rtol=1e-7, atol=1e-9 * float(oracle.scale) * spread)
    for frequency in (0.0, 0.7, 3.0):
        t = frequency / (float(oracle.scale) * spread)
        wave = oracle.moment(lambda s, t=t: mp.expj(t * oracle.scale * s)) * mp.expj(t * oracle.center)
        assert abs(law.characteristic_function(np.array([t]))[0, 0] - complex(wave)) < 1e-12 + 8 * rounding


# loc, scale, lower, upper: ordinary rows of a Tobit head among them
CENSORED = [
    (-8.3, 1.0, 0.0, np.inf),
    (-9.0, 1.0, 0.0, np.inf),
    (-40.0, 1.0, 0.0, 5.0),
    (-1e6, 1.0, 0.0, np.inf),
    (1e6, 1.0, -np.inf, 0.0),
    (12.0, 1.0, -np.inf, 0.0),
    (30.0, 2.0, 0.0, 10.0),
    (0.5, 1e5, 0.0, 1.0),
    (0.4, 0.2, 0.0, 1.0),
    (-2.0, 1.0, 0.0, np.inf),
]


@pytest.mark.parametrize("parameters", CENSORED, ids=str)
def test_censored_normals(parameters: tuple[float, float, float, float]) -> None:
    loc, scale, lower, upper = parameters
    law = families.CensoredNormal(*parameters)
    cdf = lambda s: normal_cdf((mp.mpf(s) - mp.mpf(loc)) / mp.mpf(scale))  # noqa: E731
    edges = [lower if np.isfinite(lower) else min(loc, upper) - 30 * scale]
    edges += [upper if np.isfinite(upper) else max(loc, lower) + 30 * scale]
    for y in (edges[0], edges[1], 0.0, 0.3, 0.9, 7.0, -3.0):
        inside = min(max(y, lower), upper)
        expected = abs(mp.mpf(y) - inside)
        for start, stop, side in ((edges[0], inside, cdf), (inside, edges[1], lambda s: 1 - cdf(s))):
            inner = [p for p in (loc - 3 * scale, loc, loc + 3 * scale, start + scale) if start < p < stop]
            points = sorted({start, stop, *inner})
            expected += mp.quad(lambda s, side=side: side(s) ** 2, points) if start < stop else 0
        np.testing.assert_allclose(law.crps(y), float(expected), rtol=1e-11, atol=1e-12 * scale, err_msg=str(y))
    below = cdf(lower) if np.isfinite(lower) else mp.mpf(0)
    above = 1 - cdf(upper) if np.isfinite(upper) else mp.mpf(0)
    density = lambda s: mp.npdf(s, loc, scale)  # noqa: E731
    points = sorted(
        {edges[0], edges[1], *(p for p in (loc - 3 * scale, loc, loc + 3 * scale) if edges[0] < p < edges[1])}
    )
    ends = [mp.mpf(end) if np.isfinite(end) else mp.mpf(0) for end in (lower, upper)]
    mean = below * ends[0] + above * ends[1] + mp.quad(lambda s: s * density(s), points)
    square = below * (ends[0] - mean) ** 2 + above * (ends[1] - mean) ** 2
    square += mp.quad(lambda s: (s - mean) ** 2 * density(s), points)
    np.testing.assert_allclose(law.mean(), float(mean), rtol=1e-11, atol=1e-13 * scale)
    np.testing.assert_allclose(law.std(), float(mp.sqrt(square)), rtol=1e-9, atol=1e-11 * scale)


def test_one_remote_row_leaves_the_mean_score_finite() -> None:
    law = families.CensoredNormal([1.0, -8.4, -200.0], 1.0, 0.0, np.inf)
    scores = law.crps(np.array([0.5, 0.0, 2.0]))
    assert np.all(np.isfinite(scores))
    np.testing.assert_allclose(scores[1:], [0.0, 2.0], atol=1e-15)


def test_log_densities_far_out() -> None:
    z = np.array([[-1e5, -800.0, -30.0, 0.0, 40.0, 750.0, 1e6]])
    np.testing.assert_allclose(families.Laplace(0.0, 2.0).log_prob(2 * z), -np.abs(z) - np.log(4.0), rtol=1e-15)
    assert families.Laplace(0.0, 1.0).log_prob(750.0)[0] == pytest.approx(-750.6931471805599, abs=1e-12)
    np.testing.assert_allclose(families.Normal(0.0, 1.0).log_prob(z), -z * z / 2 - np.log(2 * np.pi) / 2)
    np.testing.assert_allclose(families.Logistic(0.0, 1.0).log_prob(z)[0, [0, 1, 5, 6]], -np.abs(z)[0, [0, 1, 5, 6]])
    expected = [float(-mp.log(mp.pi) - mp.log1p(mp.mpf(v) ** 2)) for v in z[0]]
    np.testing.assert_allclose(families.StudentT(1.0, 0.0, 1.0).log_prob(z)[0], expected, rtol=1e-13)


@pytest.mark.parametrize("df", [1.5, 2.0, 30.0, 1e5, 1e9, 1e12, 1e15, 1e16, 1e20])
def test_student_t_becomes_normal(df: float) -> None:
    """At df = 1e15 the CRPS was off by .034."""
    law = families.StudentT(df, 0.0, 1.0)
    y = np.array([-2.0, 0.0, 0.7, 5.0])
    if df >= 1e5:
        normal = families.Normal(0.0, 1.0)
        np.testing.assert_allclose(law.crps(y[None, :]), normal.crps(y[None, :]), rtol=2 / df + 1e-8)
        np.testing.assert_allclose(law.log_prob(y[None, :]), normal.log_prob(y[None, :]), atol=200 / df + 1e-14)
        np.testing.assert_allclose(law.cdf(y[None, :]), normal.cdf(y[None, :]), atol=2 / df + 1e-15)
        t = np.array([0.0, 0.5, 2.0])
        wave = law.characteristic_function(t)
        np.testing.assert_allclose(wave, normal.characteristic_function(t), atol=2 / df + 1e-14)
        return
    nu = mp.mpf(df)
    half = mp.beta(nu / 2, mp.mpf(1) / 2)
    upper = lambda s: mp.betainc(nu / 2, mp.mpf(1) / 2, 0, nu / (nu + s * s)) / half / 2  # noqa: E731
    cdf = lambda s: 1 - upper(s) if s > 0 else upper(s)  # noqa: E731
    value = 0.7
    below = mp.quad(lambda s: upper(s) ** 2, [0, 1, 4, 20, mp.inf]) + mp.quad(lambda s: cdf(s) ** 2, [0, value])
    expected = below + mp.quad(lambda s: upper(s) ** 2, [value, 1, 4, 20, mp.inf])
    np.testing.assert_allclose(law.crps(value), float(expected), rtol=1e-8)


@pytest.mark.parametrize("s", [1e-6, 0.5, 5.0, 20.0, 40.0])
def test_lognormal_from_a_point_to_a_law_without_a_mean_in_float64(s: float) -> None:
    law = families.LogNormal(s, 2.0)
    for y in (0.0, 0.5, 2.0, 30.0):
        # y (2 F - 1) + E Y - 2 E[Y; Y <= y] - E |Y - Y'| / 2, with E Y as large as e^(s^2 / 2)
        with mp.workdps(500):
            z = mp.log(mp.mpf(y) / 2) / mp.mpf(s) if y > 0 else -mp.inf
            mean = 2 * mp.exp(mp.mpf(s) ** 2 / 2)
            lower = normal_cdf(z) if y > 0 else mp.mpf(0)
            shifted = normal_cdf(z - mp.mpf(s)) if y > 0 else mp.mpf(0)
            half = normal_cdf(mp.mpf(s) / mp.sqrt(2))
            expected = y * (2 * lower - 1) - 2 * mean * (shifted + half - 1)
        np.testing.assert_allclose(law.crps(y), float(expected), rtol=1e-10, atol=1e-15)
    t = np.array([0.0, 0.3, 1.0])
    wave = law.characteristic_function(t)
    rule = np.linspace(-9.0, 9.0, 200_001)
    weight = np.exp(-(rule**2) / 2) * (rule[1] - rule[0]) / np.sqrt(2 * np.pi)
    if s <= 0.5:
        direct = (np.exp(1j * np.multiply.outer(t, 2.0 * np.exp(s * rule))) * weight).sum(axis=1)
        np.testing.assert_allclose(wave[0], direct, atol=1e-10)
    assert np.all(np.isfinite(wave))
    assert np.all(np.abs(wave) <= 1 + 1e-12)


def test_a_wild_row_costs_no_memory_for_the_others() -> None:
    s = np.full(3000, 0.3)
    s[7] = 3000.0
    wave = families.LogNormal(s, 1.0).characteristic_function(np.linspace(0, 3, 20))
    ordinary = families.LogNormal(s[:1], 1.0).characteristic_function(np.linspace(0, 3, 20))
    np.testing.assert_allclose(wave[:1], ordinary, atol=1e-12)
