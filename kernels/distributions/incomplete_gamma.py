"""The regularised incomplete gamma functions at large shapes, where scipy's lose the tails.

Beyond 4.5 standard deviations scipy sums a series of at most 2,000 terms, of which shapes above some 50,000 need more:
at shape 10^8 it gives 9.9e-10 for a tail of 1.4e-9. There the two leading terms of Temme's uniform expansion (DLMF
8.12) err by less than 1e-11 of the tail, up to what the rounding of the arguments moves it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.mass import deviance

LARGE_SHAPE = 3e4
_FAR = 4.0  # standard deviations; scipy takes another path from 4.5


def gamma_cdf(a: Array, z: Array) -> Array:
    """P(a, z): that a gamma variable of shape a > 0 is at most z >= 0."""
    return _with_tails(scipy.special.gammainc, a, z, upper=False)


def gamma_survival(a: Array, z: Array) -> Array:
    """Q(a, z) = 1 - P(a, z)."""
    return _with_tails(scipy.special.gammaincc, a, z, upper=True)


def _with_tails(function: Callable[[Array, Array], Array], a: Array, z: Array, *, upper: bool) -> Array:
    result = np.asarray(function(a, z))
    large = a > LARGE_SHAPE
    if np.any(large):
        far = large & (np.abs(z - a) > _FAR * np.sqrt(a)) & (z > 0.0) & np.isfinite(z)
        if np.any(far):
            shape, value = (np.broadcast_to(values, result.shape)[far] for values in (a, z))
            result[far] = _temme(shape, value, upper)
    return result


def _temme(a: Array, z: Array, upper: bool) -> Array:
    """Q = erfc(eta (a / 2)^(1/2)) / 2 + exp(-a eta^2 / 2) (c_0 + c_1 / a) / (2 pi a)^(1/2), and P = 1 - Q."""
    excess = (z - a) / a
    half_square = deviance(a, z, a - z)  # a eta^2 / 2
    eta = np.copysign(np.sqrt(2.0 * half_square / a), excess)
    inverse = 1.0 / excess  # its powers underflow where those of the excess overflow
    first = inverse - 1.0 / eta
    second = (1.0 / eta) ** 3 - inverse**3 - inverse**2 - inverse / 12.0
    rest = np.exp(-half_square) / np.sqrt(2.0 * np.pi * a) * (first + second / a)
    sign = 1.0 if upper else -1.0
    return np.asarray(np.clip(0.5 * scipy.special.erfc(sign * eta * np.sqrt(a / 2.0)) + sign * rest, 0.0, 1.0))
