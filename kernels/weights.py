r"""Weights of rows: sampling weights, or the population that a split stands for.

A mean over points becomes sum w_i v_i / sum w_i, in which weight 2 is that row twice. For inference it is not: two
copies are one observation, so the standard error is that of a ratio, sqrt(sum w_i^2 (v_i - mean)^2) / sum w_i, and
(sum w)^2 / sum w^2 says of how many equal rows it is (Kish 1965).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError


def require_weights(weights: Any, n: int) -> Array:
    """Weights (n,) as numbers.

    Raises:
        InvalidInputError: another number of rows, a missing, infinite or negative weight by row, or none above 0.
    """
    found = np.asarray(weights, dtype=np.float64)
    if found.shape != (n,):
        raise InvalidInputError(f"weights: shape {found.shape}, expected one weight for each of the {n} rows")
    bad = ~np.isfinite(found) | (found < 0)
    if np.any(bad):
        row = int(np.argmax(bad))
        raise InvalidInputError(f"weights: row {row} is {found[row]:g}; give a finite weight of at least 0")
    if not np.any(found > 0):
        raise InvalidInputError(f"weights: all {n} are 0; at least one row must count")
    return found


def mean_one(weights: Any, n: int) -> Array:
    """Weights (n,) over their mean: sums with them are sums over rows."""
    found = require_weights(weights, n)
    return np.asarray(found / np.mean(found))


def mean_over(values: Array, weights: Array | None) -> float:
    """The mean of values (n,), weighted where there are weights."""
    return float(np.mean(values) if weights is None else np.average(values, weights=weights))


def effective_rows(weights: Array) -> float:
    """(sum w)^2 / sum w^2: of how many equal rows a weighted mean is."""
    return float(np.sum(weights) ** 2 / np.sum(weights**2))


FEWEST_EFFECTIVE = 20
"""Effective rows; fewer say too little of their own spread."""

_SHARE_THAT_SHOWS, _MANY_EFFECTIVE = 0.4, 1000


def too_few_rows(effective: float, rows: int) -> str:
    """Why a mean with so many effective rows has no interval; "" where it has.

    Simulated 95 % intervals of fewer than 20 are useless. Where fewer than four tenths of the rows are effective, as
    with weights exp(1.5 x), those that a sample lacks would decide: intervals of a score that grows with the weights
    cover .60 to .91, until there are a thousand (``tests/benchmarks/resampling.md``).
    """
    if effective < FEWEST_EFFECTIVE:
        return f"{effective:.0f} effective rows of {rows:,}, and intervals need {FEWEST_EFFECTIVE}"
    if effective < min(_SHARE_THAT_SHOWS * rows, _MANY_EFFECTIVE):
        return f"{effective:.0f} effective rows of {rows:,}: so few rows decide that an interval would be too short"
    return ""
