"""Quantiles of counts at many levels from one pass over each row's cdf."""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.count_windows import similar_windows
from congruence.kernels.distributions.counts import Count

WIDEST = 4  # counts of a row per level, beyond which a search for each level is cheaper


def shared_quantiles(law: Count, levels: Array) -> Array:
    """``law.quantile(levels[None, :])`` for many increasing levels (k,) inside (0, 1), shape (n, k).

    The quantile at a level is the number of counts whose cdf is below it: one pass over the cdf of each row serves all
    levels, where looking for each of them takes a dozen values of the cdf. Rows of thousands of likely counts are
    looked at level by level.
    """
    counted = law.counted_quantiles(levels)
    return windowed_quantiles(law, levels) if counted is None else counted


def windowed_quantiles(law: Count, levels: Array) -> Array:
    """``shared_quantiles`` by the cdf over each row's window, wherever that begins."""
    lower, upper = law.window(0.5 * min(levels[0], 1.0 - levels[-1]))
    result = np.empty((len(law), len(levels)))
    wide = upper - lower > WIDEST * len(levels)
    if np.any(wide):
        result[wide] = np.column_stack([law[wide].quantile(level) for level in levels])
    narrow = np.flatnonzero(~wide)
    for group in similar_windows(lower[narrow], upper[narrow]) if len(narrow) else ():
        rows = narrow[group]
        support = np.arange(lower[rows].min(), upper[rows].max() + 1.0)
        reached = np.searchsorted(levels, law[rows].cumulative(support), side="right")
        below = counts_below(reached, len(levels))
        result[rows] = support[0] + np.minimum(below, len(support) - 1)
    return result


def counts_below(reached: Array, levels: int) -> Array:
    """Counts of each row below each level, (n, levels), where ``reached`` is the levels up to their cdf, (n, s)."""
    n, bins = len(reached), levels + 1
    places = np.arange(n)[:, None] * bins + reached
    found = np.bincount(places.ravel(), minlength=n * bins).reshape(n, bins)
    return np.asarray(np.cumsum(found[:, :-1], axis=1))
