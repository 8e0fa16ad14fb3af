"""Neyman's smooth test: are PIT values uniform?"""

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc, eval_sh_legendre

from congruence.kernels.arrays import Array

ORDER = 6
"""Orders 1 to 4 see bias, dispersion, skewness and tails; two more see a second and third mode."""


@dataclass(frozen=True)
class SmoothTest:
    """The statistic, chi-square with six degrees of freedom where the values are uniform, and its p-value."""

    statistic: float
    p_value: float


def smooth_test(values: Array) -> SmoothTest:
    """The test of order six on PIT ``values`` (n,) in [0, 1] (Neyman, 1937; Rayner and Best, 1989).

    The sum over orders j of the squared score sum_i phi_j(u_i) / sqrt(n), with orthonormal Legendre polynomials phi_j.
    It needs no bins, and its power goes to smooth departures: those that the interpreter has words for.
    """
    scores = [np.sqrt(2 * j + 1) * eval_sh_legendre(j, values).sum() for j in range(1, ORDER + 1)]
    statistic = float(np.square(scores).sum() / len(values))
    return SmoothTest(statistic, float(chdtrc(ORDER, statistic)))
