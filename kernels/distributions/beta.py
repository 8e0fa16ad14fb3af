"""The beta distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
import scipy.special

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions.mass import log_beta_kernel, stirling_error
from congruence.kernels.distributions.parametric import ScipyFamily
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES
from congruence.kernels.distributions.waves import average_wave

_NODES_PER_TURN = 3.0
_END_TERMS = 40
_LARGE_SHAPE = 1e5  # scipy's quantiles miss their level by 1e-8 from 5 10^5 on, and are no quantiles at (10^3, 10^9)


@dataclass(frozen=True)
class Beta(ScipyFamily):
    """Density proportional to y^(a - 1) (1 - y)^(b - 1) on [0, 1]; the log score is infinite outside."""

    _in_scipy = "beta"
    _above_zero: ClassVar = {"a": "a positive shape", "b": "a positive shape"}

    a: Array
    b: Array

    def _log_prob(self, y: Array) -> Array:
        """In Loader's form, for shapes at which log-gamma functions cancel."""
        a, b = self._columns
        inside = (y > 0.0) & (y < 1.0)
        safe = np.where(inside, y, 0.5)
        log_density = log_beta_kernel(safe, a, b) - np.log(safe) - np.log1p(-safe)
        return np.where(inside, log_density, self._frozen.logpdf(y))

    def _quantile(self, q: Array) -> Array:
        """scipy's, but at large shapes by Newton's method for the logarithm of the nearer tail.

        And at the middle of equal shapes, which scipy misses by up to 10^-8.
        """
        values = super()._quantile(q)
        a, b, level = (np.broadcast_to(item, values.shape) for item in (*self._columns, q))
        large = (np.maximum(a, b) > _LARGE_SHAPE) & (level > 0.0) & (level < 1.0)
        large &= (np.minimum(a, b) >= 1.0) | ((values > 0.0) & (values < 1.0))
        if np.any(large):
            values[large] = _large_quantile(a[large], b[large], level[large], values[large])
        values[(a == b) & (level == 0.5)] = 0.5
        # What is nearer to 0 than float64 reaches is 0 here and its least number there in scipy, and would fall.
        return np.where(level > 0.0, np.maximum(values, np.finfo(np.float64).tiny), values)

    def _crps(self, y: Array) -> Array:
        """(y - mean) (2 F - 1) + 2 mean y^a (1 - y)^b / (a B(a, b)) - E|Y - Y'| / 2.

        Jordan et al. (2019), with F_(a+1) = F_a - y^a (1 - y)^b / (a B(a, b)), so that nothing cancels (scoringrules'
        takes the difference, and loses digits where a + b is large).
        """
        a, b = self._columns
        total = a + b
        inside = np.clip(y, 0.0, 1.0)
        interior = (inside > 0.0) & (inside < 1.0)
        edge = np.where(interior, np.exp(log_beta_kernel(np.where(interior, inside, 0.5), a, b)), 0.0) / total
        half_difference = 2.0 * np.exp(_log_difference(a, b)) / total
        lower = scipy.special.betainc(a, b, inside)
        return np.asarray(np.maximum((y - a / total) * (2.0 * lower - 1.0) + 2.0 * edge - half_difference, 0.0))

    def breaks(self) -> Array:
        return np.tile([0.0, 1.0], (len(self), 1))

    def raw_moments(self, order: int) -> Array:
        steps = np.arange(order)
        ratio = (self.a[:, None] + steps) / ((self.a + self.b)[:, None] + steps)
        return np.concatenate([np.ones((len(self), 1)), np.cumprod(ratio, axis=1)], axis=1)

    def characteristic_function(self, t: Array) -> Array:
        """Trapezoid rule in u with logit Y = center + width sinh(u): exponentially small ends for every shape."""
        spread = np.sqrt(scipy.special.polygamma(1, self.a + 1.0) + scipy.special.polygamma(1, self.b + 1.0))
        center = scipy.special.digamma(self.a + 1.0) - scipy.special.digamma(self.b + 1.0)
        # Beyond these logits less than 1e-16 of the mass remains: the tails fall as exp(a logit) and exp(-b logit).
        left, right = (np.arcsinh(np.maximum(12.0, 40.0 / shape / spread))[:, None] for shape in (self.a, self.b))
        width, far, gone = self._regimes(np.asarray(t))
        turns = np.multiply.outer(width, np.abs(t))
        nodes = int(np.max(left + right) * (15 + _NODES_PER_TURN * np.max(turns, initial=0.0, where=~(far | gone))))
        result = np.empty((len(self), len(t)), dtype=np.complex128)
        for rows in row_slices(len(self), BLOCK_ENTRIES // nodes):
            a, b = self.a[rows, None], self.b[rows, None]
            u = -left[rows] + np.linspace(0.0, 1.0, nodes) * (left[rows] + right[rows])
            logit = center[rows, None] + spread[rows, None] * np.sinh(u)
            log_mass = _log_mass_of_logits(logit, a, b)
            mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True)) * np.cosh(u)
            # The rule itself gives the normaliser, without the cancellation of log-gamma functions.
            result[rows] = average_wave(scipy.special.expit(logit), mass / mass.sum(axis=1, keepdims=True), t)
        result[gone] = 0.0
        which, places = np.nonzero(far)
        result[which, places] = _wave_of_ends(self.a[which], self.b[which], np.asarray(t)[places])
        return result

    def _regimes(self, t: Array) -> tuple[Array, Array, Array]:
        """The width of what varies in the interior, (n,); where the ends of the law say all, and where nothing is left.

        Both (n, m) for frequencies t (m,).
        """
        a, b = np.maximum(self.a, 1.0), np.maximum(self.b, 1.0)
        width = np.sqrt(a * b / (a + b + 1.0)) / (a + b)
        far = np.abs(t) > 50.0 + 4.0 * (a * b)[:, None]
        gone = (np.minimum(a, b)[:, None] > 30.0) & (np.multiply.outer(width, np.abs(t)) > 20.0)
        return width, far & ~gone, gone


