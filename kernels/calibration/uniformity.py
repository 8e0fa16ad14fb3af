"""Tests of uniform PIT values: could the predictive distributions be the truth, as far as their levels go?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats

from congruence.kernels.arrays import Array, require_targets
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
    result = scipy.stats.kstest(_pit(values), "uniform")
    return UniformityTest(float(result.statistic), float(result.pvalue))


def cramer_von_mises(values: Any) -> UniformityTest:
    """n times the integrated squared distance between the empirical cdf of the PIT values and the diagonal."""
    result = scipy.stats.cramervonmises(_pit(values), "uniform")
    return UniformityTest(float(result.statistic), float(result.pvalue))


def chi_square(values: Any, bins: int | None = None) -> UniformityTest:
    """Pearson's test of equal counts in ``bins`` equal bins; by default 20, fewer if they would expect below 5 each.

    Raises:
        InvalidInputError: fewer than 2 bins, or too few values for the approximation (below 5 a bin).
    """
    pit = _pit(values)
    chosen = min(_BINS, len(pit) // _EXPECTED_PER_BIN) if bins is None else bins
    if chosen < 2 or len(pit) < _EXPECTED_PER_BIN * chosen:
        raise InvalidInputError(
            f"chi_square: {len(pit)} values in {chosen} bins; the test needs at least 2 bins and {_EXPECTED_PER_BIN} "
            "values per bin. Give more rows, or use cramer_von_mises"
        )
    counts = np.histogram(pit, bins=chosen, range=(0.0, 1.0))[0]
    result = scipy.stats.chisquare(counts)
    return UniformityTest(float(result.statistic), float(result.pvalue))


def _pit(values: Any) -> Array:
    pit = require_targets(values, "values")
    if pit.ndim != 1 or len(pit) < 2:
        raise InvalidInputError(f"values: shape {pit.shape}, expected two or more PIT values (n,)")
    if not bool(np.all((pit >= 0.0) & (pit <= 1.0))):
        row = int(np.argmin((pit >= 0.0) & (pit <= 1.0)))
        raise InvalidInputError(f"values: row {row} is {pit[row]:g}; PIT values lie in [0, 1]")
    return pit
