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
from congruence.kernels.conditional_calibration.smoothing import Directions
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
    below = (values[:, None] <= at).astype(np.float32)
    projected = np.asarray(smoother.analysis.T @ below, dtype=np.float64)
    mean = np.asarray(np.mean(below, axis=0, dtype=np.float64))
    return smoothed_shares(Directions.of_smoother(smoother), projected, mean, smoother.synthesis, at)


def smoothed_shares(
    directions: Directions, projected: Array, mean: Array, vectors: Array, levels: Array
) -> LocalDistribution:
    """The local P-P plot where the directions U are ``vectors`` (m, k).

    Args:
        directions: of the reference rows.
        projected: U' of which PIT values lie below each level, (k, L).
        mean: the share of them over all rows, (L,).
        vectors: U at the points.
        levels: u, (L,).
    """
    coefficients = directions.filters[:, None] * directions.centred(projected, mean)
    shares = mean + vectors.astype(np.float64) @ coefficients
    squared = directions.squared_weights(vectors, directions.spread(directions.filters))
    spread = QUANTILE_95 * np.sqrt(np.multiply.outer(squared, levels * (1.0 - levels)))
    return LocalDistribution(levels, shares, np.clip(levels - spread, 0.0, 1.0), np.clip(levels + spread, 0.0, 1.0))
