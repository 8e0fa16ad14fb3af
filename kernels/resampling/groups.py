"""The bootstrap of random groups of rows: sums of each group once, then weights of groups, whatever the number of rows.

The spread of a sum over resampled groups is that over resampled rows, because rows fall into groups at random.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from congruence.kernels.arrays import Array


def group_sums(groups: Array, columns: Iterable[Array], count: int) -> Array:
    """The sum of each column (n,) over the rows of each of ``count`` groups, (count, k); ``groups`` (n,) numbers."""
    return np.stack([np.bincount(groups, weights=column, minlength=count) for column in columns], axis=1)


def bootstrap_weights(count: int, resamples: int, rng: np.random.Generator) -> Array:
    """How often each of ``count`` groups is drawn in each bootstrap sample, (resamples, count)."""
    return rng.multinomial(count, np.full(count, 1.0 / count), size=resamples).astype(np.float64)
