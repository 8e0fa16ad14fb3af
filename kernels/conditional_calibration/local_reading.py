r"""Local means of PIT scores: kernel ridge smoothing around the overall mean, with weights that sum to 1.

The protocol's smoother a(x) = A^-1 k(x) shrinks towards 0 and by a ridge that no data chose, which is right for a test
and wrong for an effect. Here the constant is free and the ridge is the data's own:

.. math::  s(x) = \bar\phi + \sum_i l_i(x) (\phi_i - \bar\phi) = \sum_i w_i(x) \phi_i,
   \qquad \sum_i w_i(x)^2 = 1/n + \sum_i l_i(x)^2 - (\sum_i l_i(x))^2 / n.

l runs in the leading directions of the protocol's kernel; its ridge minimises generalised cross-validation with
degrees of freedom counted 1.4 times, which seldom takes noise for structure (Kim and Gu 2004), among ridges that
include an infinite one.

What is wrong around each point: significance and size are two questions. The first is asked of

.. math::  s_j(x) = \sum_i a_i(x) \phi_j(u_i), \qquad  \mathrm{sd}\, s_j(x) = \sqrt{\textstyle\sum_i a_i(x)^2}
   \text{ exactly, if the model is the truth,}

with the weights a(x) = A^-1 k(x) of the protocol. A weighted sum of bounded terms is close to normal wherever several
rows share the weight, and its tails are lighter where they do not, so p-values are normal ones; the four orders, which
are uncorrelated under the truth, share a point's p-value after Sidak, and Benjamini and Hochberg's false discovery rate
runs over the points. The second is asked of the local means above, translated by ``faults``.

A P-P plot at one input: which share of the targets around it falls below each predicted level.

.. math::  \hat G_x(u) = \sum_i w_i(x) 1[u_i \le u], \qquad \sum_i w_i(x) = 1,

with the protocol's smoothing around the overall mean. If the model is the truth, its mean is exactly u and its variance
exactly u (1 - u) sum_i w_i(x)^2, at every input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.special import ndtr

from congruence.kernels.arrays import Array, RowFields, printed
from congruence.kernels.conditional_calibration.faults import faults
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.engine.congruence_test import benjamini_hochberg
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.engine.system import relative_eigenvalues, squares_at, validated_filters
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import ORDERS, pit_scores, require_pit

if TYPE_CHECKING:
    import pandas as pd


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
        members: where the scores are those of ranks among so many draws, see ``faults``.
    """

    n: int
    means: Array
    coefficients: Array = field(repr=False)
    weights: Array = field(repr=False)
    local: Array = field(repr=False)
    inner: Array = field(repr=False)
    mixing: float
    variance: Array
    members: int | None = None

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
        members: int | None = None,
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
            members,
        )

    @classmethod
    def of_rows(
        cls,
        smoother: SpectralSmoother,
        scores: Array,
        variance: Array | None = None,
        blocks: DependentBlocks | None = None,
    ) -> ScoreSmoothing:
        """Of the scores (n, 4) of a smoother's rows, and their variances where these are not 1; by blocks."""
        vectors, weighted, mean_variance = smoother.analysis, None, None
        if blocks is not None:
            weighted, mean_variance = block_moments(vectors, scores, blocks)
        elif variance is not None:
            mean_variance = variance.mean(axis=0)
            weighted = np.stack([vectors.T @ (vectors * v[:, None].astype(vectors.dtype)) for v in variance.T])
        return cls.of(
            Directions.of_smoother(smoother),
            np.asarray(vectors.T @ scores.astype(vectors.dtype), dtype=np.float64),
            scores.mean(axis=0),
            np.sum(scores**2, axis=0),
            weighted=None if weighted is None else np.asarray(weighted, dtype=np.float64),
            variance=mean_variance,
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
    moments = []
    for j in range(scores.shape[1]):  # one after the other: of many blocks the sums take memory
        sums = np.zeros((blocks.count, vectors.shape[1], 1))
        blocks.add_products(sums, vectors, scores[:, j : j + 1])
        moments.append(sums[:, :, 0].T @ sums[:, :, 0])
    return np.stack(moments), np.asarray(np.sum(blocks.sums(scores) ** 2, axis=0) / len(scores))


def quadratic(vectors: Array, inner: Array) -> Array:
    """v'Mv of every row, (rows,); 0 where rounding leaves less."""
    return np.maximum(squares_at(vectors, inner), 0.0) if inner.any() else np.zeros(len(vectors))


def sidak(smallest: Any, count: int) -> Array:
    """1 - (1 - p)^count of p-values, each the smallest of ``count`` uncorrelated ones (Sidak 1967)."""
    return np.asarray(-np.expm1(count * np.log1p(-np.minimum(smallest, 1.0 - 1e-16))))


PREFIX = "calibration_"
_BY_ROW = ("dominant", "strength", "shift", "factor", "evidence")

EVIDENCE = 9.0
"""Three standard errors: a point next to a region that is wrong is smoothed from that region, too, and is not named
unless a sharper look at it sees the fault."""
LEVELS = np.linspace(0.0, 1.0, 51)
QUANTILE_95 = 1.959963984540054


@dataclass(frozen=True, repr=False)
class LocalReading(RowFields):
    """What is wrong around each of m points, labelled or not.

    Attributes:
        ratios: smoothed scores s_j(x) in their standard deviations if the model is the truth, (m, 4), in the order of
            ``ORDERS``; 0 where no labelled row is near.
        null_std: these standard deviations, (m, 4): the same for every order but for counts.
        dominant: number in ``ORDERS`` of the dominant fault, significant or not, (m,).
        strength, shift, factor: see ``Faults``, (m,) each.
        evidence: what the dominant fault explains of the local means, in their squared standard errors, (m,).
        mixing: variance of the local spread scores over the reference rows, see ``faults``.

    Of some of the points, q-values are adjusted for these alone.
    """

    _shared: ClassVar[tuple[str, ...]] = ("mixing",)

    ratios: Array = field(repr=False)
    null_std: Array = field(repr=False)
    dominant: Array = field(repr=False)
    strength: Array = field(repr=False)
    shift: Array = field(repr=False)
    factor: Array = field(repr=False)
    evidence: Array = field(repr=False)
    mixing: float

    @classmethod
    def at(cls, smoothing: ScoreSmoothing, vectors: Array) -> LocalReading:
        """The reading of rows whose directions U are ``vectors``, (m, k)."""
        smoothed, spread = smoothing.smoothed(vectors)
        # Where no reference row is near, both are 0: nothing is known, and nothing is found.
        ratios = np.divide(smoothed, spread, out=np.zeros_like(smoothed), where=spread > 0.0)
        local, errors = smoothing.local_means(vectors)
        found = faults(local, errors, mixing=smoothing.mixing, members=smoothing.members)
        evidence = np.sum(local**2 - found.unexplained**2, axis=1) / errors**2
        return cls(
            ratios, spread, found.dominant, found.strength, found.shift, found.factor, evidence, smoothing.mixing
        )

    @classmethod
    def of_rows(cls, written: Mapping[str, Array], mixing: float) -> LocalReading:
        """Of all rows, from what ``by_row`` gave of each."""
        known = {name: written[f"{PREFIX}{name}"] for name in _BY_ROW}
        known["dominant"] = known["dominant"].astype(np.intp)
        ratios = np.column_stack([written[f"{PREFIX}{order}"] for order in ORDERS])
        spread = np.column_stack([written[f"{PREFIX}null_std_{order}"] for order in ORDERS])
        return cls(ratios=ratios, null_std=spread, mixing=mixing, **known)

    def by_row(self) -> dict[str, Array]:
        """Everything, as columns of numbers, (m,) each."""
        scores = {f"{PREFIX}{order}": self.ratios[:, j] for j, order in enumerate(ORDERS)}
        spread = {f"{PREFIX}null_std_{order}": self.null_std[:, j] for j, order in enumerate(ORDERS)}
        return (
            scores | spread | {f"{PREFIX}{name}": np.asarray(getattr(self, name), dtype=np.float64) for name in _BY_ROW}
        )

    def __repr__(self) -> str:
        found = self.names[self.significant()]
        counted = {order: int(np.count_nonzero(found == order)) for order in ORDERS}
        return printed(self, points=len(self.q_values), found_wrong=len(found), **counted)

    @property
    def scores(self) -> Array:
        """Smoothed scores s_j(x), (m, 4)."""
        return np.asarray(self.ratios * self.null_std)

    @property
    def names(self) -> Array:
        """The dominant fault of each point in words of ``ORDERS``, (m,)."""
        return np.array(ORDERS)[self.dominant]

    @property
    def p_values(self) -> Array:
        """Of each score, two-sided, (m, 4)."""
        return np.asarray(2.0 * ndtr(-np.abs(self.ratios)))

    @cached_property
    def q_values(self) -> Array:
        """Of each point over all four orders, adjusted for the number of points, (m,)."""
        largest = np.max(np.abs(self.ratios), axis=1)  # whose p-value is the smallest of the four
        return benjamini_hochberg(sidak(2.0 * ndtr(-largest.astype(np.float64)), len(ORDERS)))

    def significant(self, level: float = 0.05) -> Array:
        """Points at which the model is wrong, (m,) booleans: q at most ``level``, and evidence of ``EVIDENCE``."""
        return (self.q_values <= level) & (self.evidence >= EVIDENCE)

    def to_frame(self, level: float = 0.05) -> pd.DataFrame:
        """A table with a row a point, in their order, and the columns of an evaluation's scores.

        ``calibration_bias``, ``_spread``, ``_skew``, ``_tails``: smoothed scores in their standard deviations if the
        model is the truth; 0 where no labelled row is near. ``calibration_q_value``: of the point over all four.
        ``calibration_fault``: the dominant fault, "" where none is significant at ``level``. ``calibration_shift``:
        how far the targets lie above the predictions, in predicted spreads. ``calibration_factor``: the targets' spread
        over the predicted one.
        """
        import pandas as pd

        return pd.DataFrame(self.columns(level))

    def columns(self, level: float = 0.05) -> dict[str, Array]:
        """The columns of ``to_frame``, (m,) each, for tables and stores."""
        significant = self.significant(level)
        return {
            **{f"{PREFIX}{order}": self.ratios[:, j] for j, order in enumerate(ORDERS)},
            f"{PREFIX}q_value": self.q_values,
            # Of five texts, each of which is held once: a reference to it is all that a row takes.
            f"{PREFIX}fault": np.array(["", *ORDERS], dtype=object)[np.where(significant, self.dominant + 1, 0)],
            f"{PREFIX}shift": self.shift,
            f"{PREFIX}factor": self.factor,
        }


def local_reading(smoother: SpectralSmoother, pit: Any, blocks: DependentBlocks | None = None) -> LocalReading:
    """Read PIT values around every point of a smoother.

    Args:
        smoother: k(x)' A^-1 at m points, as ``Split.smoother`` has it.
        pit: PIT values of the n reference rows, randomised where the distributions jump.
        blocks: of rows that depend on each other: spreads are then those of sums over blocks.

    Raises:
        InvalidInputError: values that are no probabilities, or another number of rows.
    """
    values = pit_scores(_of_rows(smoother, require_pit(pit)))
    return LocalReading.at(ScoreSmoothing.of_rows(smoother, values, blocks=blocks), smoother.synthesis)


def _of_rows(smoother: SpectralSmoother, values: Array) -> Array:
    if len(values) != len(smoother.analysis):
        raise InvalidInputError(
            f"pit: {len(values)} values for {len(smoother.analysis)} reference rows; give one PIT value per row"
        )
    return values


@dataclass(frozen=True)
class LocalDistribution:
    """The smoothed distribution of PIT values at m points.

    Attributes:
        levels: u, (L,).
        shares: G_x(u), (m, L). Some weights are negative, so a curve may leave [0, 1] or fall by less than its spread.
        lower, upper: between these lie 95 of 100 values at each level if the model is the truth, (m, L).
    """

    levels: Array
    shares: Array = field(repr=False)
    lower: Array = field(repr=False)
    upper: Array = field(repr=False)

    def rearranged(self) -> Array:
        """The shares inside [0, 1] and sorted, (m, L): nearer to every distribution function than they are."""
        return np.sort(np.clip(self.shares, 0.0, 1.0), axis=1)


def local_distribution(smoother: SpectralSmoother, pit: Any, levels: Any = LEVELS) -> LocalDistribution:
    """The local P-P plot at every point of a smoother.

    Args:
        smoother: k(x)' A^-1 at m points; ``Spectrum.smoother`` has it at any input.
        pit: PIT values of the n reference rows.
        levels: u, (L,) in [0, 1].

    Raises:
        InvalidInputError: values that are no probabilities, or another number of rows.
    """
    values, at = _of_rows(smoother, require_pit(pit)), require_pit(levels)
    below = (values[:, None] <= at).astype(np.float32)
    projected = np.asarray(smoother.analysis.T @ below, dtype=np.float64)
    mean = np.asarray(np.mean(below, axis=0, dtype=np.float64))
    return smoothed_shares(Directions.of_smoother(smoother), projected, mean, smoother.synthesis, at)


def smoothed_shares(
    directions: Directions, projected: Array, mean: Array, vectors: Array, levels: Array
) -> LocalDistribution:
    """The local P-P plot where the directions U are ``vectors`` (m, k).

    Args:
        directions: of the reference rows.
        projected: U' of which PIT values lie below each level, (k, L).
        mean: the share of them over all rows, (L,).
        vectors: U at the points.
        levels: u, (L,).
    """
    coefficients = directions.filters[:, None] * directions.centred(projected, mean)
    shares = mean + vectors.astype(np.float64) @ coefficients
    squared = directions.squared_weights(vectors, directions.spread(directions.filters))
    spread = QUANTILE_95 * np.sqrt(np.multiply.outer(squared, levels * (1.0 - levels)))
    return LocalDistribution(levels, shares, np.clip(levels - spread, 0.0, 1.0), np.clip(levels + spread, 0.0, 1.0))
