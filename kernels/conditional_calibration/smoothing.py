r"""Local means of PIT scores: kernel ridge smoothing around the overall mean, with weights that sum to 1.

The protocol's smoother a(x) = A^-1 k(x) shrinks towards 0 and by a ridge that no data chose, which is right for a test
and wrong for an effect. Here the constant is free and the ridge is the data's own:

.. math::  s(x) = \bar\phi + \sum_i l_i(x) (\phi_i - \bar\phi) = \sum_i w_i(x) \phi_i,
   \qquad \sum_i w_i(x)^2 = 1/n + \sum_i l_i(x)^2 - (\sum_i l_i(x))^2 / n.

l runs in the leading directions of a ``SpectralSmoother``; its ridge minimises generalised cross-validation with
degrees of freedom counted 1.4 times, which seldom takes noise for structure (Kim and Gu 2004), among ridges that
include an infinite one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.gram.spectrum import SpectralSmoother

RIDGES = (*np.geomspace(1e-2, 1e4, 25), np.inf)
"""Relative to the smoother's own n lambda."""

_INFLATION = 1.4


@dataclass(frozen=True)
class LocalMean:
    """x -> sum_i w_i(x) v_i with sum_i w_i(x) = 1, at the m points of a smoother."""

    smoother: SpectralSmoother = field(repr=False)
    constant: bool = False  # whether w_i = 1 / n

    def __call__(self, values: Array) -> Array:
        """Local means (m, c) of values (n, c)."""
        mean = values.mean(axis=0)
        if self.constant:
            return np.tile(mean, (self.points, 1))
        return np.asarray(mean + self.smoother((values - mean).astype(np.float32)).astype(np.float64))

    @property
    def points(self) -> int:
        """m."""
        return len(self.smoother.synthesis)

    def squared_weights(self) -> Array:
        """sum_i w_i(x)^2, (m,): the variance of a local mean of independent values of variance 1."""
        n = len(self.smoother.analysis)
        if self.constant:
            return np.full(self.points, 1.0 / n)
        ones = np.ones(n, dtype=np.float32)
        total = self.smoother(ones[:, None])[:, 0].astype(np.float64)
        return np.asarray(np.maximum(1.0 / n + self.smoother.sum_of_squares - total**2 / n, 1.0 / n))


def with_ridge(smoother: SpectralSmoother, ridge: float) -> SpectralSmoother:
    """The smoother with ``ridge`` times its n lambda: e / (e + ridge n lambda) in every direction."""
    return smoother.filtered(ridged(smoother.filters, ridge))


def ridged(filters: Array, ridge: float) -> Array:
    """Filters e / (e + n lambda) with ``ridge`` times that n lambda; 0 for an infinite one."""
    kept = filters.astype(np.float64)
    relative = kept / np.maximum(1.0 - kept, np.finfo(np.float64).eps)
    return np.asarray(relative / (relative + ridge), dtype=np.float32)


def chosen_local_mean(smoother: SpectralSmoother, values: Array) -> LocalMean:
    """The local mean whose ridge suits values (n,), by generalised cross-validation."""
    centred = values - values.mean()
    energy = np.asarray(smoother.analysis.T @ centred.astype(np.float32), dtype=np.float64) ** 2
    chosen = chosen_ridge(smoother.filters, energy, float(np.sum(centred**2)), len(values))
    return LocalMean(smoother, constant=True) if np.isinf(chosen) else LocalMean(with_ridge(smoother, chosen))


def chosen_ridge(filters: Array, energy: Array, total: float, n: int) -> float:
    """Of ``RIDGES``, the one that generalised cross-validation chooses.

    Args:
        filters: of the smoother's own n lambda, (k,).
        energy: squares of U' of the centred values, (k,).
        total: sum of squares of the centred values.
        n: of them.
    """
    best, chosen = np.inf, np.inf
    for ridge in RIDGES[::-1]:
        kept = ridged(filters, ridge).astype(np.float64)
        freedom = n - _INFLATION * (1.0 + float(np.sum(kept)))
        if freedom < 0.2 * n:
            continue
        score = max(total - float(np.sum((2.0 * kept - kept**2) * energy)), 0.0) / freedom**2
        if score < best:
            best, chosen = score, ridge
    return float(chosen)
