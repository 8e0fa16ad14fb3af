"""How far a smoothed right-hand side is from the exact one: the solver's residual and the rounding of its products."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.rounding import UNIT, CheckedPoints, float64_rounding
from congruence.kernels.solvers import NormKind, Solution, weakest_kind
from congruence.kernels.solvers.base import certified_error


@dataclass(frozen=True)
class SolverBounds:
    """Bounds on the error of a norm at every point and in its mean over them, and how they are known."""

    at_point: float
    in_mean: float
    kind: NormKind

    def weighted(self, mean_square: float) -> SolverBounds:
        """In a mean under weights of mean 1 and this mean square: the bound of the root mean square, by Cauchy."""
        return SolverBounds(self.at_point, min(self.at_point, self.in_mean * float(np.sqrt(mean_square))), self.kind)


def bounds_at_reference(
    *,
    n: int,
    shift: float,
    kernel_maximum: float,
    read: float,
    unread: float,
    per_root: float,
    rounding: float,
    kind: NormKind,
) -> SolverBounds:
    """Bounds at the n reference points themselves, where k(x)'Z = B - n lambda Z - R^.

    Args:
        n, shift, kernel_maximum: rows, n lambda and max k(x, x).
        read, unread: norms of the computed part of the residual and of the rest.
        per_root: bound on |F_i| / sqrt(k(x_i, x_i)), F what rounding made of the residual.
        rounding: bound on ||F||.
        kind: how they are known.
    """
    # Without R, B - n lambda Z is off by n lambda A^-1 R, whose rows are only known to be shorter than ||R||.
    bound = certified_error(shift, read + rounding, kernel_maximum) + unread
    bound += min(per_root * float(np.sqrt(kernel_maximum)), rounding)
    # Over all reference points the errors add up to ||K A^-1 R||_F or ||n lambda A^-1 R||_F <= ||R||_F.
    return SolverBounds(bound, min(bound, (read + unread + rounding) / float(np.sqrt(n))), kind)


def _is_double(dtype: Any) -> bool:
    return bool(np.dtype(dtype).itemsize > 4)


@dataclass(frozen=True)
class SystemBounds:
    """Bounds for the solutions of one prepared system, at its query points or at the reference points.

    Attributes:
        operator: A = K + n lambda I.
        query: points (m, d); None for the reference points.
        kernel_maximum: of k(x, x) over the points.
    """

    operator: RegularizedGram
    query: Any | None = field(repr=False)
    kernel_maximum: float

    def of(self, rhs: Array, smoothed: Array, solution: Solution, columns: slice) -> SolverBounds:
        """Bounds on the errors of ``smoothed`` = k(x)'Z (m, c), for the right-hand sides and columns it comes from.

        With the residual R = B - A Z of the exact K, known as R^ + F: k(x)'Z is off by k(x)' A^-1 R. At the reference
        points B - n lambda Z - R^ is off by F - K A^-1 R = n lambda A^-1 F - K A^-1 R^.
        """
        value = solution.value[:, columns]
        read, unread = solution.residual_norm(columns) - solution.unread_norm(columns), solution.unread_norm(columns)
        per_root, kind = self._reference_rounding(rhs, value, solution, columns)
        rounding = per_root * float(np.linalg.norm(self._roots))  # of ||F||
        rounding += 8.0 * UNIT * float(np.linalg.norm(rhs))  # of B - n lambda Z
        if self.query is not None:
            at_query, query_kind = self._query_rounding(smoothed, value)
            bound = certified_error(self.operator.shift, read + unread + rounding, self.kernel_maximum)
            bound += at_query * float(np.sqrt(self.kernel_maximum))
            return SolverBounds(bound, bound, weakest_kind((kind, query_kind, solution.norm_kind)))
        return bounds_at_reference(
            n=self.operator.n,
            shift=self.operator.shift,
            kernel_maximum=self.kernel_maximum,
            read=read,
            unread=unread,
            per_root=per_root,
            rounding=rounding,
            kind=weakest_kind((kind, solution.norm_kind)),
        )

    def _reference_rounding(
        self, rhs: Array, value: Array, solution: Solution, columns: slice
    ) -> tuple[float, NormKind]:
        """Bound on |F_i| / sqrt(k(x_i, x_i)), F what rounding made of the residual, and how it is known."""
        passes = max(1, solution.iterations)  # each adds the rounding of its own step
        proven = passes * self._float64_rounding(value)
        if _is_double(solution.dtype):
            return proven, "computed"
        checked = self._checked_reference
        exact = checked.gram @ value
        known = rhs[checked.rows] - self.operator.shift * value[checked.rows]
        known -= solution.residual[checked.rows, columns]
        if solution.unread_norms is not None:
            # A residual that was not computed is known for the products of single precision.
            settled = ~solution.residual[:, columns].any(axis=0)
            known[:, settled] = self.operator.row_products(checked.rows, value[:, settled])
        return proven + checked.largest(known - exact), "computed" if checked.complete else "sampled"

    def _query_rounding(self, smoothed: Array, value: Array) -> tuple[float, NormKind]:
        """Bound on |computed - exact| k(x)'Z / sqrt(k(x, x)) at the query points, and how it is known."""
        proven = self._float64_rounding(value)
        if _is_double(self.operator.dtype):
            return proven, "computed"
        checked = self._checked_query
        errors = smoothed[checked.rows] - checked.gram @ value
        return proven + checked.largest(errors), "computed" if checked.complete else "sampled"

    def _float64_rounding(self, value: Array) -> float:
        weighted = float(self._roots @ np.linalg.norm(value, axis=1))
        return float64_rounding(self.operator.n, self.operator.dimension, weighted)

    @cached_property
    def _checked_reference(self) -> CheckedPoints:
        return CheckedPoints.of_reference(self.operator)

    @cached_property
    def _checked_query(self) -> CheckedPoints:
        return CheckedPoints.of_query(self.operator, self.query)

    @cached_property
    def _roots(self) -> Array:
        """sqrt(k(x_i, x_i)), (n,)."""
        return np.sqrt(np.asarray(self.operator.gram_diagonal(), dtype=np.float64))
