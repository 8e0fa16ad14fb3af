"""Reference points that count with a weight: resampled ones by how often they were drawn, sampled ones by rarity.

A point that occurs w times in the reference split gives the same conditional means as one that occurs once in the
system K + n lambda W^-1, which is W^1/2 K W^1/2 + n lambda I in the coordinates W^1/2 Z: the Gram matrix of the kernel
w(x)^1/2 w(x')^1/2 k(x, x'). So every solver serves weights, and a bootstrap solves for the distinct points only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace
from congruence.kernels.congruence.prepared import Prepare, PreparedCongruence, prepare
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.residuals import TargetErrors
from congruence.kernels.solvers import Solution


@dataclass(frozen=True)
class _WeightedKernel(Kernel):
    """r r' k(x, x') on inputs (x, high, low) with the root of a point's weight r = high + low in the last two columns.

    Where the inputs are in single precision, ``low`` has the digits of the root that their dtype drops: float64
    arithmetic, against which rounding is measured, has all of it.
    """

    kernel: Kernel

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        gram = self.kernel(x[:, :-2], None if z is None else z[:, :-2])
        gram *= _roots(x)[:, None]
        gram *= _roots(x if z is None else z)
        return gram

    def diagonal(self, x: Any) -> Any:
        return self.kernel.diagonal(x[:, :-2]) * _roots(x) ** 2

    def center(self, x: Any) -> Any | None:
        center = self.kernel.center(x[:, :-2])
        xp = array_namespace(x)
        return None if center is None else xp.concatenate([center, xp.zeros(2, dtype=x.dtype)])

    def rounding(self, x: Any) -> float:
        return self.kernel.rounding(x[:, :-2]) + 4.0

    def unweighted(self, x: Any) -> tuple[Kernel, Any]:
        return self.kernel, x[:, :-2]


def _roots(x: Any) -> Any:
    return x[:, -2] + x[:, -1]


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
    if weights is None:
        prepared = prepare_inputs(x[rows], query=query, input_kernel=input_kernel, regularization=regularization)
        return Reference(prepared, rows, np.ones(len(rows)))
    roots = np.sqrt(weights / np.mean(weights))
    prepared = prepare_inputs(
        _with_roots(x[rows], roots),
        query=_with_roots(query, np.ones(len(query))),
        input_kernel=_WeightedKernel(input_kernel),
        regularization=regularization,
    )
    return Reference(prepared, rows, roots)


def _with_roots(x: Any, roots: Array) -> Any:
    xp = array_namespace(x)
    high = roots.astype(x.dtype)
    low = (roots - high).astype(x.dtype)
    return xp.hstack([x, xp.asarray(np.stack([high, low], axis=1))])
