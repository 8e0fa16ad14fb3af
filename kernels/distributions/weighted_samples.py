"""Distributions given by weights on points: distributional forests, nearest neighbours, importance sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.piecewise import (
    PiecewiseLinear,
    cumulative,
    join_points,
    require_masses,
    require_points,
)
from congruence.kernels.distributions.point_masses import PointMasses
from congruence.kernels.errors import InvalidInputError

_SMALLEST = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, repr=False)
class WeightedSamples(PointMasses, PiecewiseLinear):
    """Mass ``weights`` (n, m) on the points ``support`` (m,), which the rows share, or (n, m).

    A distribution that is known, unlike the draws of ``Samples``: scores, PIT and quantiles are those of the weighted
    distribution. The points may repeat. Weights must be at least 0 and sum to 1 within 1e-4, and are then normalised.

    ``log_prob`` is that of ``SmoothedPoints``. Rows without spread have none: ``has_density`` says so.
    """

    states_tails = False

    support: Array
    weights: Array

    def __post_init__(self) -> None:
        support = require_points(self.support, "WeightedSamples.support")
        weights = require_masses(self.weights, "WeightedSamples.weights")
        if support.shape not in (weights.shape[1:], weights.shape):
            raise InvalidInputError(
                f"WeightedSamples.support: shape {support.shape} does not fit weights of shape {weights.shape}; "
                f"expected ({weights.shape[1]},), or {weights.shape} where each row has its own points"
            )
        if np.any(np.diff(support) < 0):
            order = np.argsort(support, axis=-1, kind="stable")
            support = np.take_along_axis(support, order, axis=-1)
            weights = np.take_along_axis(weights, np.broadcast_to(order, weights.shape), axis=1)
        self._hold(support=support, weights=weights)

    @property
    def _atoms(self) -> Array:
        return np.atleast_2d(self.support)

    @property
    def _shares(self) -> Array:
        return self.weights

    @cached_property
    def _points(self) -> Array:
        """Each point twice, so that F jumps there."""
        return np.repeat(self._atoms, 2, axis=1)

    @cached_property
    def _levels(self) -> Array:
        return np.repeat(cumulative(self.weights), 2, axis=1)[:, 1:-1]

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, rows: Any) -> Self:
        support = self.support if self.support.ndim == 1 else np.atleast_2d(self.support[rows])
        return type(self)(support, np.atleast_2d(self.weights[rows]))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """See Distribution; all parts need the same number of points."""
        support = join_points([part.support for part in parts], [len(part) for part in parts])
        return cls(support, np.concatenate([part.weights for part in parts]))

    def _quartiles(self) -> Array:
        return self.quantile(np.array([[0.25, 0.75]])).T

    def _quantile(self, q: Array) -> Array:
        """The smallest point with at least the mass q at or below it."""
        # A level that is a sum of weights, computed in floating point, must give its own point, not the next one; and
        # at level 0 a point without mass is not the answer.
        return super()._quantile(np.maximum(q - 1e-12, _SMALLEST))

    def std(self) -> Array:
        return np.where(np.max(self.weights, axis=1) == 1.0, 0.0, super().std())