def _large_quantile(a: Array, b: Array, q: Array, known: Array) -> Array:
    """The y with I_y(a, b) = q at large shapes; ``known`` is to begin with where a shape is below 1."""
    flip = a > b  # so that y is the smaller end's distance, and keeps its digits
    a, b = np.where(flip, b, a), np.where(flip, a, b)
    below, above = np.where(flip, 1.0 - q, q), np.where(flip, q, 1.0 - q)
    with np.errstate(all="ignore"):
        logit = np.where(a >= 1.0, _logit_by_normal(a, b, below), scipy.special.logit(np.where(flip, 1 - known, known)))
        for _ in range(6):
            y = scipy.special.expit(logit)
            lower = below < 0.5
            tail = np.where(lower, scipy.special.betainc(a, b, y), scipy.special.betaincc(a, b, y))
            step = np.log(tail / np.where(lower, below, above)) * tail / np.exp(log_beta_kernel(y, a, b))
            moved = logit - np.where(lower, step, -step)
            logit = np.where(np.isfinite(moved), moved, logit)
        y = scipy.special.expit(logit)
    return np.where(flip, 1.0 - y, y)


def _logit_by_normal(a: Array, b: Array, q: Array) -> Array:
    """log y - log(1 - y) at I_y(a, b) = q for shapes from 1, nearly: Abramowitz and Stegun 26.5.22."""
    x, u, v = -scipy.special.ndtri(q), 1.0 / (2.0 * a - 1.0), 1.0 / (2.0 * b - 1.0)
    h, third = 2.0 / (u + v), (x * x - 3.0) / 6.0
    w = x * np.sqrt(third + h) / h - (v - u) * (third + 5.0 / 6.0 - 2.0 / (3.0 * h))
    return np.asarray(np.log(a / b) - 2.0 * w)


def _wave_of_ends(a: Array, b: Array, t: Array) -> Array:
    """E exp(i t Y) at frequencies |t| far above a b, one of each: the expansion of 1F1(a; a + b; it), DLMF 13.7.2."""
    size, turn = np.log(np.abs(t)), 0.5j * np.pi * np.sign(t)
    at_zero = np.exp(_log_rising(b, a) - a * size + a * turn)
    at_one = np.exp(_log_rising(a, b) - b * size - b * turn) * np.exp(1j * t)
    return np.asarray(at_zero * _end_series(a, b, -1j * t) + at_one * _end_series(b, a, 1j * t))


def _end_series(a: Array, b: Array, z: Array) -> Array:
    """sum_k (a)_k (1 - b)_k / (k! z^k), up to its smallest term."""
    total, term = np.ones_like(z), np.ones_like(z)
    for k in range(_END_TERMS):
        following = term * (a + k) * (1.0 - b + k) / ((k + 1.0) * z)
        term = np.where(np.abs(following) < np.abs(term), following, 0.0)
        total = total + term
    return total


def _log_rising(x: Array, d: Array) -> Array:
    """log Gamma(x + d) - log Gamma(x); by Stirling's errors, as everything large cancels."""
    errors = stirling_error(x + d) - stirling_error(x)
    return np.asarray((x - 0.5) * np.log1p(d / x) + d * np.log(x + d) - d + errors)


def _log_difference(a: Array, b: Array) -> Array:
    """log of B(a + b, a + b) / (B(a, a) B(b, b)); by Stirling's errors, as everything large cancels."""
    total = a + b
    errors = [stirling_error(2.0 * x) - 2.0 * stirling_error(x) for x in (a, b, total)]
    return np.asarray(errors[0] + errors[1] - errors[2] + 0.5 * (np.log(a) + np.log(b / total) - np.log(4.0 * np.pi)))


def _log_mass_of_logits(logit: Array, a: Array, b: Array) -> Array:
    """a log y + b log(1 - y) at y = expit(logit), less its maximum.

    Where the logits differ little from that of the maximum, by the difference: (a + b) (m d - log(1 + m (e^d - 1))).
    """
    total = a + b
    direct = -a * np.logaddexp(0.0, -logit) - b * np.logaddexp(0.0, logit)
    peak = scipy.special.xlogy(a, a / total) + scipy.special.xlogy(b, b / total)
    away = logit - np.log(a / b)
    near = np.clip(away, -1.0, 1.0)
    by_difference = total * (a / total * near - np.log1p(a / total * np.expm1(near)))
    return np.asarray(np.where(np.abs(away) < 1.0, by_difference, direct - peak))
