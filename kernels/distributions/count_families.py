"""The families of counts: Poisson, binomial, negative binomial and double Poisson."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import scipy.special
import scoringrules
from scipy.special import betainc, betaincc, expm1, gammaln, log1p, xlog1py, xlogy

from congruence.kernels.arrays import Array, require_parameter
from congruence.kernels.distributions.base import Seed
from congruence.kernels.distributions.counts import TAIL_MASS, Count, similar_windows
from congruence.kernels.distributions.expectations import from_factorial
from congruence.kernels.rng import stream

_MOST_TRIALS = 2.0**53  # beyond, float64 has not every whole number
_SMALLEST_DISPERSION = 1e-30  # no digit of any method tells it from 0 at means below 1e13
_LARGEST_RATE = 9e18  # of NumPy's Poisson draws
_LARGE = 1e3
_LEAST_CLOSED = 1e-3  # dispersion from which a hypergeometric function has eleven digits
_FEW_FAILURES = 1e-3
_WIDEST = 1e6  # standard deviation of a row's counts, all of which are summed


@dataclass(frozen=True, repr=False)
class Poisson(Count):
    """Counts with mean and variance ``rate``; rate 0 has all mass on 0."""

    rate: Array

    def _check(self) -> None:
        require_parameter(self.rate >= 0, self.rate, "rate", "Poisson", "a rate of 0 or more")

    def _log_mass(self, k: Array) -> Array:
        (rate,) = self._columns
        return np.asarray(xlogy(k, rate) - rate - gammaln(k + 1.0))

    def _at_most(self, k: Array) -> Array:
        return np.asarray(scipy.special.pdtr(k, *self._columns))

    def _beyond(self, k: Array) -> Array:
        return np.asarray(scipy.special.pdtrc(k, *self._columns))

    def mean(self) -> Array:
        return self.rate.copy()

    def std(self) -> Array:
        return np.sqrt(self.rate)

    def sample(self, size: int, seed: Seed = 0) -> Array:
        draws = stream(seed, "samples").poisson(self.rate[:, None], (len(self), size))
        return np.asarray(draws, dtype=np.float64)

    def _crps(self, y: Array) -> Array:
        """In closed form with scaled Bessel functions; scoringrules' overflows from counts of 171 on."""
        (rate,) = self._columns
        edge = np.where(y >= 0.0, np.exp(self._log_mass(np.maximum(np.floor(y), 0.0))), 0.0)
        spread = scipy.special.i0e(2.0 * rate) + scipy.special.i1e(2.0 * rate)
        return np.maximum((y - rate) * (2.0 * self._cdf(y) - 1.0) + rate * (2.0 * edge - spread), 0.0)

    def raw_moments(self, order: int) -> Array:
        return from_factorial([self.rate**k for k in range(order + 1)], len(self))

    def characteristic_function(self, t: Array) -> Array:
        return np.asarray(np.exp(self.rate[:, None] * expm1(1j * np.asarray(t))))


@dataclass(frozen=True, repr=False)
class Binomial(Count):
    """Successes among ``n`` trials of probability ``p``; the log score is infinite above n."""

    n: Array
    p: Array

    def _check(self) -> None:
        whole = (self.n >= 0) & (self.n == np.floor(self.n)) & (self.n <= _MOST_TRIALS)
        require_parameter(whole, self.n, "n", "Binomial", "a whole number of trials, at most 2^53")
        require_parameter((self.p >= 0) & (self.p <= 1), self.p, "p", "Binomial", "a probability in [0, 1]")

    @property
    def largest(self) -> Array:
        return self.n

    def _log_mass(self, k: Array) -> Array:
        n, p = self._columns
        few = np.minimum(k, n)
        rest = n - few + 1.0
        choose = _log_rising(rest, few) + few * np.log(rest) - gammaln(few + 1.0)
        return np.where(k <= n, choose + xlogy(few, p) + xlog1py(n - few, -p), -np.inf)

    def _at_most(self, k: Array) -> Array:
        n, p = self._columns
        return np.where(k < n, _beta_complement(k + 1.0, np.maximum(n - k, 1.0), p, 1.0 - p), 1.0)

    def _beyond(self, k: Array) -> Array:
        n, p = self._columns
        return np.where(k < n, betainc(k + 1.0, np.maximum(n - k, 1.0), p), 0.0)

    def mean(self) -> Array:
        return self.n * self.p

    def std(self) -> Array:
        return np.sqrt(self.n * self.p * (1.0 - self.p))

    def sample(self, size: int, seed: Seed = 0) -> Array:
        n, p = self._columns
        return stream(seed, "samples").binomial(n.astype(np.int64), p, (len(self), size)).astype(np.float64)

    def raw_moments(self, order: int) -> Array:
        steps = np.cumprod((self.n[:, None] - np.arange(order)) * self.p[:, None], axis=1)
        return from_factorial([np.ones(len(self)), *steps.T], len(self))

    def characteristic_function(self, t: Array) -> Array:
        n, p = self._columns
        with np.errstate(divide="ignore", invalid="ignore"):  # one trial may vanish at t = pi
            wave = np.exp(n * log1p(p * expm1(1j * np.asarray(t))))
        return np.where(n == 0.0, 1.0, np.nan_to_num(wave, nan=0.0))


