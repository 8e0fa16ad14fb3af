"""The operator of a scaled Gram matrix, S K S + n lambda I with S = diag(s): reference points that count with weights.

What is asked of it is asked of the operator of K, wherever that lives, and scaled; inputs and kernel stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.columns import GramColumns
from congruence.kernels.gram.operator import Operator
from congruence.kernels.kernel_functions import Kernel


@dataclass(frozen=True)
class ScaledOperator:
    """S K S + n lambda I from the operator of K, see ``Operator``; at a query point x, k(x) becomes S k(x).

    Args:
        operator: K + n lambda I.
        scale: s, positive, (n,).

    Raises:
        InvalidInputError: another number of scales, or one that is not a positive number.
    """

    operator: Operator
    scale: Array = field(repr=False)

    def __post_init__(self) -> None:
        if self.scale.shape != (self.n,):
            raise InvalidInputError(f"scale: shape {self.scale.shape}, expected one number for each of {self.n} points")
        wrong = np.flatnonzero(~((self.scale > 0) & np.isfinite(self.scale)))
        if len(wrong):
            raise InvalidInputError(f"scale: {self.scale[wrong[0]]} at row {wrong[0]}, expected a positive number")

    @property
    def n(self) -> int:
        """Number of reference points."""
        return self.operator.n

    @property
    def dimension(self) -> int:
        """Number of features d of an input."""
        return self.operator.dimension

    @property
    def shift(self) -> float:
        """n lambda."""
        return self.operator.shift

    @property
    def dtype(self) -> Any:
        """Of the arithmetic inside a tile of K; scaling is in float64."""
        return self.operator.dtype

    @property
    def kernel(self) -> Kernel:
        """k_X, without the scale."""
        return self.operator.kernel

    @property
    def has_card(self) -> bool:
        """See Operator."""
        return self.operator.has_card

    def vectors(self, v: Array) -> Any:
        """See Operator."""
        return self.operator.vectors(v)

    def matmul(self, v: Any) -> Any:
        """A v."""
        product = self.gram_matmul(v)
        product += self.shift * v
        return product

    def gram_matmul(self, v: Any) -> Any:
        """S K S v."""
        return times(self.scale, self.operator.gram_matmul(times(self.scale, v)))

    def cross(self, query: Any, v: Array) -> Array:
        """[k(x_i, query_j)]' S v."""
        return self.operator.cross(query, times(self.scale, v))

    def restricted(self, indices: Array) -> ScaledOperator:
        """See Operator."""
        return ScaledOperator(self.operator.restricted(indices), self.scale[indices])

    def gram_columns(self, indices: Array, rows: Array | None = None) -> Array:
        """(S K S)[rows, indices]."""
        columns = self.operator.gram_columns(indices, rows) * self.scale[indices]
        return np.asarray(times(self.scale if rows is None else self.scale[rows], columns))

    def columns(self, indices: Array) -> GramColumns:
        """(S K S)[:, indices]."""
        return ScaledColumns(self.operator.columns(indices), self.scale, self.scale[indices])

    def gram_diagonal(self) -> Array:
        """s_i^2 k(x_i, x_i)."""
        return np.asarray(self.scale**2 * self.operator.gram_diagonal())

    def row_norms(self) -> Array:
        """See Operator: of the inputs, which have no scale."""
        return self.operator.row_norms()

    def rows(self, indices: Array) -> Any:
        """x[indices]."""
        return self.operator.rows(indices)

    def row_products(self, indices: Array, v: Array) -> Array:
        """(S K S v)[indices]."""
        return np.asarray(times(self.scale[indices], self.operator.row_products(indices, times(self.scale, v))))

    def exact_gram(self, query: Any | None = None) -> Array:
        """[k(query_j, x_i)] S in float64; S K S by default."""
        gram = self.operator.exact_gram(query)
        gram *= self.scale
        if query is None:
            gram *= self.scale[:, None]
        return gram

    def exact_rows(self, indices: Array) -> Array:
        """(S K S)[indices] in float64."""
        return np.asarray(times(self.scale[indices], self.operator.exact_rows(indices) * self.scale))

    def rounding(self, query: Any | None = None) -> float:
        """See Operator: two more products, of factors that are rounded themselves."""
        return self.operator.rounding(query) + 4.0


@dataclass(frozen=True)
class ScaledColumns:
    """S C T for columns C of K and S = diag(s), T = diag(t); see ``GramColumns``.

    Args:
        unscaled: C.
        rows: s, (n,).
        landmarks: t, (m,).
    """

    unscaled: GramColumns
    rows: Array = field(repr=False)
    landmarks: Array = field(repr=False)

    def thinned(self, step: int) -> ScaledColumns:
        """See GramColumns."""
        return ScaledColumns(self.unscaled.thinned(step), self.rows, self.landmarks[::step])

    def corner(self) -> Array:
        """T W T."""
        return np.asarray(times(self.landmarks, self.unscaled.corner() * self.landmarks))

    def gram(self, scale: Array | None = None) -> Array:
        """T C' S^2 C T."""
        inner = self.unscaled.gram(self.rows if scale is None else self.rows * scale)
        return np.asarray(times(self.landmarks, inner * self.landmarks))

    def transposed_matmul(self, v: Any) -> Any:
        """T C' S v."""
        return times(self.landmarks, self.unscaled.transposed_matmul(times(self.rows, v)))

    def matmul(self, w: Any) -> Any:
        """S C T w."""
        return times(self.rows, self.unscaled.matmul(times(self.landmarks, w)))

    def row_norms(self, factor: Array) -> Array:
        """s_i^2 |C_i T factor|^2."""
        return np.asarray(self.rows**2 * self.unscaled.row_norms(np.asarray(times(self.landmarks, factor))))


def unscaled(operator: Any) -> tuple[Any, Array | None]:
    """The operator of K and s, for what makes its own tiles; None where nothing is scaled."""
    return (operator.operator, operator.scale) if isinstance(operator, ScaledOperator) else (operator, None)


def times(scale: Array, v: Any) -> Any:
    """diag(scale) v, where v (n, r) is."""
    return array_namespace(v).asarray(scale)[:, None] * v
