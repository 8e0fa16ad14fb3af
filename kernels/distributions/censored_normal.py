"""The normal distribution moved to the nearest end of an interval: Tobit models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.bounded_normal import LOG_ROOT_2_PI, BoundedNormal, partial_wave
from congruence.kernels.distributions.truncated_normal import TruncatedNormal
from congruence.kernels.kernel_functions import Kernel


@dataclass(frozen=True)
class CensoredNormal(BoundedNormal):
    """min(max(N(loc, scale^2), lower), upper), as in Tobit models: mass at finite bounds, a density between them.

    ``log_prob`` is the log mass at a bound, the log density inside, and -inf outside.
    """

    def _log_prob(self, y: Array) -> Array:
        loc, scale, lower, upper = self._columns
        low, high = (end[:, None] for end in self._ends)
        z = (y - loc) / scale
        result = -0.5 * z * z - LOG_ROOT_2_PI - np.log(scale)
        result = np.where(y == lower, scipy.special.log_ndtr(low), result)
        result = np.where(y == upper, scipy.special.log_ndtr(-high), result)
        return np.where((y < lower) | (y > upper), -np.inf, result)

    def _cdf(self, y: Array) -> Array:
        return self._below(y, np.less, np.greater_equal)

    def _cdf_left(self, y: Array) -> Array:
        return self._below(y, np.less_equal, np.greater)

    def _below(self, y: Array, none: Callable[..., Array], every: Callable[..., Array]) -> Array:
        loc, scale, lower, upper = self._columns
        inside = scipy.special.ndtr((y - loc) / scale)
        return np.where(none(y, lower), 0.0, np.where(every(y, upper), 1.0, inside))

    def _quantile(self, q: Array) -> Array:
        loc, scale, lower, upper = self._columns
        return np.asarray(np.clip(loc + scale * scipy.special.ndtri(q), lower, upper))

    @cached_property
    def _mass_inside(self) -> Array:
        """P(lower < N(loc, scale^2) < upper), (n,)."""
        return np.asarray(self._masses.total * self._density_at_center)

    @property
    def _density_at_center(self) -> Array:
        return np.asarray(np.exp(-0.5 * self._masses.c**2 - LOG_ROOT_2_PI))

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation in offsets from the center: those inside, and what is moved to the bounds."""
        inside = TruncatedNormal(*self.parameters().values())
        mass, (mean, std) = self._mass_inside, inside._moments
        low, high = self._ends
        at_low, at_high = scipy.special.ndtr(low), scipy.special.ndtr(-high)
        to_low, to_high = (np.where(np.isfinite(end), end, 0.0) for end in (self._masses.low, self._masses.high))
        first = mass * mean + to_low * at_low + to_high * at_high
        spread = mass * (std**2 + (mean - first) ** 2)
        return first, np.sqrt(spread + at_low * (to_low - first) ** 2 + at_high * (to_high - first) ** 2)

    def mean(self) -> Array:
        return np.asarray(self._center + self.scale * self._moments[0])

    def std(self) -> Array:
        return np.asarray(self.scale * self._moments[1])

    def _crps(self, y: Array) -> Array:
        """The integrals of Phi^2 below y and of (1 - Phi)^2 above it, between the bounds.

        Thorarinsdottir and Gneiting (2010) divide by masses that vanish where loc is far outside.
        """
        loc, scale, lower, upper = self._columns
        inside = np.clip(y, lower, upper)
        below = _integrated_square(loc, scale, lower, inside)
        above = _integrated_square(-loc, scale, -upper, -inside)
        return np.asarray(np.abs(y - inside) + below + above)

    def characteristic_function(self, t: Array) -> Array:
        """The masses at the bounds, and the integral between them."""
        inside = partial_wave(self._masses, np.multiply.outer(self.scale, t)) * self._density_at_center[:, None]
        result = np.exp(1j * np.multiply.outer(self._center, t)) * inside
        for end, mass in self._bounds:
            result = result + mass[:, None] * np.exp(1j * np.multiply.outer(end, t))
        return np.asarray(result)

    def raw_moments(self, order: int) -> Array:
        """See Distribution: the masses at the bounds, and the truncated law between them."""
        inside = TruncatedNormal(*self.parameters().values())
        result = self._mass_inside[:, None] * inside.raw_moments(order)
        for end, mass in self._bounds:
            result += mass[:, None] * end[:, None] ** np.arange(order + 1)
        return np.asarray(result)

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution: the masses at the bounds, and the truncated law between them."""
        inside = TruncatedNormal(*self.parameters().values())
        result = self._mass_inside[:, None] * inside.kernel_expectation(kernel, nodes)
        for end, mass in self._bounds:
            result += mass[:, None] * np.asarray(kernel(end, nodes))
        return np.asarray(result)

    @property
    def _bounds(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """The bounds, 0 where there is none, and the mass at them."""
        low, high = self._ends
        at = ((self.lower, scipy.special.ndtr(low)), (self.upper, scipy.special.ndtr(-high)))
        first, last = ((np.where(np.isfinite(end), end, 0.0), mass) for end, mass in at)
        return first, last


def _integrated_square(loc: Array, scale: Array, start: Array, stop: Array) -> Array:
    """The integral of Phi((s - loc) / scale)^2 from start to stop >= start; start may be -inf."""
    # Beyond loc the square is nearly 1, and its integral the distance: taken apart, nothing large cancels.
    distance = np.maximum(stop, loc) - np.maximum(start, loc)
    return np.asarray(
        distance + scale * (_square_integral((stop - loc) / scale) - _square_integral((start - loc) / scale))
    )


def _square_integral(z: Array) -> Array:
    """The integral of Phi^2 up to z, less z where that is positive: z Phi^2 + 2 phi Phi - Phi(2^(1/2) z) / pi^(1/2)."""
    finite = np.where(np.isfinite(z), z, 0.0)
    lower, upper = scipy.special.ndtr(finite), scipy.special.ndtr(-finite)
    square = np.where(finite > 0.0, -upper * (1.0 + lower), lower * lower)
    density = np.exp(-0.5 * finite * finite - LOG_ROOT_2_PI)
    value = finite * square + 2.0 * density * lower - scipy.special.ndtr(np.sqrt(2.0) * finite) / np.sqrt(np.pi)
    return np.where(z == np.inf, -1.0 / np.sqrt(np.pi), np.where(z == -np.inf, 0.0, value))
