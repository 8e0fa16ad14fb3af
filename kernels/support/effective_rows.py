r"""How many labelled rows speak at an input: the effective number of the smoother's weights there.

With a(x) = A^-1 k(x), a local mean :math:`\sum a_i \phi_i / \sum a_i` of independent values of variance 1 has the
variance :math:`\sum a_i^2 / (\sum a_i)^2`, that of a plain mean of

.. math::  n_{eff}(x) = \frac{(\sum_i a_i(x))^2}{\sum_i a_i(x)^2}

values (Kish 1965). Far from all rows a stationary kernel gives every row next to no weight, which the ratio does not
see: it is discounted by the square of how far the sum of weights falls short of its median over the rows of the split.
"""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.engine.spectrum import SpectralSmoother

_TYPICAL_ROWS = 4096


def effective_rows(smoother: SpectralSmoother) -> Array:
    """The effective number of rows at each of a smoother's m points, (m,); 0 where no row is near."""
    analysis, filters = smoother.analysis, smoother.filters
    total = filters * (analysis.T @ np.ones(len(analysis), dtype=analysis.dtype))
    step = max(1, len(analysis) // _TYPICAL_ROWS)
    typical = float(np.median(analysis[::step] @ total))
    sums = np.asarray(smoother.synthesis @ total, dtype=np.float64)
    squares = np.asarray(smoother.sum_of_squares, dtype=np.float64)
    ratio = np.divide(sums**2, squares, out=np.zeros_like(sums), where=squares > 0.0)
    discount = np.clip(np.abs(sums) / max(abs(typical), np.finfo(float).tiny), 0.0, 1.0) ** 2
    return np.asarray(np.minimum(ratio, len(analysis)) * discount)
