"""Marginal calibration of regression: do the predicted levels hold as often as they say? (Kuleshov et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import PitKind, pit_values, require_pit
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.weights import require_weights

EDGE = 1e-5
LEVELS = 50


def even_levels(count: int = LEVELS) -> Array:
    """``count`` levels, evenly spaced over [1e-5, 1 - 1e-5]: those of the expected calibration error."""
    return np.linspace(EDGE, 1.0 - EDGE, count)


def expected_calibration_error(
    y: Any,
    predictive: Distribution,
    *,
    levels: int | np.integer[Any] | Sequence[float] | Array = LEVELS,
    weights: Literal["uniform", "frequency"] = "uniform",
    alpha: float = 1.0,
    pit: PitKind = "randomized",
    seed: int = 0,
    keys: Any | None = None,
    row_weights: Any | None = None,
) -> float:
    """sum_j w_j |p_j - phat_j|^alpha, where phat_j is the share of PIT values at or below level p_j.

    Args:
        predictive: n scalar distributions.
        y: targets (n,).
        levels: the p_j, or how many, evenly spaced over [1e-5, 1 - 1e-5].
        weights: "uniform" 1/m, or "frequency", proportional to phat_j. With 50 levels, alpha 1 and
            ``pit="nonrandomized"`` the latter is the public code of Young et al. (2025).
        alpha: power of the difference.
        pit: treatment of jumps, see ``pit_values``. "nonrandomized" gives even the true distribution of counts a large
            error.
        seed: of the randomised PIT.
        keys: row keys of the randomised PIT.
        row_weights: what each row counts in phat_j, (n,).

    Raises:
        InvalidInputError: levels outside [0, 1], an unknown weighting, or alpha not positive.
    """
    values = pit_values(y, predictive, kind=pit, seed=seed, keys=keys)
    return calibration_error_of_pit(values, levels=levels, weights=weights, alpha=alpha, row_weights=row_weights)


def calibration_error_of_pit(
    values: Array,
    *,
    levels: int | np.integer[Any] | Sequence[float] | Array = LEVELS,
    weights: Literal["uniform", "frequency"] = "uniform",
    alpha: float = 1.0,
    row_weights: Any | None = None,
) -> float:
    """``expected_calibration_error`` from PIT values (n,)."""
    if not alpha > 0:
        raise InvalidInputError(f"alpha: is {alpha}, expected a positive power")
    expected, observed = reliability_curve(values, levels=levels, row_weights=row_weights)
    error = np.abs(expected - observed) ** alpha
    if weights == "uniform":
        return float(np.mean(error))
    if weights != "frequency":
        raise InvalidInputError(f"weights: is {weights!r}, expected 'uniform' or 'frequency'")
    # No PIT value at or below any level: every observation lies above the predictions, and all levels weigh the same.
    return float(np.average(error, weights=observed)) if observed.sum() > 0 else float(np.mean(error))


def reliability_curve(
    values: Any,
    *,
    levels: int | np.integer[Any] | Sequence[float] | Array = LEVELS,
    row_weights: Any | None = None,
) -> tuple[Array, Array]:
    """Levels p_j (m,) and the share of PIT values at or below each (m,): the diagonal if calibrated.

    ``row_weights`` (n,) are what each value counts in the shares.

    Raises:
        InvalidInputError: no values, values or levels outside [0, 1] or not finite, fewer than one level, or weights
            that are negative, missing or all 0.
    """
    pit = require_pit(values)
    if isinstance(levels, (int, np.integer)):
        expected = even_levels(max(int(levels), 0))
    else:
        expected = np.asarray(levels, dtype=np.float64)
    if (
        isinstance(levels, bool)
        or expected.ndim != 1
        or len(expected) == 0
        or not bool(np.all((expected >= 0) & (expected <= 1)))
    ):
        raise InvalidInputError(f"levels: {levels} must be a positive number of levels, or levels inside [0, 1]")
    if row_weights is None:
        return expected, np.searchsorted(np.sort(pit), expected, side="right") / len(pit)
    order, counted = np.argsort(pit, kind="stable"), require_weights(row_weights, len(pit))
    below = np.append(0.0, np.cumsum(counted[order]))[np.searchsorted(pit[order], expected, side="right")]
    return expected, np.minimum(below / np.sum(counted), 1.0)
