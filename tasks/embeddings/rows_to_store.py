"""What a shard's rows must be before they are stored, and what storing them in fewer bits costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from congruence.tasks.data.split import Shard
from congruence.tasks.embeddings.errors import StoreError

DType = Literal["float32", "float16"]


@dataclass(frozen=True)
class RowsToStore:
    """The rows of a shard in the store's precision, (rows, dimension), NaN where ``valid`` is false."""

    stored: npt.NDArray[Any]
    valid: npt.NDArray[np.bool_]
    rounding_error: float
    """The largest relative error ||stored - computed|| / ||computed|| of a row, 0 for float32."""

    @classmethod
    def of(
        cls,
        shard: Shard,
        embeddings: npt.ArrayLike,
        valid: npt.ArrayLike,
        reasons: Mapping[int, str],
        dimension: int,
        dtype: DType,
    ) -> RowsToStore:
        """The rows, where they are as ``EmbeddingStore.write`` asks.

        Raises:
            StoreError: another shape, a valid row that is not finite or overflows the dtype, a row without a reason.
        """
        exact, flags = _require_rows(shard, embeddings, valid, reasons, dimension)
        with np.errstate(over="ignore"):
            stored = exact.astype(dtype, copy=False)
        if stored is not exact:
            _require_no_overflow(shard, exact, stored, flags)
        return cls(stored, flags, _rounding_error(exact, stored, flags))


def _require_rows(
    shard: Shard, embeddings: npt.ArrayLike, valid: npt.ArrayLike, reasons: Mapping[int, str], dimension: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    values = np.array(embeddings, dtype=np.float32)
    flags = np.asarray(valid, dtype=bool)
    if values.shape != (shard.rows, dimension) or flags.shape != (shard.rows,):
        raise StoreError(
            f"shard {shard.index}: embeddings {values.shape} and valid {flags.shape}, expected "
            f"({shard.rows}, {dimension}) and ({shard.rows},); one shard is written whole"
        )
    if set(reasons) != set(np.flatnonzero(~flags).tolist()):
        raise StoreError(f"shard {shard.index}: give a reason for each invalid row and for no other")
    bad = np.flatnonzero(flags & ~np.isfinite(values).all(axis=1))
    if len(bad):
        raise StoreError(
            f"row {shard.start + int(bad[0])}: marked valid, but its embedding is not finite; mark it invalid"
        )
    values[~flags] = np.nan
    return values, flags


def _rounding_error(exact: npt.NDArray[np.float32], stored: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> float:
    if stored.dtype == np.float32 or not valid.any():
        return 0.0
    reference = exact[valid].astype(np.float64)
    norms = np.linalg.norm(reference, axis=1)
    errors = np.linalg.norm(stored[valid].astype(np.float64) - reference, axis=1)
    return float((errors / np.where(norms > 0, norms, 1.0)).max())


def _require_no_overflow(
    shard: Shard, exact: npt.NDArray[np.float32], stored: npt.NDArray[Any], valid: npt.NDArray[np.bool_]
) -> None:
    overflow = np.flatnonzero(valid & ~np.isfinite(stored).all(axis=1))
    if len(overflow):
        largest = float(np.abs(exact[overflow[0]]).max())
        row = shard.start + int(overflow[0])
        raise StoreError(f"row {row}: {largest:.6g} overflows {stored.dtype}; use float32")
