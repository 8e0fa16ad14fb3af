r"""A P-P plot at one input: which share of the targets around it falls below each predicted level.

.. math::  \hat G_x(u) = \sum_i w_i(x) 1[u_i \le u], \qquad \sum_i w_i(x) = 1,

with the protocol's smoothing around the overall mean. If the model is the truth, its mean is exactly u and its variance
exactly u (1 - u) sum_i w_i(x)^2, at every input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import require_pit
from congruence.kernels.conditional_calibration.smoothing import LocalMean
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.spectrum import SpectralSmoother

LEVELS = np.linspace(0.0, 1.0, 51)
QUANTILE_95 = 1.959963984540054


@dataclass(frozen=True)
class LocalDistribution:
    """The smoothed distribution of PIT values at m points.

    Attributes:
        levels: u, (L,).
        shares: G_x(u), (m, L). Some weights are negative, so a curve may leave [0, 1] or fall by less than its spread.
        lower, upper: between these lie 95 of 100 values at each level if the model is the truth, (m, L).
    """

    levels: Array
    shares: Array = field(repr=False)
    lower: Array = field(repr=False)
    upper: Array = field(repr=False)

    def rearranged(self) -> Array:
        """The shares inside [0, 1] and sorted, (m, L): nearer to every distribution function than they are."""
        return np.sort(np.clip(self.shares, 0.0, 1.0), axis=1)


def local_distribution(smoother: SpectralSmoother, pit: Any, levels: Any = LEVELS) -> LocalDistribution:
    """The local P-P plot at every point of a smoother.

    Args:
        smoother: k(x)' A^-1 at m points; ``spectral_smoother(prepared.spectrum, query)`` has it at any input.
        pit: PIT values of the n reference rows.
        levels: u, (L,) in [0, 1].

    Raises:
        InvalidInputError: values that are no probabilities, or another number of rows.
    """
    values, at = require_pit(pit), require_pit(levels)
    if len(values) != len(smoother.analysis):
        raise InvalidInputError(
            f"pit: {len(values)} values for {len(smoother.analysis)} reference rows; give one PIT value per row"
        )
    mean = LocalMean(smoother)
    shares = mean((values[:, None] <= at).astype(np.float32))
    spread = QUANTILE_95 * np.sqrt(np.multiply.outer(mean.squared_weights(), at * (1.0 - at)))
    return LocalDistribution(at, shares, np.clip(at - spread, 0.0, 1.0), np.clip(at + spread, 0.0, 1.0))
