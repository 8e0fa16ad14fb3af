"""Where a cluster's workers get the rows of x: from the client's memory, or a Dask array."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import dask.array as da
from distributed import Client

from congruence.kernels.arrays import Array, array_namespace, require_matrix, to_numpy
from congruence.kernels.errors import InvalidInputError


class RowSource(ABC):
    """Rows of x (n, d) as futures of a cluster."""

    n: int
    dimension: int

    @abstractmethod
    def future(self, client: Client, rows: slice, **where: Any) -> Any:
        """x[rows] on some worker, by default; ``where`` as in ``Client.submit``."""

    @abstractmethod
    def some(self, client: Client, indices: Array) -> Array:
        """x[indices] in this process, in any order."""


@dataclass(frozen=True)
class _Matrix(RowSource):
    """Rows of something with a shape."""

    x: Any = field(repr=False)

    @property
    def n(self) -> int:  # type: ignore[override]
        """Number of rows."""
        return int(self.x.shape[0])

    @property
    def dimension(self) -> int:  # type: ignore[override]
        """Number of features."""
        return int(self.x.shape[1])


class ArrayRows(_Matrix):
    """x in the client's memory: sent once, and again to whoever replaces a lost worker."""

    def future(self, client: Client, rows: slice, **where: Any) -> Any:  # noqa: ARG002
        """See RowSource: to any worker, since one that was named may be gone, and from there to where it is wanted."""
        return client.scatter(self.x[rows], hash=False)

    def some(self, client: Client, indices: Array) -> Array:  # noqa: ARG002
        """See RowSource."""
        return to_numpy(self.x[array_namespace(self.x).asarray(indices)])


class DaskRows(_Matrix):
    """x as a Dask array."""

    def future(self, client: Client, rows: slice, **where: Any) -> Any:
        """See RowSource."""
        return client.compute(self.x[rows].rechunk(-1), **where)

    def some(self, client: Client, indices: Array) -> Array:
        """See RowSource."""
        return to_numpy(client.compute(self.x[indices]).result())


def row_source(x: Any) -> RowSource:
    """The source that fits ``x``: a source, a Dask array, or an array in memory.

    Raises:
        InvalidInputError: not a matrix of finite numbers (a Dask array's values are checked where they are computed).
    """
    if isinstance(x, RowSource):
        return x
    if isinstance(x, da.Array):
        if x.ndim != 2:
            raise InvalidInputError(f"x: expected shape (n, d), got {x.shape}; flatten each row into features")
        return DaskRows(x)
    return ArrayRows(require_matrix(x, "x"))
