"""Continuous families far from their centers and at extreme shapes, against 30 digits."""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest

from congruence.kernels import distributions as families
from congruence.kernels.errors import InvalidInputError

mp.mp.dps = 30
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
        """In closed form: erfc keeps its relative precision in its tail, and 40 digits bear the difference."""
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


GAMMA = [(1e-6, 1.0), (0.3, 2.0), (30.0, 1.0), (1e4, 1e-4), (1e8, 3.0), (1e12, 1e-12), (1e15, 1.0)]


@pytest.mark.parametrize(("shape", "scale"), GAMMA)
def test_gamma_at_extreme_shapes(shape: float, scale: float) -> None:
    law = families.Gamma(shape, scale)
    a = mp.mpf(shape)
    for k in (-3.0, 0.0, 2.0):
        y = max(shape + k * np.sqrt(shape), shape / 2) * scale
        z = mp.mpf(y) / mp.mpf(scale)
        log_density = (a - 1) * mp.log(z) - z - mp.loggamma(a) - mp.log(scale)
        # The argument itself is rounded, by eps z, and the slope is a / z - 1.
        np.testing.assert_allclose(law.log_prob(y), float(log_density), rtol=1e-12, atol=1e-12 + 1e-15 * np.sqrt(shape))
    t = np.array([0.0, 0.1, 2.0]) / (np.sqrt(shape) * scale) if shape > 1 else np.array([0.0, 0.5, 3.0])
    wave = [complex(mp.exp(-a * mp.log(1 - 1j * mp.mpf(f) * mp.mpf(scale)))) for f in t]
    np.testing.assert_allclose(law.characteristic_function(t)[0], wave, atol=1e-13 + 1e-15 * np.sqrt(shape))
    if shape >= 1e4:  # nearly normal: the difference is of the order of the skewness
        mean, std = shape * scale, np.sqrt(shape) * scale
        for y in (mean - std, mean, mean + 2 * std):
            np.testing.assert_allclose(
                law.crps(y), families.Normal(mean, std).crps(y), rtol=1.0 / np.sqrt(shape) + 1e-7
            )


BETA = [(1e-3, 2.0), (0.5, 0.5), (30.0, 2.0), (1e6, 1e6), (1e6, 3.0), (1e12, 3e12)]


@pytest.mark.parametrize(("a", "b"), BETA)
def test_beta_at_extreme_shapes(a: float, b: float) -> None:
    law = families.Beta(a, b)
    mean, std = a / (a + b), np.sqrt(a * b / (a + b) ** 2 / (a + b + 1))
    np.testing.assert_allclose(law.std(), std, rtol=1e-12)
    for y in (mean, max(mean - std, mean / 2), min(mean + 2 * std, (1 + mean) / 2)):
        exact = mp.mpf(y)
        log_density = (mp.mpf(a) - 1) * mp.log(exact) + (mp.mpf(b) - 1) * mp.log1p(-exact)
        log_density -= mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(mp.mpf(a) + mp.mpf(b))
        np.testing.assert_allclose(law.log_prob(y), float(log_density), rtol=1e-11, atol=1e-11 * np.sqrt(a + b))
    if min(a, b) >= 1e6:
        normal = families.Normal(mean, std)
        for y in (mean - std, mean, mean + 2 * std):
            np.testing.assert_allclose(law.crps(y), normal.crps(y), rtol=1e-3)
        t = np.array([0.0, 0.1, 2.0]) / std
        np.testing.assert_allclose(law.characteristic_function(t), normal.characteristic_function(t), atol=1e-3)
    else:
        f = 3.0
        wave = mp.hyp1f1(a, mp.mpf(a) + mp.mpf(b), mp.mpc(0, f))
        assert abs(law.characteristic_function(np.array([f]))[0, 0] - complex(wave)) < 1e-12


@pytest.mark.parametrize("df", [1.5, 2.0, 30.0, 1e5, 1e9, 1e12, 1e15, 1e16, 1e20])
def test_student_t_becomes_normal(df: float) -> None:
    """At df = 1e15 the CRPS was off by .034."""
    law = families.StudentT(df, 0.0, 1.0)
    y = np.array([-2.0, 0.0, 0.7, 5.0])
    if df >= 1e5:
        normal = families.Normal(0.0, 1.0)
        np.testing.assert_allclose(law.crps(y[None, :]), normal.crps(y[None, :]), rtol=2 / df + 1e-14)
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


def test_student_t_with_hardly_a_mean() -> None:
    law = families.StudentT(1.0 + np.array([1e-4, 1e-9, 2.3e-16]), 0.0, 1.0)
    scores = law.crps(0.5)
    np.testing.assert_allclose(scores, scores[0], rtol=2e-4)
    with pytest.raises(InvalidInputError, match="row 1 has df 1"):
        families.StudentT([2.0, 1.0], 0.0, 1.0).crps(0.0)


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


@pytest.mark.parametrize("shape", [4e4, 1e6, 1e8, 1e12])
@pytest.mark.parametrize("deviations", [-7.0, -4.6, 4.6, 7.0])
def test_tails_of_gamma_and_poisson_at_large_shapes(shape: float, deviations: float) -> None:
    """scipy's series stop early: at shape 1e8 and -6 deviations it has 9.9e-10 for 1.4e-9."""
    a, sd = mp.mpf(shape), mp.sqrt(shape)
    y = float(np.floor(shape + deviations * np.sqrt(shape)))
    beyond = y + mp.sign(deviations) * 9 * sd
    density = lambda s: mp.exp((a - 1) * mp.log(s) - s - mp.loggamma(a))  # noqa: E731
    tail = float(mp.quad(density, mp.linspace(min(y, beyond), max(y, beyond), 5)))
    gamma, poisson = families.Gamma(shape, 1.0), families.Poisson(y)  # a waiting time beyond y: fewer than a by y
    if deviations < 0:
        np.testing.assert_allclose(gamma.cdf(y), tail, rtol=2e-9)
        np.testing.assert_allclose(poisson.survival(shape - 1), tail, rtol=2e-9)
        np.testing.assert_allclose(gamma.quantile(tail), y, rtol=1e-9 / np.sqrt(shape))
    else:
        np.testing.assert_allclose(poisson.cdf(shape - 1), tail, rtol=2e-9)
        np.testing.assert_allclose(1.0 - gamma.cdf(y), tail, atol=1e-15)
