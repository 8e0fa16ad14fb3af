"""How PIT values are counted: the twenty bins that people look at, with the two outer ones split for the tails."""

import numpy as np
from scipy.special import ndtri

from congruence.kernels.arrays import Array

HISTOGRAM_BINS = 20

# The outer bins hold everything beyond 1.64 predictive standard deviations. Split at these levels they tell a heavy
# tail from a wide distribution; beyond 1e-4 even a million values leave too few counts to read.
TAIL_LEVELS = (1e-4, 1e-3, 1e-2, 2.5e-2)

_tails = np.asarray(TAIL_LEVELS)
_inner = np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1)[1:-1]

EDGES: Array = np.concatenate([[0.0], _tails, _inner, 1.0 - _tails[::-1], [1.0]])
"""Edges of the counted bins, from 0 to 1, shape (29,)."""

NORMAL_EDGES: Array = ndtri(EDGES[1:-1])
"""The inner edges on the scale of the standard normal predictive distribution, shape (27,)."""

_STARTS = np.concatenate([[0], np.arange(len(_tails) + 1, len(_tails) + HISTOGRAM_BINS)])


def count(values: Array) -> Array:
    """Counts of PIT ``values`` between EDGES, shape (28,)."""
    return np.histogram(values, bins=EDGES)[0]


def merge(counts: Array) -> Array:
    """Counts or probabilities (..., 28) between EDGES, summed into the twenty equal bins (..., 20)."""
    return np.asarray(np.add.reduceat(counts, _STARTS, axis=-1))


def density(counts: Array) -> Array:
    """The histogram (..., 20) of ``counts`` (..., 28), scaled so that the area under it is one."""
    merged = merge(counts)
    return np.asarray(merged * (HISTOGRAM_BINS / merged.sum(axis=-1, keepdims=True)))
