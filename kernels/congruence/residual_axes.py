"""The leading axes of residuals, in which signs are drawn for them: vector targets have thousands of features."""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.streams import stream

ENERGY = 0.998  # of the residuals' features that the multipliers see
MAX_AXES = 256
_TINY = float(np.finfo(float).tiny)


def axes_of(moment: Array) -> Array:
    """Leading eigenvectors (r, c) of the residuals' second moment (r, r): ``ENERGY`` of it, or ``MAX_AXES``."""
    total = max(float(np.trace(moment)), _TINY)
    basis = None
    if len(moment) > 2 * MAX_AXES:
        basis = _leading_subspace(moment)
        moment = basis.T @ moment @ basis
    energy, axes = np.linalg.eigh(moment)
    count = min(int(np.searchsorted(np.cumsum(energy[::-1]) / total, ENERGY)) + 1, len(energy), MAX_AXES)
    leading = axes[:, : -count - 1 : -1]
    return np.ascontiguousarray(leading if basis is None else basis @ leading)


def _leading_subspace(moment: Array) -> Array:
    """A basis (r, 2 c) near the c leading directions, by subspace iteration (Halko, Martinsson and Tropp 2011)."""
    start = stream(0, "subspace of residuals").standard_normal((len(moment), 2 * MAX_AXES))
    for _ in range(3):
        start, _ = np.linalg.qr(moment @ start)
    return np.asarray(start)