@dataclass(frozen=True, init=False, repr=False)
class NegativeBinomial(Count):
    """Counts of variance mean + dispersion mean^2 (``mu`` holds the mean): a gamma mixture of Poisson distributions.

    In scipy's terms n = 1 / dispersion and p = 1 / (1 + dispersion mean). As the dispersion falls to 0 the distribution
    becomes Poisson(mean), and is Poisson(mean) at 0; mean 0 has all mass on 0.
    """

    _argument_names: ClassVar[dict[str, str]] = {"mu": "mean"}

    mu: Array
    dispersion: Array

    def __init__(self, mean: Array, dispersion: Array) -> None:
        self._hold(mu=mean, dispersion=dispersion)
        self.__post_init__()

    def _check(self) -> None:
        require_parameter(self.mu >= 0, self.mu, "mean", "NegativeBinomial", "a mean of 0 or more")
        require_parameter(
            self.dispersion >= 0, self.dispersion, "dispersion", "NegativeBinomial", "a dispersion of 0 or more"
        )

    @cached_property
    def _law(self) -> tuple[Array, Array]:
        """Mean, and a dispersion above 0 that is the stated one to rounding."""
        return self.mu, np.maximum(self.dispersion, _SMALLEST_DISPERSION)

    def _log_mass(self, k: Array) -> Array:
        mean, dispersion = self._columns
        shape = 1.0 / dispersion
        rising = _log_rising(shape, k) - gammaln(k + 1.0)
        return np.asarray(rising + xlogy(k, mean) - (k + shape) * np.log1p(dispersion * mean))

    def _at_most(self, k: Array) -> Array:
        mean, dispersion = self._columns
        odds = dispersion * mean
        return _beta_complement(k + 1.0, 1.0 / dispersion, odds / (1.0 + odds), 1.0 / (1.0 + odds))

    def _beyond(self, k: Array) -> Array:
        mean, dispersion = self._columns
        odds = dispersion * mean
        return np.asarray(betainc(k + 1.0, 1.0 / dispersion, odds / (1.0 + odds)))

    def _crps(self, y: Array) -> Array:
        """In closed form where the dispersion is no small one, at which the hypergeometric function fails."""
        mean, dispersion = self._columns
        with np.errstate(all="ignore"):
            within = scoringrules.crps_negbinom(np.maximum(y, 0.0), 1.0 / dispersion, 1.0 / (1.0 + dispersion * mean))
        scores = np.asarray(within + np.maximum(-y, 0.0))
        summed = (self.dispersion < _LEAST_CLOSED) | ~np.all(np.isfinite(scores), axis=1)
        if np.any(summed):
            scores[summed] = Count._crps(self[summed], y[summed])
        return np.asarray(np.maximum(scores, 0.0))

    def mean(self) -> Array:
        return self.mu.copy()

    def std(self) -> Array:
        return np.asarray(np.sqrt(self.mu + self.dispersion * self.mu**2))

    def sample(self, size: int, seed: Seed = 0) -> Array:
        mean, dispersion = self._columns
        rng = stream(seed, "samples")
        rate = mean * (rng.standard_gamma(1.0 / dispersion, (len(self), size)) * dispersion)
        return rng.poisson(np.minimum(rate, _LARGEST_RATE)).astype(np.float64)

    def raw_moments(self, order: int) -> Array:
        steps = np.cumprod(self.mu[:, None] * (1.0 + np.arange(order) * self.dispersion[:, None]), axis=1)
        return from_factorial([np.ones(len(self)), *steps.T], len(self))

    def characteristic_function(self, t: Array) -> Array:
        mean, dispersion = self._columns
        return np.asarray(np.exp(-log1p(-dispersion * mean * expm1(1j * np.asarray(t))) / dispersion))


