"""The precision of stored rows, and what storing them in fewer bits costs."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from congruence.tasks.data.split import Shard
from congruence.tasks.embeddings.errors import StoreError

DType = Literal["float32", "float16"]


def in_precision(
    shard: Shard, embeddings: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_], dtype: DType
) -> tuple[npt.NDArray[Any], float]:
    """The rows of a shard (rows, dimension) as they are stored, and the largest relative error that this makes.

    The error is ||stored - computed|| / ||computed|| of a row, 0 for float32.

    Raises:
        StoreError: a valid row overflows the dtype.
    """
    with np.errstate(over="ignore"):
        stored = embeddings.astype(dtype, copy=False)
    if stored is not embeddings:
        _require_no_overflow(shard, embeddings, stored, valid)
    return stored, _rounding_error(embeddings, stored, valid)


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
