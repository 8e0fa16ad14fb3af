"""The embeddings of some rows of a split in few dimensions: their first principal components."""

from __future__ import annotations

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.tasks.scores.split_rows import ScoredRows

AXES = 8
"""Two to draw, the others to tell which rows are near each other."""


def principal_axes(rows: ScoredRows, sample: Array, chosen: Array) -> pd.DataFrame:
    """Coordinates of ``chosen`` rows along the principal axes of ``sample``, (k, min(8, d)).

    At least two columns, zeros beyond d; the index is the row number in the split.

    Args:
        rows: of the split.
        sample: a random sample of the valid rows, by their numbers among these, in order.
        chosen: these and others.
    """
    x = rows.embeddings_of(chosen)
    whole = x[np.isin(chosen, sample)].astype(np.float64)
    mean = whole.mean(axis=0)
    _, axes = np.linalg.eigh(whole.T @ whole / len(whole) - np.outer(mean, mean))
    leading = axes[:, : -AXES - 1 : -1]
    picture = np.zeros((len(chosen), max(2, leading.shape[1])), dtype=np.float32)  # to look at
    picture[:, : leading.shape[1]] = (x - mean) @ leading
    return pd.DataFrame(picture, index=np.flatnonzero(rows.valid)[chosen])
