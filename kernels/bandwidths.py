"""Bandwidths of kernels, read off inputs or targets: the papers', the median heuristic, and several at once."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from congruence.kernels.arrays import Array, require_finite, require_targets, to_numpy
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import RBF, Kernel, Sum, as_columns
from congruence.kernels.streams import stream

OutputScale = Literal["marginal", "residual", "multiscale"]
SCALES = 4


def variance_gamma(values: Any) -> float:
    """1 / (2 var), ddof 1 (for several columns: their summed variance): the papers' bandwidth for targets.

    Raises:
        InvalidInputError: fewer than two values, or constant ones.
    """
    targets = require_targets(values, "targets")
    if len(targets) < 2:
        raise InvalidInputError("targets: one row has no variance; give an explicit gamma or at least two rows")
    flat = np.ravel(targets)
    return gamma_of_variance(
        float(np.sum(np.var(targets, axis=0, ddof=1))), len(targets), float(flat[np.argmax(np.abs(flat))])
    )


def gamma_of_variance(variance: float, n: int, farthest: float) -> float:
    """1 / (2 var) of n targets of which ``farthest`` is the largest in size.

    Raises:
        InvalidInputError: constant targets.
    """
    # Values that differ by rounding alone are constant; a small spread far from the origin is a spread.
    if not np.sqrt(variance) > 16.0 * np.finfo(np.float64).eps * abs(farthest):
        raise InvalidInputError(
            f"targets: all {n} values are (almost) {farthest}, so gamma = 1/(2 var) is not defined; give an explicit "
            "output kernel, or check the target column"
        )
    return 1.0 / (2.0 * variance)


def median_gamma(x: Any, *, pairs: int = 100_000, seed: int = 0) -> float:
    """1 / (2 median^2) of the distances of up to ``pairs`` random pairs of rows (Gretton's median heuristic)."""
    rows = to_numpy(as_columns(x)).astype(np.float64)
    require_finite(rows, "x")
    rng = stream(seed, "median distance")
    first, second = rng.integers(len(rows), size=(2, pairs))
    keep = first != second
    distances = np.sum((rows[first[keep]] - rows[second[keep]]) ** 2, axis=1)
    median = float(np.median(distances)) if len(distances) else 0.0
    if not median > 0:
        raise InvalidInputError("x: the median distance between rows is 0; give an explicit gamma")
    return 1.0 / (2.0 * median)


def multiscale_rbf(y: Array, scales: int = SCALES) -> Kernel:
    """``scaled_rbf`` at var(y): at the papers' single bandwidth, errors below the spread of the targets go unseen."""
    return scaled_rbf(variance_gamma(y), scales)


def scaled_rbf(gamma: float, scales: int = SCALES) -> Kernel:
    """The sum over k < ``scales`` of RBF kernels at gamma 4^k, each weighing the same."""
    return Sum(tuple(RBF(gamma * 4.0**k) for k in range(scales)))
