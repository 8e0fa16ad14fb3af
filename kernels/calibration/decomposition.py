r"""A score taken apart: score = miscalibration - discrimination + uncertainty.

For the quantile score (pinball loss) at a level, with predicted quantiles q_i and targets y_i,

.. math::  \bar S(q) = \underbrace{\bar S(q) - \bar S(\hat q)}_{\text{miscalibration}}
   - \underbrace{\left(\bar S(r) - \bar S(\hat q)\right)}_{\text{discrimination}}
   + \underbrace{\bar S(r)}_{\text{uncertainty}},

where \hat q is the best non-decreasing function of q (isotonic recalibration) and r the best constant, the quantile of
the targets themselves. Both differences are at least 0. A distribution that knows nothing of its input discriminates by
0, and recalibration does not improve one that is calibrated. The CRPS is twice the integral of the quantile score over
levels.

Gneiting and Resin (2023), Regression diagnostics meets forecast evaluation, section 4; Dimitriadis, Gneiting and Jordan
(2021). The isotonic fit is by recursive partition of the targets' values (Stout 2008), at once for all segments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.printed import printed
from congruence.kernels.scores import matched_targets, pinball

if TYPE_CHECKING:
    import pandas as pd

QUANTILE_LEVELS = np.array([0.025, *(np.arange(1, 20) / 20.0), 0.975])
"""Levels at which distributions are taken apart and drawn: twentieths, and the ends of the central 95 %."""


@dataclass(frozen=True, repr=False)
class ScoreDecomposition:
    """Quantile scores by level, (k,) each, and the CRPS that they make.

    Attributes:
        levels: of the quantiles, increasing.
        score: mean quantile score of the predictions.
        miscalibration: what isotonic recalibration would take off it.
        discrimination: what the recalibrated predictions take off the uncertainty.
        uncertainty: mean quantile score of the quantile of all targets.
    """

    levels: Array = field(repr=False)
    score: Array = field(repr=False)
    miscalibration: Array = field(repr=False)
    discrimination: Array = field(repr=False)
    uncertainty: Array = field(repr=False)

    def __repr__(self) -> str:
        parts = ("score", "miscalibration", "discrimination", "uncertainty")
        return printed(self, levels=len(self.levels), **{name: self.crps(name) for name in parts}, skill=self.skill)

    def crps(self, part: str = "score") -> float:
        """2 ∫ part(level) d level by the trapezoid rule, the quantile score being 0 at the levels 0 and 1."""
        ends = np.concatenate([[0.0], self.levels, [1.0]])
        return float((ends[2:] - ends[:-2]) @ getattr(self, part))

    @property
    def skill(self) -> float:
        """1 - CRPS / CRPS of the marginal distribution: 1 is perfect, 0 ignores the input; NaN if that is 0."""
        reference = self.crps("uncertainty")
        return 1.0 - self.crps() / reference if reference > 0.0 else float("nan")

    def to_frame(self) -> pd.DataFrame:
        """A table with a row a level."""
        import pandas as pd

        return pd.DataFrame(vars(self))


def crps_decomposition(
    y: Any, predictive: Distribution, *, levels: Any = QUANTILE_LEVELS, weights: Array | None = None
) -> ScoreDecomposition:
    """The decomposition of the CRPS of n distributions of one target, by their quantiles at ``levels``, by row weights.

    Raises:
        InvalidInputError: targets or levels that are none, or more than one target a row.
    """
    targets = matched_targets(predictive, y)
    if targets.ndim != 1:
        raise InvalidInputError(f"y: shape {targets.shape}, expected one target a row (n,); vectors have no quantiles")
    quantiles = predictive.predictive_quantile(_levels(levels)[None, :])
    return quantile_decomposition(targets, quantiles, levels, weights=weights)


def quantile_decomposition(
    y: Array, quantiles: Array, levels: Any, *, weights: Array | None = None
) -> ScoreDecomposition:
    """The decomposition of the mean quantile score at each of k levels.

    Args:
        y: targets (n,).
        quantiles: predicted, (n, k).
        levels: (k,), increasing inside (0, 1).
        weights: what each row counts, (n,); equal by default.

    Raises:
        InvalidInputError: levels outside (0, 1) or not increasing, or shapes that do not fit.
    """
    at = _levels(levels)
    if quantiles.shape != (len(y), len(at)) or len(y) == 0:
        raise InvalidInputError(f"quantiles: shape {quantiles.shape}, expected {(len(y), len(at))}, one row or more")
    values, ranks = np.unique(y, return_inverse=True)
    counts = np.ones(len(y)) if weights is None else weights
    best_constants = np.quantile(y, at, method="inverted_cdf", weights=weights)
    scores = np.empty((3, len(at)))
    for column, level in enumerate(at):
        order = np.argsort(quantiles[:, column], kind="stable")
        predicted = quantiles[order, column]
        fitted = values[_isotonic_ranks(predicted, ranks[order], len(values), float(level), counts[order])]
        for row, given in enumerate((predicted, fitted, best_constants[column])):
            scores[row, column] = np.average(pinball(y[order] - given, float(level)), weights=counts[order])
    score, recalibrated, uncertainty = scores
    return ScoreDecomposition(at, score, score - recalibrated, uncertainty - recalibrated, uncertainty)


def marginal_crps(y: Any, weights: Array | None = None) -> Array:
    """CRPS of the distribution of all targets, at each of them, (n,): what a version that ignores its input scores.

    mean_j |y_i - y_j| - mean_jk |y_j - y_k| / 2, by sorting, the means by the rows' weights.
    """
    targets = np.asarray(y, dtype=np.float64)
    counts = np.ones(len(targets)) if weights is None else weights
    shares = counts / np.sum(counts)
    order = np.argsort(targets, kind="stable")
    ordered, share = targets[order], shares[order]
    below, mass = np.cumsum(share * ordered), np.cumsum(share)
    distance = np.empty(len(targets))
    distance[order] = ordered * (2.0 * mass - 1.0) - 2.0 * below + below[-1]
    return np.maximum(distance - shares @ distance / 2.0, 0.0)


def _levels(levels: Any) -> Array:
    found = np.asarray(levels, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not (found[0] > 0.0 and found[-1] < 1.0 and np.all(np.diff(found) > 0.0)):
        raise InvalidInputError(f"levels: {levels} must be increasing probabilities inside (0, 1)")
    return found


def _isotonic_ranks(predicted: Array, ranks: Array, count: int, level: float, weights: Array) -> Array:
    """Ranks (n,) among ``count`` values of the non-decreasing fit of least quantile score, by increasing predictions.

    Each segment of rows has a range of values that its fit lies in. The range is halved: the fit takes values of the
    lower half up to a cut and of the upper half beyond, and the best cut is where the weighted sum of
    1[y <= middle] - level is largest. Equal predictions are not cut.
    """
    n = len(ranks)
    low, high = np.zeros(n, dtype=np.intp), np.full(n, count - 1, dtype=np.intp)
    may_end = np.append(predicted[1:] > predicted[:-1], True)
    starts = np.zeros(1, dtype=np.intp)
    place = np.arange(n)
    while np.any(low < high):
        middle = (low + high) // 2
        sums = np.cumsum(weights * ((ranks <= middle) - level))
        before = np.where(starts > 0, sums[starts - 1], 0.0)
        sums[~may_end] = -np.inf
        best = np.maximum.reduceat(sums, starts)
        lengths = np.diff(np.append(starts, n))
        cut = np.minimum.reduceat(np.where(sums == np.repeat(best, lengths), place, n), starts)
        cut = np.where(best > before, cut, starts - 1)
        is_open = low < high
        lower = place <= np.repeat(cut, lengths)
        high = np.where(is_open & lower, middle, high)
        low = np.where(is_open & ~lower, middle + 1, low)
        ends = cut[is_open[starts]] + 1
        starts = np.union1d(starts, ends[ends < n])
    return low
