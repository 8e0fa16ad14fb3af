"""The operator A = K + n lambda I on a reference split: what solvers may ask of it, and the one that lives in memory.

Solvers never see the inputs: an operator on one machine, on a GPU or spread over a Dask cluster answers the same calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.functions import Kernel

BLOCK_ROWS = 2048


class Operator(Protocol):
    """A = K + shift I for a Gram matrix K of n reference points. Vectors are (n, r) host arrays."""

    @property
    def n(self) -> int:
        """Number of reference points."""

    @property
    def dimension(self) -> int:
        """Number of features d of an input."""

    @property
    def shift(self) -> float:
        """n lambda."""

    def matmul(self, v: Array) -> Array:
        """A v, shape (n, r)."""

    def cross(self, query: Any, v: Array) -> Array:
        """[k(x_i, query_j)]' v, shape (m, r)."""

    def gram_columns(self, indices: Array) -> Array:
        """K[:, indices], shape (n, len(indices))."""

    def gram_diagonal(self) -> Array:
        """k(x_i, x_i), shape (n,)."""


@dataclass(frozen=True)
class RegularizedGram:
    """A = K + n lambda I with x (n, d) in memory (NumPy or CuPy); K is made block by block and never held.

    Args:
        x: reference inputs (n, d); their dtype is the arithmetic's.
        kernel: the input kernel.
        regularization: lambda > 0; the shift is n lambda (the papers' convention).
        block_rows: rows of a block: two blocks are in memory at a time.
    """

    x: Any = field(repr=False)
    kernel: Kernel
    regularization: float
    block_rows: int = BLOCK_ROWS

    @property
    def n(self) -> int:
        """Number of reference points."""
        return int(self.x.shape[0])

    @property
    def dimension(self) -> int:
        """Number of features d of an input."""
        return int(self.x.shape[1])

    @property
    def shift(self) -> float:
        """n lambda."""
        return self.n * self.regularization

    def matmul(self, v: Array) -> Array:
        """A v: each off-diagonal block is made once and used for both triangles."""
        xp = array_namespace(self.x)
        vectors = xp.asarray(v, dtype=self.x.dtype)
        result = xp.zeros(vectors.shape, dtype=np.float64)
        blocks = self._blocks()
        for i, rows in enumerate(blocks):
            for columns in blocks[i:]:
                gram = self.kernel(self.x[rows], self.x[columns])
                result[rows] += gram @ vectors[columns]
                if columns is not rows:
                    result[columns] += gram.T @ vectors[rows]
        return np.asarray(to_numpy(result) + self.shift * v)

    def cross(self, query: Any, v: Array) -> Array:
        """[k(x_i, query_j)]' v, shape (m, r)."""
        xp = array_namespace(self.x)
        vectors = xp.asarray(v, dtype=self.x.dtype)
        result = np.empty((len(query), v.shape[1]))
        for start in range(0, len(query), self.block_rows):
            points = xp.asarray(query[start : start + self.block_rows], dtype=self.x.dtype)
            total = xp.zeros((len(points), v.shape[1]), dtype=np.float64)
            for rows in self._blocks():
                total += self.kernel(points, self.x[rows]) @ vectors[rows]
            result[start : start + self.block_rows] = to_numpy(total)
        return result

    def gram_columns(self, indices: Array) -> Array:
        """K[:, indices]."""
        return to_numpy(self.kernel(self.x, self.x[indices]))

    def gram_diagonal(self) -> Array:
        """k(x_i, x_i)."""
        return to_numpy(self.kernel.diagonal(self.x))

    def _blocks(self) -> list[slice]:
        return [slice(start, min(start + self.block_rows, self.n)) for start in range(0, self.n, self.block_rows)]
