"""The embeddings of a split in the plane: their first two principal components, by blocks of rows."""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.tasks.models.evaluated_rows import EvaluatedRows


def principal_plane(rows: EvaluatedRows) -> Array:
    """Coordinates of every row of the split, (rows, 2), NaN where it is invalid: (d, d) sums, then one block a time."""
    d = rows.store.dimension
    count, total, squares = 0, np.zeros(d), np.zeros((d, d))
    for block in range(len(rows.blocks)):
        x = rows.inputs(block).astype(np.float64)
        count, total, squares = count + len(x), total + x.sum(axis=0), squares + x.T @ x
    mean = total / count
    _, axes = np.linalg.eigh(squares / count - np.outer(mean, mean))
    leading = axes[:, -1:-3:-1]
    picture = np.full((len(rows.valid), 2), np.nan)
    places = np.flatnonzero(rows.valid)
    start = 0
    for block in range(len(rows.blocks)):
        x = rows.inputs(block)
        picture[places[start : start + len(x)], : leading.shape[1]] = (x - mean) @ leading
        start += len(x)
    return picture
