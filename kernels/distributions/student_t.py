"""Student's t distribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import scipy
import scipy.special
from numpy.polynomial import Polynomial

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.mass import log_gamma_step
from congruence.kernels.distributions.parametric import LocationScale
from congruence.kernels.errors import InvalidInputError

_LARGE_ORDER = 25.0


@dataclass(frozen=True)
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
        """Closed form of Jordan et al. (2019), to eight digits where df is nearly 1.

        Raises:
            InvalidInputError: df <= 1 in a row, where E |Y - y| and the closed form are infinite.
        """
        if not np.all(self.df > 1.0):
            row = int(np.argmin(self.df > 1.0))
            raise InvalidInputError(
                f"StudentT.crps: row {row} has df {self.df[row]:g}; E |Y - y| is infinite for df <= 1. Constrain the "
                "model to df > 1, or use the log score"
            )
        df, loc, scale = self._columns
        df = np.maximum(df, 1.0 + 1e-8)  # the closed form is a difference of two numbers of size 1 / (df - 1)
        z = (y - loc) / scale
        ratio = df / (df - 1.0)
        density = np.exp(scipy.stats.t.logpdf(z, df) + np.log1p(z / df * z))
        half_difference = np.exp(2.0 * log_gamma_step(df / 2.0) - log_gamma_step(df - 0.5)) / np.sqrt(np.pi * df)
        inner = z * (2.0 * scipy.special.stdtr(df, z) - 1.0) + 2.0 * ratio * (density - half_difference)
        return np.asarray(scale * np.maximum(inner, 0.0))

    def _standard_wave(self, x: Array) -> Array:
        """z^v K_v(z) / (2^(v - 1) Gamma(v)) with v = df / 2, z = sqrt(df) |x| (Hurst 1995)."""
        order = np.broadcast_to(self.df[:, None] / 2.0, x.shape)
        x = np.sqrt(self.df)[:, None] * np.abs(x)
        large = self.df / 2.0 > _LARGE_ORDER
        modulus = np.empty(x.shape)
        modulus[~large] = _bessel(order[~large], x[~large])
        modulus[large] = _bessel_of_large_order(order[large], x[large])
        return modulus

    def _standard_moments(self, order: int) -> Array:
        standard = np.zeros((len(self), order + 1))
        standard[:, 0] = 1.0
        for k in range(2, order + 1, 2):
            with np.errstate(divide="ignore"):
                standard[:, k] = standard[:, k - 2] * (self.df * (k - 1.0) / (self.df - k))
        # E |T|^k is infinite from k = df on, where odd moments do not exist either.
        standard[np.arange(order + 1) >= self.df[:, None]] = np.inf
        return standard


def _bessel(order: Array, x: Array) -> Array:
    """x^v K_v(x) / (2^(v - 1) Gamma(v)), which tends to 1 at x = 0, for moderate orders."""
    scaled = scipy.special.kve(order, x)
    near_zero = ~np.isfinite(scaled)  # K_v overflows only where the product has reached its limit
    x, scaled = np.where(near_zero, 1.0, x), np.where(near_zero, 1.0, scaled)
    log = np.log(scaled) - x + order * np.log(x) - scipy.special.gammaln(order) - (order - 1.0) * np.log(2.0)
    return np.where(near_zero, 1.0, np.exp(log))


def _bessel_of_large_order(order: Array, x: Array) -> Array:
    """The same by the uniform expansion for large orders (DLMF 10.41.4), accurate to 1e-13 for orders above 25."""
    z = x / order
    root = np.sqrt(1.0 + z * z)
    # Stirling's series of Gamma(v) cancels the leading terms: what is left of the exponent is small.
    stirling = 1 / (12 * order) - 1 / (360 * order**3) + 1 / (1260 * order**5) - 1 / (1680 * order**7)
    excess = z * z / (1.0 + root)  # root - 1
    exponent = order * (np.log1p(excess / 2.0) - excess) - stirling
    p = 1.0 / root
    series = sum(polynomial(p) * (-1.0 / order) ** k for k, polynomial in enumerate(_debye_polynomials(10)))
    return np.asarray(np.exp(exponent) * np.sqrt(p) * series)


@cache
def _debye_polynomials(count: int) -> tuple[Polynomial, ...]:
    """U_0, U_1, ... of DLMF 10.41.9."""
    square = Polynomial([0.0, 0.0, 1.0])
    polynomials = [Polynomial([1.0])]
    for _ in range(count - 1):
        last = polynomials[-1]
        integral = ((1.0 - 5.0 * square) * last).integ()
        polynomials.append(0.5 * square * (1.0 - square) * last.deriv() + integral / 8.0)
    return tuple(polynomials)
