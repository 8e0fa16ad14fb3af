"""Tests of uniform PIT values: could the predictive distributions be the truth, as far as their levels go?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from scipy.special import chdtrc, eval_sh_legendre

from congruence.kernels.calibration.pit import require_pit
from congruence.kernels.errors import InvalidInputError

_BINS = 20
_EXPECTED_PER_BIN = 5
_ORDER = 6  # of the smooth test
_TAIL = 3.0
"""The Cramer-von Mises statistic from which on SciPy's series is no longer read: it was made for smaller ones."""


@dataclass(frozen=True)
class UniformityTest:
    """A test statistic of n PIT values and the probability of one at least as large if they are uniform."""

    statistic: float
    p_value: float


def kolmogorov_smirnov(values: Any) -> UniformityTest:
    """Largest distance between the empirical cdf of the PIT values and the diagonal."""
    result = scipy.stats.kstest(require_pit(values, at_least=2), "uniform")
    return UniformityTest(float(result.statistic), float(result.pvalue))


def cramer_von_mises(values: Any) -> UniformityTest:
    """n times the integrated squared distance W between the empirical cdf of the PIT values and the diagonal.

    The probability is SciPy's (Csorgo and Faraway 1996, J. R. Stat. Soc. B 58) up to W = 3, and the tail of the limit
    distribution beyond, sum of Z_k^2 / (k pi)^2: sqrt(2) P(Z^2 > pi^2 W) (Zolotarev 1961), 1 % less than the exact one
    at 3 (8e-8), and closer further out.
    """
    pit = np.sort(require_pit(values, at_least=2))
    n = len(pit)
    statistic = float(1.0 / (12.0 * n) + np.sum(((np.arange(n) + 0.5) / n - pit) ** 2))
    if statistic > _TAIL:
        return UniformityTest(statistic, float(np.sqrt(2.0) * scipy.stats.chi2.sf(np.pi**2 * statistic, 1)))
    return UniformityTest(statistic, float(scipy.stats.cramervonmises(pit, "uniform").pvalue))


def smooth_test(values: Any) -> UniformityTest:
    """Neyman's smooth test of order six (Neyman, 1937; Rayner and Best, 1989): chi-square of six degrees of freedom.

    The sum over orders j of the squared score sum_i phi_j(u_i) / sqrt(n), with orthonormal Legendre polynomials phi_j.
    It needs no bins, and its power goes to smooth departures: orders 1 to 4 see bias, dispersion, skewness and tails;
    two more see a second and third mode.
    """
    pit = require_pit(values)
    scores = [np.sqrt(2 * j + 1) * eval_sh_legendre(j, pit).sum() for j in range(1, _ORDER + 1)]
    statistic = float(np.square(scores).sum() / len(pit))
    return UniformityTest(statistic, float(chdtrc(_ORDER, statistic)))


def chi_square(values: Any, bins: int | None = None) -> UniformityTest:
    """Pearson's test of equal counts in ``bins`` equal bins; by default 20, fewer if they would expect below 5 each.

    Raises:
        InvalidInputError: fewer than 2 bins, or too few values for the approximation (below 5 a bin).
    """
    pit = require_pit(values, at_least=2)
    chosen = min(_BINS, len(pit) // _EXPECTED_PER_BIN) if bins is None else bins
    if chosen < 2 or len(pit) < _EXPECTED_PER_BIN * chosen:
        raise InvalidInputError(
            f"chi_square: {len(pit)} values in {chosen} bins; the test needs at least 2 bins and {_EXPECTED_PER_BIN} "
            "values per bin. Give more rows, or use cramer_von_mises"
        )
    counts = np.histogram(pit, bins=chosen, range=(0.0, 1.0))[0]
    result = scipy.stats.chisquare(counts)
    return UniformityTest(float(result.statistic), float(result.pvalue))
