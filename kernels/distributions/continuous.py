"""The continuous families without bounds of their own: scipy's, with scores of scoringrules.

Where a closed form of the CRPS is not finite, it is an integral over the cdf. A family has a formula of its own only
where that of the libraries fails at parameters that models predict.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import scipy
import scipy.special
import scoringrules

from congruence.kernels.arrays import Array, average_wave, row_slices, waves
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.base import Parametric, Seed
from congruence.kernels.distributions.expectations import (
    BLOCK_ENTRIES,
    gaussian_expectation,
    has_gaussian_expectation,
    shifted,
)
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.rng import stream

_LARGE_ORDER = 25.0  # of a Bessel function, from which the scale of a t distribution is a narrow mixture
_NORMAL_DF = 1e8  # degrees of freedom, from which beta functions have fewer digits than the normal limit is right to
_SCALE_NODES = np.linspace(-8.5, 8.5, 41)
_REACH = 9.0  # standard deviations of the logarithm of a log-normal distribution
_MOST_TURNS = 1e5  # of a wave over the spread of a beta distribution, beyond which there are no more nodes


class ScipyFamily(Parametric):
    """A family that scipy.stats has under the name ``_in_scipy``, with parameters of the same names."""

    _in_scipy: ClassVar[str]

    def _scipy(self, what: str, parameters: Sequence[Array], *given: Any, **options: Any) -> Array:
        """A function of scipy's distribution with ``parameters``: a frozen one writes its documentation again."""
        named = dict(zip(self.parameters(), parameters, strict=True))
        return np.asarray(getattr(getattr(scipy.stats, self._in_scipy), what)(*given, **named, **options))

    def _log_prob(self, y: Array) -> Array:
        return self._scipy("logpdf", self._columns, y)

    def _cdf(self, y: Array) -> Array:
        return self._scipy("cdf", self._columns, y)

    def _quantile(self, q: Array) -> Array:
        return self._scipy("ppf", self._columns, q)

    def _crps(self, y: Array) -> Array:
        """In closed form, and by quadrature in rows where that is not finite."""
        with np.errstate(all="ignore"):
            scores = self._closed_crps(y)
        wrong = ~np.all(np.isfinite(scores), axis=1)
        if np.any(wrong):
            scores[wrong] = quadrature.crps(self[wrong], y[wrong])
        return np.maximum(scores, 0.0)

    @abstractmethod
    def _closed_crps(self, y: Array) -> Array:
        """The CRPS of y (n, k), which may fail to be finite."""

    def mean(self) -> Array:
        return self._scipy("mean", self._law)

    def std(self) -> Array:
        return self._scipy("std", self._law)

    def sample(self, size: int, seed: Seed = 0) -> Array:
        rng = stream(seed, "samples")
        return self._scipy("rvs", self._columns, size=(len(self), size), random_state=rng)


class LocationScale(ScipyFamily):
    """loc + scale Z, for a standard distribution of Z that the family gives."""

    loc: Array
    scale: Array

    @abstractmethod
    def _standard_characteristic_function(self, x: Array) -> Array:
        """E exp(i x_ij Z) for x (n, m)."""

    def _standard_moments(self, order: int) -> Array:
        """E Z^k for k = 0, ..., order, (order + 1,) or (n, order + 1)."""
        standard = getattr(scipy.stats, self._in_scipy)
        return np.array([standard.moment(k) for k in range(order + 1)])

    def characteristic_function(self, t: Array) -> Array:
        t, shapes = np.asarray(t), [values for name, values in self.parameters().items() if name != "loc"]
        # Rows of one scale have one law but for their location: a single row is asked.
        asked = self[:1] if len(self) and all(np.ptp(values) == 0.0 for values in shapes) else self
        standard = asked._standard_characteristic_function(np.multiply.outer(asked.scale, t))
        return np.asarray(standard * waves(self.loc, t))

    def translated(self, by: float) -> Self:
        return type(self)(**self.parameters() | {"loc": self.loc + by})

    def raw_moments(self, order: int) -> Array:
        return shifted(self.loc, self.scale, self._standard_moments(order))


