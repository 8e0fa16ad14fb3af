r"""Local means of PIT scores: kernel ridge smoothing around the overall mean, with weights that sum to 1.

The protocol's smoother a(x) = A^-1 k(x) shrinks towards 0 and by a ridge that no data chose, which is right for a test
and wrong for an effect. Here the constant is free and the ridge is the data's own:

.. math::  s(x) = \bar\phi + \sum_i l_i(x) (\phi_i - \bar\phi) = \sum_i w_i(x) \phi_i,
   \qquad \sum_i w_i(x)^2 = 1/n + \sum_i l_i(x)^2 - (\sum_i l_i(x))^2 / n.

l runs in the leading directions of the protocol's kernel; its ridge minimises generalised cross-validation with
degrees of freedom counted 1.4 times, which seldom takes noise for structure (Kim and Gu 2004), among ridges that
include an infinite one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.engine.spectrum import SpectralSmoother, relative_eigenvalues, validated_filters
from congruence.kernels.engine.tiles import squares_at

RIDGES = (np.inf, *np.geomspace(1e4, 1e-2, 25))
"""Relative to the smoother's own n lambda."""

_INFLATION = 1.4


@dataclass(frozen=True)
class Directions:
    """What smoothing needs of the directions U of n rows that it runs in.

    Attributes:
        n: rows.
        filters: e / (e + n lambda), (k,).
        moment: U'U, (k, k).
        total: U'1, (k,).
    """

    n: int
    filters: Array
    moment: Array = field(repr=False)
    total: Array = field(repr=False)

    @classmethod
    def of_smoother(cls, smoother: SpectralSmoother) -> Directions:
        """Those of a smoother in memory."""
        total = smoother.analysis.T @ np.ones(len(smoother.analysis), dtype=np.float32)
        filters, moment = (np.asarray(part, dtype=np.float64) for part in (smoother.filters, smoother.moment))
        return cls(len(smoother.analysis), filters, moment, np.asarray(total, dtype=np.float64))

    def centred(self, projected: Array, mean: Array) -> Array:
        """U'(v - mean) from U'v, (k, c)."""
        return np.asarray(projected - np.outer(self.total, mean))

    def spread(self, filters: Array) -> Array:
        """M with v'Mv = sum_i l_i(x)^2 - (sum_i l_i(x))^2 / n where U at x is v, (k, k)."""
        inner = self.moment - np.outer(self.total, self.total) / self.n
        return np.asarray(filters[:, None] * inner * filters)

    def squared_weights(self, vectors: Array, inner: Array) -> Array:
        """sum_i w_i(x)^2 where U is ``vectors`` (m, k), (m,): the variance of a local mean of values of variance 1."""
        return 1.0 / self.n + quadratic(vectors, inner)


@dataclass(frozen=True)
class ScoreSmoothing:
    """Smoothed scores and local means at any input, from U there.

    Attributes:
        n: rows of the split.
        means: of the scores, (4,).
        coefficients: f U'phi, (k, 4).
        weights: f U' diag(v_j) U f by order, (4, k, k), with v the variances of the scores if the model is the truth:
            of the squared weights of the smoothed scores. One for all orders, (1, k, k), where these are 1.
        local: f_j U'(phi_j - mean), (k, 4), by the ridge that suits each order; 0 where no smoothing does.
        inner: by order, (4, k, k), see ``Directions.spread``.
        mixing: variance of the local spread scores over the rows.
        variance: mean of v by order, (4,).
    """

    n: int
    means: Array
    coefficients: Array = field(repr=False)
    weights: Array = field(repr=False)
    local: Array = field(repr=False)
    inner: Array = field(repr=False)
    mixing: float
    variance: Array

    @classmethod
    def of(
        cls,
        directions: Directions,
        projected: Array,
        means: Array,
        squares: Array,
        *,
        weighted: Array | None = None,
        variance: Array | None = None,
    ) -> ScoreSmoothing:
        """From U'phi (k, 4), the mean scores and their sums of squares, (4,) each.

        ``weighted`` and ``variance``: U' diag(v_j) U, (4, k, k), and the means of v, (4,), where v is not 1.
        """
        n, filters = directions.n, directions.filters
        centred = directions.centred(projected, means)
        relative, totals = relative_eigenvalues(filters), squares - n * means**2
        kept = [
            validated_filters(relative, RIDGES, energy, total, n, constants=1.0, inflation=_INFLATION, least=0.2)[0]
            for energy, total in zip(centred.T**2, totals.tolist(), strict=True)
        ]
        local = np.column_stack([one * centred[:, j] for j, one in enumerate(kept)])
        a = local[:, ORDERS.index("spread")]
        mixing = float(a @ directions.moment @ a) / n - (float(directions.total @ a) / n) ** 2
        return cls(
            n,
            means,
            filters[:, None] * projected,
            filters[:, None] * (directions.moment[None] if weighted is None else weighted) * filters,
            local,
            np.stack([directions.spread(one) for one in kept]),
            max(mixing, 0.0),
            np.ones(len(ORDERS)) if variance is None else variance,
        )

    def smoothed(self, vectors: Array) -> tuple[Array, Array]:
        """s_j, (m, 4), and their standard deviations under the truth, (m, 4), where U is ``vectors`` (m, k)."""
        scores = (vectors @ self.coefficients.astype(vectors.dtype)).astype(np.float64)
        spread = np.sqrt(np.column_stack([quadratic(vectors, one) for one in self.weights]))
        return scores, np.asarray(np.broadcast_to(spread, scores.shape))

    def local_means(self, vectors: Array) -> tuple[Array, Array]:
        """Local means (m, 4) and one standard error for the four of each, (m,)."""
        local = self.means + (vectors @ self.local.astype(vectors.dtype)).astype(np.float64)
        return local, np.sqrt(np.mean(self.local_variances(vectors), axis=1))

    def local_variances(self, vectors: Array) -> Array:
        """Of the local mean of each order if the model is the truth, (m, 4)."""
        of_orders = zip(self.variance, self.inner, strict=True)
        return np.column_stack([v * (1.0 / self.n + quadratic(vectors, one)) for v, one in of_orders])


def block_moments(vectors: Array, scores: Array, blocks: DependentBlocks) -> tuple[Array, Array]:
    """What stands for U' diag(v_j) U, (4, k, k), and for v, (4,), where rows depend on each other within blocks.

    With c_b = sum over the rows i of block b of u_i phi_ij: sum_b c_b c_b', and the square of the block's sum over n.
    """
    order = np.argsort(blocks.labels, kind="stable")
    starts = np.searchsorted(blocks.labels[order], np.arange(blocks.count))
    sorted_vectors, moments = vectors[order], []
    for column in scores.T:
        sums = np.add.reduceat(sorted_vectors * column[order, None].astype(vectors.dtype), starts, axis=0)
        moments.append((sums.T @ sums).astype(np.float64))
    variance = np.sum(blocks.sums(scores) ** 2, axis=0) / len(scores)
    return np.stack(moments), np.asarray(variance)


def quadratic(vectors: Array, inner: Array) -> Array:
    """v'Mv of every row, (rows,); 0 where rounding leaves less."""
    return np.maximum(squares_at(vectors, inner), 0.0) if inner.any() else np.zeros(len(vectors))
