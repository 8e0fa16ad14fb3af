"""Windows of counts that hold nearly all of a row's mass, in groups of rows alike, and what is counted in them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES


def similar_windows(lower: Array, upper: Array) -> Iterator[Array]:
    """Groups of rows whose windows differ little: of one width class, neighbours by their lower end.

    The union of a group's windows is at most twice as wide as each of them, usually 1.3 times.
    """
    width = upper - lower + 1.0
    width_class = np.ceil(2.0 * np.log2(width))
    order = np.lexsort((lower, width_class))
    sorted_lower, sorted_class = lower[order], width_class[order]
    start = 0
    while start < len(order):
        widest = 2.0 ** (sorted_class[start] / 2.0)
        stop = int(np.searchsorted(sorted_class, sorted_class[start], side="right"))
        near = sorted_lower[start] + widest / 4.0
        stop = start + int(np.searchsorted(sorted_lower[start:stop], near, side="right"))
        stop = min(stop, start + max(1, int(BLOCK_ENTRIES // (1.25 * widest))))
        yield order[start:stop]
        start = stop


def counts_below(reached: Array, levels: int) -> Array:
    """Counts of each row below each level, (n, levels), where ``reached`` is the levels up to their cdf, (n, s)."""
    n, bins = len(reached), levels + 1
    places = np.arange(n)[:, None] * bins + reached
    found = np.bincount(places.ravel(), minlength=n * bins).reshape(n, bins)
    return np.asarray(np.cumsum(found[:, :-1], axis=1))
