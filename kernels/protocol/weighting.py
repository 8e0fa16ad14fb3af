"""Reference points that count with a weight: resampled ones by how often they were drawn, sampled ones by rarity.

A point that occurs w times in the reference split gives the same conditional means as one that occurs once in the
system K + n lambda W^-1, which is W^1/2 K W^1/2 + n lambda I in the coordinates W^-1/2 Z: a scaled operator. So every
solver serves weights, and a bootstrap solves for the distinct points only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.preparation import Prepare, prepare
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.residuals import TargetErrors
from congruence.kernels.solvers import Solution


@dataclass(frozen=True)
class Reference:
    """A prepared reference sample: which rows of the split it holds and how much each counts."""

    prepared: PreparedCongruence
    rows: Array = field(repr=False)
    roots: Array = field(repr=False)

    def smooth(self, rhs: Array) -> tuple[Array, Solution]:
        """k(x)' (K + n lambda W^-1)^-1 rhs[rows] at the query points, (m, c), for rhs (n, c) of the whole split."""
        return self.prepared.smooth(self.roots[:, None] * rhs[self.rows])

    def errors(self, error: TargetErrors) -> TargetErrors:
        """The target errors of this sample's rows in the coordinates of its system, from those of the whole split."""
        squares = self.roots**2
        chance = None if error.sampling_variance is None else squares * error.sampling_variance[self.rows]
        return TargetErrors(
            delta=self.roots[:, None] * error.delta[self.rows],
            variance=squares * error.variance[self.rows],
            feature_error=error.feature_error.weighted(self.rows, self.roots),
            sampling_variance=chance,
        )

    def counting(self, weights: Array | None) -> Reference:
        """The same, with means over the query points by their weights of mean 1, (m,); None for equal ones."""
        return self if weights is None else replace(self, prepared=replace(self.prepared, weights=weights))

    @classmethod
    def whole(cls, prepared: PreparedCongruence) -> Reference:
        """Every row of the split, once."""
        return cls(prepared, np.arange(prepared.operator.n), np.ones(prepared.operator.n))


def weighted_reference(
    x: Any,
    rows: Array,
    *,
    query: Any,
    input_kernel: Kernel,
    regularization: float,
    weights: Array | None = None,
    prepare_inputs: Prepare = prepare,
) -> Reference:
    """Prepare some rows of x (n, d), each once or with a weight, for evaluation at query points.

    Args:
        x: inputs of the split.
        rows: distinct row numbers (k,).
        query: points (m, d).
        input_kernel: k_X.
        regularization: lambda; the system is K + k lambda W^-1 with weights of mean 1.
        weights: positive, (k,); only their ratios count. Equal by default.
        prepare_inputs: where the system is prepared; in this process by default.
    """
    roots = None if weights is None else np.sqrt(weights / np.mean(weights))
    prepared = prepare_inputs(
        x[rows], query=query, input_kernel=input_kernel, regularization=regularization, scale=roots
    )
    return Reference(prepared, rows, np.ones(len(rows)) if roots is None else roots)