@dataclass(frozen=True, repr=False)
class Normal(LocationScale):
    """N(loc, scale^2)."""

    _in_scipy = "norm"
    _above_zero: ClassVar = {"scale": "a positive standard deviation"}

    loc: Array
    scale: Array

    def mean(self) -> Array:
        return self.loc.copy()

    def std(self) -> Array:
        return self.scale.copy()

    def _cdf(self, y: Array) -> Array:
        """Without what scipy.stats does around it, for the mixtures that ask a hundred times."""
        loc, scale = self._columns
        return np.asarray(scipy.special.ndtr((y - loc) / scale))

    def _quantile(self, q: Array) -> Array:
        loc, scale = self._columns
        return np.asarray(loc + scale * scipy.special.ndtri(q))

    def _closed_crps(self, y: Array) -> Array:
        return np.asarray(scoringrules.crps_normal(y, *self._columns))

    def _standard_characteristic_function(self, x: Array) -> Array:
        return np.asarray(np.exp(-0.5 * x**2))

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution; Gaussian integrals where they have a closed form, else quadrature."""
        if not has_gaussian_expectation(kernel):
            return super().kernel_expectation(kernel, nodes)
        points = np.asarray(nodes, dtype=np.float64)[:, None]
        return gaussian_expectation(kernel, self.loc[:, None], self.scale[:, None] ** 2, points, np.zeros_like(points))


@dataclass(frozen=True, repr=False)
class Laplace(LocationScale):
    """Density exp(-|y - loc| / scale) / (2 scale)."""

    _in_scipy = "laplace"
    _above_zero: ClassVar = {"scale": "a positive scale"}

    loc: Array
    scale: Array

    def _log_prob(self, y: Array) -> Array:
        """scipy takes the logarithm of a density that vanishes 745 scales from the center."""
        loc, scale = self._columns
        return np.asarray(-np.abs(y - loc) / scale - np.log(2.0 * scale))

    def _closed_crps(self, y: Array) -> Array:
        return np.asarray(scoringrules.crps_laplace(y, *self._columns))

    def _standard_characteristic_function(self, x: Array) -> Array:
        return np.asarray(1.0 / (1.0 + x * x))

    def _standard_moments(self, order: int) -> Array:
        power = np.arange(order + 1)
        return np.where(power % 2 == 0, scipy.special.factorial(power), 0.0)

    def breaks(self) -> Array:
        return self.loc[:, None]


@dataclass(frozen=True, repr=False)
class Logistic(LocationScale):
    """P(Y <= y) = 1 / (1 + exp(-(y - loc) / scale)); the standard deviation is pi scale / sqrt(3)."""

    _in_scipy = "logistic"
    _above_zero: ClassVar = {"scale": "a positive scale"}

    loc: Array
    scale: Array

    def _closed_crps(self, y: Array) -> Array:
        return np.asarray(scoringrules.crps_logistic(y, *self._columns))

    def _standard_characteristic_function(self, x: Array) -> Array:
        """pi x / sinh(pi x), as 2 x exp(-x) / (1 - exp(-2 x)): sinh itself overflows for rows of large scale."""
        x = np.pi * np.abs(x)
        safe = np.where(x == 0.0, 1.0, x)
        return np.where(x == 0.0, 1.0, 2.0 * x * np.exp(-x) / -np.expm1(-2.0 * safe))

    def _standard_moments(self, order: int) -> Array:
        power = np.arange(order + 1)
        bernoulli = scipy.special.bernoulli(max(order, 2))[: order + 1]  # 0 at odd powers
        return np.abs((2.0**power - 2.0) * np.pi**power * bernoulli)


@dataclass(frozen=True, repr=False)
class Uniform(LocationScale):
    """Uniform on [loc, loc + scale], as in scipy; the log score is infinite outside."""

    _in_scipy = "uniform"
    _above_zero: ClassVar = {"scale": "a positive width"}

    loc: Array
    scale: Array

    def _log_prob(self, y: Array) -> Array:
        """The upper end is loc + scale as it is rounded, which is where quantiles end."""
        loc, scale = self._columns
        return np.where((y >= loc) & (y <= loc + scale), -np.log(scale), -np.inf)

    def _closed_crps(self, y: Array) -> Array:
        loc, scale = self._columns
        return np.asarray(scoringrules.crps_uniform(y, loc, loc + scale))

    def _standard_characteristic_function(self, x: Array) -> Array:
        """exp(i x / 2) sin(x / 2) / (x / 2)."""
        return np.asarray(np.exp(0.5j * x) * np.sinc(x / (2.0 * np.pi)))


@dataclass(frozen=True, repr=False)
class StudentT(LocationScale):
    """loc + scale T, where T has ``df`` degrees of freedom.

    For df <= 2 ``std`` is infinite; for df <= 1 the mean does not exist: ``mean`` is the center, ``crps`` raises.
    """

    _in_scipy = "t"
    _above_zero: ClassVar = {"df": "positive degrees of freedom", "scale": "a positive scale"}

    df: Array
    loc: Array
    scale: Array

    def mean(self) -> Array:
        """See Distribution; the center where df <= 1."""
        return self.loc.copy()

    def std(self) -> Array:
        """See Distribution; infinite where df <= 2."""
        spread = np.sqrt(self.df / np.maximum(self.df - 2.0, np.finfo(np.float64).tiny))
        return np.where(self.df > 2.0, self.scale * spread, np.inf)

    def _crps(self, y: Array) -> Array:
        """See Distribution.

        Raises:
            InvalidInputError: df <= 1 in a row, where E |Y - y| and the closed form are infinite.
        """
        if not np.all(self.df > 1.0):
            row = int(np.argmin(self.df > 1.0))
            raise InvalidInputError(
                f"StudentT.crps: row {row} has df {self.df[row]:g}; E |Y - y| is infinite for df <= 1. Constrain the "
                "model to df > 1, or use the log score"
            )
        return super()._crps(y)

    def _closed_crps(self, y: Array) -> Array:
        df, loc, scale = self._columns
        return np.asarray(scoringrules.crps_t(y, np.minimum(df, _NORMAL_DF), loc, scale))

    def _standard_characteristic_function(self, x: Array) -> Array:
        """z^v K_v(z) / (2^(v - 1) Gamma(v)) with v = df / 2, z = sqrt(df) |x| (Hurst 1995).

        At many degrees of freedom, where Bessel functions overflow, by the trapezoid rule over the logarithm of the
        precision, which is nearly normal there: T is a normal mixture.
        """
        order = self.df / 2.0
        result = np.empty(x.shape)
        large = order > _LARGE_ORDER
        z = np.sqrt(self.df[~large, None]) * np.abs(x[~large])
        result[~large] = _scaled_bessel(np.broadcast_to(order[~large, None], z.shape), z)
        if np.any(large):
            shape = order[large, None]
            log_precision = _SCALE_NODES / np.sqrt(shape)
            weights = np.exp(shape * (log_precision - np.expm1(log_precision)))
            weights /= weights.sum(axis=1, keepdims=True)
            variances = np.exp(-log_precision)
            mixed = np.zeros((len(shape), x.shape[1]))
            for weight, variance in zip(weights.T, variances.T, strict=True):
                mixed += weight[:, None] * np.exp(-0.5 * variance[:, None] * x[large] ** 2)
            result[large] = mixed
        return result

    def _standard_moments(self, order: int) -> Array:
        standard = np.zeros((len(self), order + 1))
        standard[:, 0] = 1.0
        for k in range(2, order + 1, 2):
            with np.errstate(divide="ignore"):
                standard[:, k] = standard[:, k - 2] * (self.df * (k - 1.0) / (self.df - k))
        # E |T|^k is infinite from k = df on, where odd moments do not exist either.
        standard[np.arange(order + 1) >= self.df[:, None]] = np.inf
        return standard


def _scaled_bessel(order: Array, z: Array) -> Array:
    """z^v K_v(z) / (2^(v - 1) Gamma(v)), which tends to 1 at z = 0, for moderate orders."""
    scaled = scipy.special.kve(order, z)
    near_zero = ~np.isfinite(scaled)  # K_v overflows only where the product has reached its limit
    z, scaled = np.where(near_zero, 1.0, z), np.where(near_zero, 1.0, scaled)
    log = np.log(scaled) - z + order * np.log(z) - scipy.special.gammaln(order) - (order - 1.0) * np.log(2.0)
    return np.where(near_zero, 1.0, np.exp(log))


@dataclass(frozen=True, repr=False)
class LogNormal(ScipyFamily):
    """log Y ~ N(log scale, s^2), in scipy's parameters: ``scale`` is the median exp(mu), ``s`` the log's deviation.

    The mean, scale exp(s^2 / 2), is beyond float64 and infinite from s = 38 on, the standard deviation from 27 on.
    """

    _in_scipy = "lognorm"
    _above_zero: ClassVar = {"s": "a positive standard deviation of the logarithm", "scale": "a positive median"}

    s: Array
    scale: Array

    def std(self) -> Array:
        """See Distribution; scipy's takes the difference exp(s^2) - 1, which is 0 for s below 10^-8."""
        square = self.s**2
        with np.errstate(over="ignore"):
            return np.asarray(self.scale * np.exp(square / 2.0) * np.sqrt(np.expm1(square)))

    def _closed_crps(self, y: Array) -> Array:
        """Baran and Lerch (2015), by tails: scoringrules' differences of numbers of the size of the mean lose all."""
        s, scale = self._columns
        log_mean = np.log(scale) + 0.5 * s**2
        z = (np.log(np.maximum(y, 0.0)) - np.log(scale)) / s
        half_difference = np.exp(log_mean + scipy.special.log_ndtr(-s / np.sqrt(2.0)))
        within = np.exp(log_mean + scipy.special.log_ndtr(z - s))
        lower, upper = scipy.special.ndtr(z), scipy.special.ndtr(-z)
        return np.asarray(y * (lower - upper) + 2.0 * half_difference - 2.0 * within)

    def characteristic_function(self, t: Array) -> Array:
        r"""Trapezoid rule for E exp(i t scale e^{sZ}) with Z moved to the line Im Z = theta / s.

        There exp(i t y) decays instead of oscillating; theta = min(2 s, pi / 2) keeps the factor that the shift brings
        to the normal density below e^2. Negative frequencies follow by conjugation.
        """
        t = np.asarray(t)
        result = np.empty((len(self), len(t)), dtype=np.complex128)
        order, start = np.argsort(self.s), 0
        while start < len(order):  # rows of similar s share their nodes
            similar = np.searchsorted(self.s[order], max(1.5, 2.0 * self.s[order[start]]), side="right")
            nodes = int(96 * max(1.0, self.s[order[similar - 1]] / 1.5))
            rows = order[start : min(similar, start + max(1, BLOCK_ENTRIES // nodes))]
            result[rows] = self[rows]._on_moved_line(np.linspace(-_REACH, _REACH, nodes), np.abs(t))
            start += len(rows)
        return np.where(t < 0, np.conj(result), result)

    def _on_moved_line(self, u: Array, t: Array) -> Array:
        s = self.s[:, None]
        z = u + 1j * np.minimum(2.0 * s, np.pi / 2.0) / s
        weights = np.exp(-0.5 * z**2) * ((u[1] - u[0]) / np.sqrt(2.0 * np.pi))
        logarithm = np.log(self.scale)[:, None] + s * z
        # Beyond e^690 every wave has died out.
        values = np.exp(np.minimum(logarithm.real, 690.0) + 1j * logarithm.imag)
        return average_wave(values, weights, t)

    def raw_moments(self, order: int) -> Array:
        power = np.arange(order + 1)
        with np.errstate(over="ignore"):
            return np.asarray(
                np.exp(np.multiply.outer(np.log(self.scale), power) + 0.5 * (self.s[:, None] * power) ** 2)
            )


@dataclass(frozen=True, repr=False)
class Gamma(ScipyFamily):
    """Shape ``a`` and ``scale`` (mean a scale), as in scipy; the log score is infinite below 0."""

    _in_scipy = "gamma"
    _above_zero: ClassVar = {"a": "a positive shape", "scale": "a positive scale"}

    a: Array
    scale: Array

    def _closed_crps(self, y: Array) -> Array:
        a, scale = self._columns
        return np.asarray(scoringrules.crps_gamma(np.maximum(y, 0.0), a, scale=scale) + np.maximum(-y, 0.0))

    def characteristic_function(self, t: Array) -> Array:
        """(1 - i t scale)^(-a)."""
        return np.asarray(np.exp(-self.a[:, None] * scipy.special.log1p(-1j * np.multiply.outer(self.scale, t))))

    def raw_moments(self, order: int) -> Array:
        steps = np.cumprod(self.a[:, None] + np.arange(order), axis=1)
        scaled = self.scale[:, None] ** np.arange(order + 1)
        return np.asarray(np.concatenate([np.ones((len(self), 1)), steps], axis=1) * scaled)


@dataclass(frozen=True, repr=False)
class Beta(ScipyFamily):
    """Density proportional to y^(a - 1) (1 - y)^(b - 1) on [0, 1]; the log score is infinite outside."""

    _in_scipy = "beta"
    _above_zero: ClassVar = {"a": "a positive shape", "b": "a positive shape"}

    a: Array
    b: Array

    def _quantile(self, q: Array) -> Array:
        a, b = self._columns
        return np.asarray(scipy.special.betaincinv(a, b, q))  # scipy.stats warns of some levels of small a

    def _closed_crps(self, y: Array) -> Array:
        inside = np.clip(y, 0.0, 1.0)
        return np.asarray(scoringrules.crps_beta(inside, *self._columns) + np.abs(y - inside))

    def raw_moments(self, order: int) -> Array:
        steps = np.arange(order)
        ratio = (self.a[:, None] + steps) / ((self.a + self.b)[:, None] + steps)
        return np.concatenate([np.ones((len(self), 1)), np.cumprod(ratio, axis=1)], axis=1)

    def characteristic_function(self, t: Array) -> Array:
        """Trapezoid rule in u with logit Y = center + width sinh(u): exponentially small ends for every shape."""
        a, b = self.a[:, None], self.b[:, None]
        spread = np.sqrt(scipy.special.polygamma(1, a + 1.0) + scipy.special.polygamma(1, b + 1.0))
        center = scipy.special.digamma(a + 1.0) - scipy.special.digamma(b + 1.0)
        # Beyond these logits less than 1e-16 of the mass remains: the tails fall as exp(a logit) and exp(-b logit).
        left, right = (np.arcsinh(np.maximum(12.0, 40.0 / shape / spread)) for shape in (a, b))
        turns = min(float(np.max(self.std()) * np.max(np.abs(t), initial=0.0)), _MOST_TURNS)
        nodes = int(np.max(left + right) * (15.0 + 5.0 * turns))
        result = np.empty((len(self), len(t)), dtype=np.complex128)
        for rows in row_slices(len(self), BLOCK_ENTRIES // nodes):
            u = -left[rows] + np.linspace(0.0, 1.0, nodes) * (left[rows] + right[rows])
            logit = center[rows] + spread[rows] * np.sinh(u)
            log_mass = -a[rows] * np.logaddexp(0.0, -logit) - b[rows] * np.logaddexp(0.0, logit)
            mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True)) * np.cosh(u)
            # The rule itself gives the normaliser, without the cancellation of log-gamma functions.
            result[rows] = average_wave(scipy.special.expit(logit), mass / mass.sum(axis=1, keepdims=True), t)
        return result