@dataclass(frozen=True, init=False, repr=False)
class DoublePoisson(Count):
    """P(y) proportional to sqrt(phi) e^(-phi mu) (e^-y y^y / y!) (e mu / y)^(phi y), Efron (1986, equation 2.2).

    ``DoublePoisson(mean, inverse_dispersion)``: Efron's mu and theta, here ``mu`` and ``phi``; phi = 1 is
    Poisson(mu), a larger phi is underdispersed (``NegativeBinomial``'s ``dispersion`` rises the other way). The mean
    is nearly mu, the variance nearly mu / phi; ``mean()`` and ``std()`` are exact.
    """

    _above_zero: ClassVar = {"mu": "a positive mean", "phi": "a positive number"}
    _kept: ClassVar[tuple[str, ...]] = ("_window", "_law")
    _argument_names: ClassVar[dict[str, str]] = {"mu": "mean", "phi": "inverse_dispersion"}

    mu: Array
    phi: Array

    def __init__(self, mean: Array, inverse_dispersion: Array) -> None:
        self._hold(mu=mean, phi=inverse_dispersion)
        self.__post_init__()

    def _check(self) -> None:
        narrow = np.sqrt(self.mu / self.phi) + 1.0 / self.phi <= _WIDEST
        require_parameter(
            narrow,
            self.phi,
            "inverse_dispersion",
            "DoublePoisson",
            f"a spread (mean / inverse_dispersion)^(1/2) below {_WIDEST:g}",
        )

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        """See Count; Bernstein's bounds on the deviance D: the mass at y is below sqrt(phi) exp(-phi D(y))."""
        mu, phi = self.mu, self.phi
        nearest = np.minimum(*(scipy.special.kl_div(end, mu) for end in (np.floor(mu), np.ceil(mu))))
        slack = np.log1p(np.sqrt(mu / phi) + 1.0 / phi) + 2.0  # turns the end's mass into the tail's
        reach = nearest + (slack - np.log(tail)) / phi
        lower = mu - np.sqrt(2.0 * mu * reach)
        upper = mu + reach / 3.0 + np.sqrt(reach**2 / 9.0 + 2.0 * mu * reach)
        return np.maximum(np.floor(lower), 0.0), np.ceil(upper)

    @cached_property
    def _law(self) -> tuple[Array, Array, Array]:
        """mu, phi and the logarithm of what the masses are divided by."""
        total = np.empty(len(self))
        lower, upper = self.window()
        for rows in similar_windows(lower, upper):
            support = np.arange(lower[rows].min(), upper[rows].max() + 1.0)
            weight = _log_weight(support[None, :], self.mu[rows, None], self.phi[rows, None])
            total[rows] = scipy.special.logsumexp(weight, axis=1)
        return self.mu, self.phi, total

    def _log_mass(self, k: Array) -> Array:
        mu, phi, total = self._columns
        return _log_weight(k, mu, phi) - total

    def _at_most(self, k: Array) -> Array:
        return self._sums(k, upwards=True)

    def _beyond(self, k: Array) -> Array:
        return self._sums(k, upwards=False)

    def _sums(self, k: Array, *, upwards: bool) -> Array:
        """The mass at most k (n or 1, m), or beyond k, each added up from its own end."""
        k = np.broadcast_to(k, (len(self), k.shape[1]))
        result = np.empty(k.shape)
        for rows, support, mass in self.tables():
            sums = np.pad(np.cumsum(mass if upwards else mass[:, ::-1], axis=1), ((0, 0), (1, 0)))
            counted = np.clip(k[rows] - support[0] + 1.0, 0.0, float(len(support))).astype(np.intp)
            place = counted if upwards else len(support) - counted
            result[rows] = np.minimum(np.take_along_axis(sums, place, axis=1), 1.0)
        return result


def _log_weight(k: Array, mu: Array, phi: Array) -> Array:
    """The log mass of a double Poisson distribution at counts k, before normalisation."""
    saturated = xlogy(k, k) - k - gammaln(k + 1.0)
    return np.asarray(0.5 * np.log(phi) + saturated - phi * scipy.special.kl_div(k, mu))


def _log_rising(x: Array, k: Array) -> Array:
    """log Gamma(x + k) - log Gamma(x) - k log x for x > 0; by Stirling's formula where x is large and these cancel."""
    small, large = np.minimum(x, _LARGE), np.maximum(x, _LARGE)
    exact = gammaln(small + k) - gammaln(small) - k * np.log(small)
    end = large + k
    series = (end - 0.5) * np.log1p(k / large) - k - k / (12.0 * large * end)
    return np.asarray(np.where(x < _LARGE, exact, series))


def _beta_complement(a: Array, b: Array, x: Array, rest: Array) -> Array:
    """1 - I_x(a, b), where ``rest`` is 1 - x: as I_rest(b, a) if x has its digits there, which is ten times faster."""
    a, b, x, rest = np.broadcast_arrays(a, b, x, rest)
    result, small = np.empty(a.shape), x < _FEW_FAILURES
    result[~small] = betainc(b[~small], a[~small], rest[~small])
    result[small] = betaincc(a[small], b[small], x[small])
    return result
