"""The precision of stored rows."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from congruence.tasks.data.split import Shard
from congruence.tasks.embeddings.errors import StoreError

DType = Literal["float32", "float16"]


def in_precision(
    shard: Shard, embeddings: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_], dtype: DType
) -> npt.NDArray[Any]:
    """The rows of a shard (rows, dimension) as they are stored.

    Raises:
        StoreError: a valid row overflows the dtype.
    """
    with np.errstate(over="ignore"):
        stored = embeddings.astype(dtype, copy=False)
    overflow = np.flatnonzero(valid & ~np.isfinite(stored).all(axis=1))
    if stored is not embeddings and len(overflow):
        largest = float(np.abs(embeddings[overflow[0]]).max())
        row = shard.start + int(overflow[0])
        raise StoreError(f"row {row}: {largest:.6g} overflows {stored.dtype}; use float32")
    return stored
