"""Tests of uniform PIT values: could the predictive distributions be the truth, as far as their levels go?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from congruence.kernels.calibration.pit import require_pit
from congruence.kernels.errors import InvalidInputError

_BINS = 20
_EXPECTED_PER_BIN = 5


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
    """n times the integrated squared distance between the empirical cdf of the PIT values and the diagonal."""
    result = scipy.stats.cramervonmises(require_pit(values, at_least=2), "uniform")
    return UniformityTest(float(result.statistic), float(result.pvalue))


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
