"""Normal laws on an interval: truncated (given that they fall inside) and censored (moved to the nearest end)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.special
import scoringrules

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.base import Seed, align, align_levels, require
from congruence.kernels.distributions.parametric import Parametric
from congruence.kernels.functions import Kernel
from congruence.kernels.streams import stream

_LOG_ROOT_2_PI = 0.5 * np.log(2.0 * np.pi)
_REMOTE = np.log(1e-3)


class _BoundedNormal(Parametric):
    _may_be_infinite: ClassVar[tuple[str, ...]] = ("lower", "upper")

    loc: Array
    scale: Array
    lower: Array
    upper: Array

    def _check(self) -> None:
        family = type(self).__name__
        require(self.scale > 0, self.scale, "scale", family, "a positive standard deviation")
        require(self.lower < self.upper, self.lower, "lower", family, "a bound below upper")

    @cached_property
    def _ends(self) -> tuple[Array, Array]:
        """The bounds in standard units, each (n,)."""
        return (self.lower - self.loc) / self.scale, (self.upper - self.loc) / self.scale

    def _standardize(self, y: Any) -> tuple[Array, bool]:
        y, columns = align(y, len(self))
        loc, scale = (self.loc[:, None], self.scale[:, None]) if columns else (self.loc, self.scale)
        return (y - loc) / scale, columns

    def _broadcast(self, columns: bool, *values: Array) -> list[Array]:
        return [value[:, None] if columns else value for value in values]

    def sample(self, size: int, seed: Seed = 0) -> Array:
        """See Distribution."""
        return self.quantile(stream(seed, "samples").random((len(self), size)))


@dataclass(frozen=True)
class TruncatedNormal(_BoundedNormal):
    """N(loc, scale^2) given that it lies in [lower, upper]; bounds in the units of y, possibly infinite.

    The log score is infinite outside the bounds. scipy's truncnorm states bounds in standard units instead.
    """

    loc: Array
    scale: Array
    lower: Array
    upper: Array

    @cached_property
    def _log_mass(self) -> Array:
        return _log_interval(*self._ends)

    def log_prob(self, y: Any) -> Array:
        """See Distribution."""
        z, columns = self._standardize(y)
        low, high, log_mass, scale = self._broadcast(columns, *self._ends, self._log_mass, self.scale)
        density = -0.5 * z * z - _LOG_ROOT_2_PI - np.log(scale) - log_mass
        return np.where((z >= low) & (z <= high), density, -np.inf)

    def cdf(self, y: Any) -> Array:
        """See Distribution."""
        z, columns = self._standardize(y)
        low, high, log_mass = self._broadcast(columns, *self._ends, self._log_mass)
        inside = np.clip(z, low, high)
        share = np.exp(np.minimum(_log_interval(low, inside) - log_mass, 0.0))
        return np.where(z >= high, 1.0, np.where(z <= low, 0.0, share))

    def quantile(self, q: Any) -> Array:
        """See Distribution."""
        q, columns = align_levels(q, len(self))
        low, high, log_mass, loc, scale = self._broadcast(columns, *self._ends, self._log_mass, self.loc, self.scale)
        with np.errstate(divide="ignore"):
            from_below = np.logaddexp(scipy.special.log_ndtr(low), np.log(q) + log_mass)
            from_above = np.logaddexp(scipy.special.log_ndtr(-high), np.log1p(-q) + log_mass)
        # Each half line in its own tail, where the other's probabilities would round to 1.
        z = np.where(low > 0.0, -scipy.special.ndtri_exp(from_above), scipy.special.ndtri_exp(from_below))
        y = loc + scale * np.clip(z, low, high)
        lower, upper = self._broadcast(columns, self.lower, self.upper)
        return np.asarray(np.clip(y, lower, upper))

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation of z by Gauss-Legendre where the density is within e^-40 of its maximum."""
        low, high = self._ends
        mode = np.clip(0.0, low, high)
        reach = -np.abs(mode) + np.sqrt(mode * mode + 80.0)
        start, stop = np.maximum(low, mode - reach), np.minimum(high, mode + reach)
        nodes, weights = np.polynomial.legendre.leggauss(96)
        z = ((start + stop) / 2)[:, None] + ((stop - start) / 2)[:, None] * nodes
        weight = weights * np.exp(-0.5 * (z - mode[:, None]) * (z + mode[:, None]))
        weight /= weight.sum(axis=1, keepdims=True)
        mean = np.einsum("ik,ik->i", weight, z)
        return mean, np.sqrt(np.einsum("ik,ik->i", weight, (z - mean[:, None]) ** 2))

    def mean(self) -> Array:
        """See Distribution."""
        return np.asarray(self.loc + self.scale * self._moments[0])

    def std(self) -> Array:
        """See Distribution."""
        return np.asarray(self.scale * self._moments[1])

    def crps(self, y: Any) -> Array:
        """See Distribution; closed form of Thorarinsdottir and Gneiting (2010), by quadrature far in the tails."""
        y, columns = align(y, len(self))
        y = y if columns else y[:, None]
        scores = np.empty(y.shape)
        remote = self._log_mass < _REMOTE
        if np.any(remote):
            scores[remote] = quadrature.crps(self[remote], y[remote])
        rows = ~remote
        if np.any(rows):
            given = self._broadcast(True, *(values[rows] for values in self.parameters().values()))
            scores[rows] = scoringrules.crps_gtcnormal(y[rows], *given)
        return scores if columns else scores[:, 0]

    def characteristic_function(self, t: Array) -> Array:
        """exp(i t loc) N(scale t) / N(0) with N the integral of exp(i s z) times the normal density over the bounds."""
        waves = _partial_wave(*self._ends, np.multiply.outer(self.scale, t))
        mass = _partial_wave(*self._ends, np.zeros((len(self), 1))).real
        return np.asarray(np.exp(1j * np.multiply.outer(self.loc, t)) * waves / mass)

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution."""
        return quadrature.kernel_expectation(self, kernel, nodes)


@dataclass(frozen=True)
class CensoredNormal(_BoundedNormal):
    """min(max(N(loc, scale^2), lower), upper), as in Tobit models: mass at finite bounds, a density between them.

    ``log_prob`` is the log mass at a bound, the log density inside, and -inf outside.
    """

    loc: Array
    scale: Array
    lower: Array
    upper: Array

    def log_prob(self, y: Any) -> Array:
        """See Distribution and the class."""
        z, columns = self._standardize(y)
        y, _ = align(y, len(self))
        low, high, scale, lower, upper = self._broadcast(columns, *self._ends, self.scale, self.lower, self.upper)
        result = -0.5 * z * z - _LOG_ROOT_2_PI - np.log(scale)
        result = np.where(y == lower, scipy.special.log_ndtr(low), result)
        result = np.where(y == upper, scipy.special.log_ndtr(-high), result)
        return np.where((y < lower) | (y > upper), -np.inf, result)

    def cdf(self, y: Any) -> Array:
        """See Distribution."""
        return self._below(y, np.less, np.greater_equal)

    def cdf_left(self, y: Any) -> Array:
        """See Distribution."""
        return self._below(y, np.less_equal, np.greater)

    def _below(self, y: Any, none: np.ufunc, every: np.ufunc) -> Array:
        z, columns = self._standardize(y)
        y, _ = align(y, len(self))
        lower, upper = self._broadcast(columns, self.lower, self.upper)
        return np.where(none(y, lower), 0.0, np.where(every(y, upper), 1.0, scipy.special.ndtr(z)))

    def quantile(self, q: Any) -> Array:
        """See Distribution."""
        q, columns = align_levels(q, len(self))
        loc, scale, lower, upper = self._broadcast(columns, self.loc, self.scale, self.lower, self.upper)
        return np.asarray(np.clip(loc + scale * scipy.special.ndtri(q), lower, upper))

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the censored standard normal, about the censored center: nothing cancels."""
        low, high = self._ends
        center = np.clip(0.0, low, high)
        density_low, density_high = (np.exp(-0.5 * end * end - _LOG_ROOT_2_PI) for end in (low, high))
        mass = np.exp(_log_interval(low, high))
        at_low, at_high = scipy.special.ndtr(low), scipy.special.ndtr(-high)
        to_low, to_high = (np.where(np.isfinite(end), end - center, 0.0) for end in (low, high))
        edge = (np.where(np.isfinite(end), end, 0.0) for end in (low, high))
        first = to_low * at_low + to_high * at_high + density_low - density_high - center * mass
        second = (
            to_low**2 * at_low
            + to_high**2 * at_high
            + (1.0 + center**2) * mass
            + next(edge) * density_low
            - next(edge) * density_high
            - 2.0 * center * (density_low - density_high)
        )
        return center + first, np.sqrt(np.maximum(second - first * first, 0.0))

    def mean(self) -> Array:
        """See Distribution."""
        return np.asarray(self.loc + self.scale * self._moments[0])

    def std(self) -> Array:
        """See Distribution."""
        return np.asarray(self.scale * self._moments[1])

    def crps(self, y: Any) -> Array:
        """See Distribution; closed form of Thorarinsdottir and Gneiting (2010)."""
        y, columns = align(y, len(self))
        return np.asarray(scoringrules.crps_cnormal(y, *self._broadcast(columns, *self.parameters().values())))

    def characteristic_function(self, t: Array) -> Array:
        """The masses at the bounds, and the integral between them."""
        low, high = self._ends
        center = np.clip(0.0, low, high)[:, None]
        scaled = _partial_wave(low, high, np.multiply.outer(self.scale, t)) * np.exp(-0.5 * center**2)
        result = np.exp(1j * np.multiply.outer(self.loc, t)) * scaled
        for end, mass in ((self.lower, scipy.special.ndtr(low)), (self.upper, scipy.special.ndtr(-high))):
            finite = np.where(np.isfinite(end), end, 0.0)
            result = result + mass[:, None] * np.exp(1j * np.multiply.outer(finite, t))
        return np.asarray(result)

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution: the masses at the bounds, and the truncated law between them."""
        low, high = self._ends
        inside = TruncatedNormal(*self.parameters().values())
        result = np.exp(_log_interval(low, high))[:, None] * inside.kernel_expectation(kernel, nodes)
        for end, mass in ((self.lower, scipy.special.ndtr(low)), (self.upper, scipy.special.ndtr(-high))):
            finite = np.where(np.isfinite(end), end, 0.0)
            result += mass[:, None] * np.asarray(kernel(finite, nodes))
        return np.asarray(result)


def _log_interval(low: Array, high: Array) -> Array:
    """log P(low <= Z <= high), in the tail where the interval lies."""
    mirrored = low > 0.0
    first, last = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    log_first, log_last = scipy.special.log_ndtr(first), scipy.special.log_ndtr(last)
    with np.errstate(divide="ignore"):
        return np.asarray(log_last + np.log(-np.expm1(np.minimum(log_first - log_last, 0.0))))


def _partial_wave(low: Array, high: Array, s: Array) -> Array:
    """exp(c^2 / 2) times the integral of exp(i s z) phi(z) over [low, high], c the nearest point to 0; s is (n, m).

    By the Faddeeva function w in the upper half plane, where it is bounded.
    """
    center = np.clip(0.0, low, high)

    def beyond(end: Array) -> tuple[Array, Array]:
        """The part of the upper tail at ``end`` that decays, and whether its complement was taken (end < 0)."""
        negative = (end < 0.0)[:, None]
        z = np.where(np.isfinite(end), end, 0.0)[:, None]
        height, frequency = np.abs(z), np.where(negative, -s, s)
        phase = 0.5 * np.exp(-0.5 * (z * z - center[:, None] ** 2) + 1j * z * s)
        wave = phase * scipy.special.wofz((frequency + 1j * height) / np.sqrt(2.0))
        wave = np.where(np.isfinite(end)[:, None], wave, 0.0)
        return np.where(negative, -wave, wave), negative

    from_low, low_is_negative = beyond(low)
    from_high, high_is_negative = beyond(high)
    whole = np.exp(-0.5 * s * s)
    return np.asarray(from_low - from_high + np.where(low_is_negative & ~high_is_negative, whole, 0.0))
