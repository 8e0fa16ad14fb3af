"""The embeddings of a split in few dimensions: their first principal components, by blocks of rows."""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.tasks.models.evaluated_rows import EvaluatedRows

AXES = 8
"""Two to draw, the others to tell which rows are near each other."""


def principal_axes(rows: EvaluatedRows) -> Array:
    """Coordinates of every row of the split, (rows, min(8, d)), NaN where it is invalid; at least two, zeros beyond d.

    By (d, d) sums, then one block at a time.
    """
    d = rows.store.dimension
    count, total, squares = 0, np.zeros(d), np.zeros((d, d))
    for block in range(len(rows.blocks)):
        x = rows.inputs(block).astype(np.float64)
        count, total, squares = count + len(x), total + x.sum(axis=0), squares + x.T @ x
    mean = total / count
    _, axes = np.linalg.eigh(squares / count - np.outer(mean, mean))
    leading = axes[:, : -AXES - 1 : -1]
    picture = np.full((len(rows.valid), max(2, leading.shape[1])), np.nan, dtype=np.float32)  # to look at
    places = np.flatnonzero(rows.valid)
    start = 0
    for block in range(len(rows.blocks)):
        x = rows.inputs(block)
        block_rows = places[start : start + len(x)]
        picture[block_rows] = 0.0
        picture[block_rows, : leading.shape[1]] = (x - mean) @ leading
        start += len(x)
    return picture
