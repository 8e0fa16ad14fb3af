"""PIT values as scores whose mean is 0 and whose covariance is I at every input, if the model is the truth.

phi_j(u) = sqrt(2j + 1) P_j(2u - 1) with the Legendre polynomials P_j: orthonormal on [0, 1], and without the constant
(Neyman 1937). The first four say what is wrong: bias, spread, skew and tails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import eval_legendre

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import require_pit

ORDERS = ("bias", "spread", "skew", "tails")
"""What the mean of each score speaks of: positive bias, targets above the prediction; positive spread, targets further
out than predicted (too narrow a distribution); positive skew, a tail of the targets upwards beyond the distribution's;
positive tails, ends and middle both fuller than predicted."""


def pit_scores(pit: Any) -> Array:
    """phi_1 to phi_4 of PIT values (n,): an array (n, 4) in the order of ``ORDERS``.

    Raises:
        InvalidInputError: values outside [0, 1] or not finite, by row.
    """
    centered = 2.0 * require_pit(pit) - 1.0
    return np.column_stack([np.sqrt(2 * j + 1) * eval_legendre(j, centered) for j in range(1, len(ORDERS) + 1)])


def mean_scores(lower: Array, upper: Array) -> Array:
    """phi_1 to phi_4, averaged over [lower, upper] (...), (..., 4)."""
    c, square = lower + upper - 1.0, (upper - lower) ** 2  # of 2u - 1: its middle, and its half width squared
    second = c**2 + square / 3.0
    fourth = c**4 + 2.0 * c**2 * square + square**2 / 5.0
    return np.stack(
        [
            np.sqrt(3.0) * c,
            np.sqrt(5.0) * (1.5 * second - 0.5),
            np.sqrt(7.0) * (2.5 * (c**3 + c * square) - 1.5 * c),
            (35.0 * fourth - 30.0 * second + 3.0) * (3.0 / 8.0),
        ],
        axis=-1,
    )
