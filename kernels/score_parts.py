r"""Scores taken apart: what a version knows, and what it says of that.

One version: score = miscalibration - discrimination + uncertainty. For the quantile score (pinball loss) at a level,
with predicted quantiles q_i and targets y_i,

.. math::  \bar S(q) = \underbrace{\bar S(q) - \bar S(\hat q)}_{\text{miscalibration}}
   - \underbrace{\left(\bar S(r) - \bar S(\hat q)\right)}_{\text{discrimination}}
   + \underbrace{\bar S(r)}_{\text{uncertainty}},

where \hat q is the best non-decreasing function of q (isotonic recalibration) and r the best constant, the quantile of
the targets themselves. Both differences are at least 0. A distribution that knows nothing of its input discriminates by
0, and recalibration does not improve one that is calibrated. The CRPS is twice the integral of the quantile score over
levels.

Gneiting and Resin (2023), Regression diagnostics meets forecast evaluation, section 4; Dimitriadis, Gneiting and Jordan
(2021). The isotonic fit is by recursive partition of the targets' values (Stout 2008), at once for all segments.

Two versions: who won, and why, by knowledge or honesty; and which of several may still be the best. A version is
*honest* where its predictions can be taken at their word: nothing is gained by recalibrating its levels from what it
says itself. What it would gain is found by a map of its levels, G_i(u) = Phi((Phi^{-1}(u) - b_i) / c_i), whose b and
log c are linear in the ranks of its own means and spreads, fitted on other rows. The CRPS or log score of two versions
a and b then differs by

.. math::  S_a - S_b = \big[(S_a - S_a') - (S_b - S_b')\big] + \big[S_a' - S_b'\big],

honesty and knowledge, where S' are the scores of the recalibrated predictions: row by row, so that the parts sum to the
difference (Bröcker 2009; for all rows together Dimitriadis and Puke 2026). The map does not look at the
inputs: with them it would learn what a version does not know, and call that dishonest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import log_ndtr

from congruence.kernels.arrays import Array, mean_one, printed, row_slices
from congruence.kernels.dependence.blocks import DependentBlocks, SumOfBlocks
from congruence.kernels.dependence.correlation import folds
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.quantiles import quantile_score, weights_of_levels
from congruence.kernels.distributions.recalibrated import recalibrated, score_intervals
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import cell_step
from congruence.kernels.recalibration.recalibration_map import Design, Form, NormalScores, fit_parts, normal_score_map
from congruence.kernels.resampling import Estimate
from congruence.kernels.rng import keyed_uniforms, stream
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
        """2 ∫ part(level) d level, by the weights of ``Quantiles.crps``."""
        return float(2.0 * weights_of_levels(self.levels) @ getattr(self, part))

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
    y: Any, predictive: Distribution, *, levels: Any = None, weights: Array | None = None
) -> ScoreDecomposition:
    """The decomposition of the CRPS of n distributions of one target, by their quantiles at ``levels``, by row weights.

    The levels are by default those at which quantiles are stated, else ``QUANTILE_LEVELS``.

    Raises:
        InvalidInputError: targets or levels that are none, or more than one target a row.
    """
    targets = matched_targets(predictive, y)
    if targets.ndim != 1:
        raise InvalidInputError(f"y: shape {targets.shape}, expected one target a row (n,); vectors have no quantiles")
    stated = predictive.quantile_levels
    at = _levels(levels if levels is not None else QUANTILE_LEVELS if stated is None else stated)
    return quantile_decomposition(targets, predictive.predictive_quantile(at[None, :]), at, weights=weights)


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


def marginal_crps(y: Any, weights: Array | None = None, levels: Array | None = None) -> Array:
    """CRPS of the distribution of all targets, at each of them, (n,): what a version that ignores its input scores.

    mean_j |y_i - y_j| - mean_jk |y_j - y_k| / 2, by sorting, the means by the rows' weights. With ``levels`` that of
    its quantiles at these, as ``Quantiles`` are scored.
    """
    targets = np.asarray(y, dtype=np.float64)
    if levels is not None:
        quantiles = np.quantile(targets, levels, method="inverted_cdf", weights=weights)
        return np.asarray(quantile_score(levels, quantiles[None, :], targets[None, :])[0])
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


FOLDS = 5
FEWEST_ROWS = 100
_REACH = 4.0
_RIDGE = 1.0
_PURPOSE = "folds of a version's own recalibration"
_DRAWS = 2000
_NORMALS = 4_000_000  # at once
_ROUNDING = 1e-8
"""Of a score: far out, normal scores of levels near 1 have some ten digits."""


@dataclass(frozen=True)
class Part(Estimate):
    """A part of a mean difference of scores, negative where it favours the first version, and its 95 % interval.

    Attributes:
        p_value: two-sided, of the hypothesis that it is 0.
    """

    p_value: float


@dataclass(frozen=True)
class ScoreParts:
    """A mean difference of scores, first - second, and its two parts, which sum to it.

    Attributes:
        total: the difference.
        honesty: what the first would gain by its own recalibration, less what the second would.
        knowledge: what is left of the difference when both are recalibrated.
        gains: what each would gain by its own recalibration.
        corrected: the first when it is recalibrated - the second as it is.
        rows: that the parts rest on.
    """

    total: Part
    honesty: Part
    knowledge: Part
    gains: tuple[Part, Part]
    corrected: Part
    rows: int


def recalibration_gains(
    y: Any, predictive: Distribution, *, keys: Any | None = None, seed: int = 0, blocks: DependentBlocks | None = None
) -> tuple[Array, Array]:
    """Returns what each row's CRPS and log score gain by a map of its levels that was fitted on the other four fifths.

    The log score's is the logarithm of how much likelier the map makes the levels that the target lies between, so that
    the NLL of any family less the gain is that of its recalibrated prediction; NaN of draws, whose log score is that
    of a density which they do not state.

    Args:
        y: targets (n,).
        predictive: n distributions of one target, with a spread.
        keys: names of the rows, by which they are divided; row numbers by default.
        seed: of the division, and of the random points in jumps of distribution functions.
        blocks: of rows that depend on each other: none is divided.

    Raises:
        InvalidInputError: fewer than 100 rows, rows that do not match, several targets a row, or no spread anywhere.
    """
    targets = matched_targets(predictive, y)
    if targets.ndim > 1 or len(targets) < FEWEST_ROWS or not np.any(predictive.std() > 0.0):
        raise InvalidInputError(
            f"y: shape {targets.shape}; a version is recalibrated on at least {FEWEST_ROWS} rows of one target, and "
            "where its predictions have a spread"
        )
    names = np.arange(len(targets)) if keys is None else np.asarray(keys)
    low, high = score_intervals(predictive, targets, cell_step(targets, predictive))
    scores = NormalScores(low, high, keyed_uniforms(names, seed, _PURPOSE)).within_reach(_REACH)
    features, form = _own_features(predictive), Form(_RIDGE, _RIDGE)
    parts = folds(names, FOLDS, seed, _PURPOSE, blocks)
    of_crps, of_log = np.zeros((2, len(targets)))
    for part in range(FOLDS):
        held = parts.numbers == part
        fitting = ~held & ~parts.beside_cuts
        if held.any():
            fitted = fit_parts(Design(features[fitting]), scores[fitting], form)
            own_map = normal_score_map(fitted.at(features[held]), form)
            before = predictive[held]
            after = recalibrated(before, own_map)
            of_crps[held] = before.crps(targets[held]) - after.crps(targets[held])
            below, above = ((end[held] - own_map.shift) / own_map.factor for end in (low, high))
            of_log[held] = _log_mass(below, above, own_map.factor) - _log_mass(low[held], high[held], 1.0)
    return of_crps, of_log if predictive.draws is None else np.full(len(targets), np.nan)


def _log_mass(low: Array, high: Array, factor: Array | float) -> Array:
    """log of the standard normal mass between two scores; where they are the same, of the density over ``factor``."""
    flipped = low > 0.0  # far out on the right, levels have no digits left
    low, high = np.where(flipped, -high, low), np.where(flipped, -low, high)
    point = (high == low) & np.isfinite(low)
    with np.errstate(divide="ignore", invalid="ignore"):
        mass = log_ndtr(high) + np.log1p(-np.exp(log_ndtr(low) - log_ndtr(high)))
    found = np.where(point, -0.5 * np.where(point, low, 0.0) ** 2 - np.log(factor), mass)
    return np.where(np.isfinite(found), found, 0.0)  # beyond any support: infinite before and after


def score_parts(
    first: Array,
    first_recalibrated: Array,
    second: Array,
    second_recalibrated: Array,
    *,
    weights: Array | None = None,
    blocks: DependentBlocks | None = None,
) -> ScoreParts:
    """Returns the difference of two versions' mean scores on the same rows, and its parts, with their intervals.

    Args:
        first, second: CRPS or log scores of the rows, (n,); lower is better.
        first_recalibrated, second_recalibrated: the same less ``recalibration_gains``, (n,).
        weights: what each row counts in means, (n,); equal by default.
        blocks: of rows that depend on each other.

    Raises:
        InvalidInputError: fewer than two rows.
    """
    n = len(first)
    if n < 2:
        raise InvalidInputError(f"first: {n} rows; a difference needs at least two")
    counted = np.ones(n) if weights is None else mean_one(weights, n)
    gains = first - first_recalibrated, second - second_recalibrated
    rounding = _ROUNDING * float(np.mean(np.abs(first)) + np.mean(np.abs(second)))

    def part(values: Array) -> Part:
        if np.max(np.abs(values)) <= rounding:  # two that are one when recalibrated
            return Part(0.0, 0.0, 0.0, 1.0)
        mean = float(np.mean(counted * values))
        influence = counted * (values - mean) / n
        known = SumOfBlocks.of(influence if blocks is None else blocks.sums(influence))
        if known.error == 0.0:
            return Part(mean, mean, mean, float(mean == 0.0))
        return Part(mean, *known.interval(mean), known.p_value(mean))

    return ScoreParts(
        part(first - second),
        part(gains[0] - gains[1]),
        part(first_recalibrated - second_recalibrated),
        (part(gains[0]), part(gains[1])),
        part(first_recalibrated - second),
        n,
    )


def may_be_best(
    losses: Mapping[str, Array], *, weights: Array | None = None, blocks: DependentBlocks | None = None, seed: int = 0
) -> dict[str, float]:
    """Returns each version's p-value in the model confidence set: the set at level .95 are those above .05.

    The version that is worst against the mean of those that are left goes first, and its p-value is the largest of the
    tests of equality until then (Hansen, Lunde and Nason 2011, the statistic T_max, its null by a multiplier bootstrap
    of the blocks' sums). In at least 95 of 100 splits the best version is in the set at .95.

    Args:
        losses: scores of the same n rows by version, lower is better.
        weights: what each row counts, (n,); equal by default.
        blocks: of rows that depend on each other; each row by itself by default.
        seed: of the signs.

    Raises:
        InvalidInputError: no version, or other numbers of rows.
    """
    names, columns = list(losses), [np.asarray(each, dtype=np.float64) for each in losses.values()]
    if not names or len({each.shape for each in columns}) > 1 or len(columns[0]) < 2:
        raise InvalidInputError("losses: give each version's scores of the same rows, at least two")
    table = np.column_stack(columns)
    n = len(table)
    if weights is not None:
        table = table * mean_one(weights, n)[:, None]
    means = table.mean(axis=0)
    centred = (table - means) / n
    sums = centred if blocks is None else blocks.sums(centred)
    left, found, reached = list(range(len(names))), dict.fromkeys(names, 1.0), 0.0
    rng = stream(seed, "model confidence set")
    parts = row_slices(_DRAWS if len(left) > 1 else 0, max(1, _NORMALS // len(sums)))
    drawn = [rng.standard_normal((part.stop - part.start, len(sums))) @ sums for part in parts]
    while len(left) > 1:
        own = sums[:, left] - sums[:, left].mean(axis=1, keepdims=True)
        errors = np.sqrt(np.sum(own**2, axis=0))
        errors = np.where(errors > 0.0, errors, np.inf)
        observed = (means[left] - means[left].mean()) / errors
        apart = [each[:, left] - each[:, left].mean(axis=1, keepdims=True) for each in drawn]  # the same for every step
        beyond = sum(np.count_nonzero(np.max(each / errors, axis=1) >= np.max(observed)) for each in apart)
        reached = max(reached, float((1 + beyond) / (_DRAWS + 1)))
        found[names[left.pop(int(np.argmax(observed)))]] = reached
    return found


def _own_features(predictive: Distribution) -> Array:
    """Ranks of a version's own means and spreads, of mean 0 and variance 1, (n, 2); constant where all are the same."""
    columns = []
    for values in (predictive.mean(), predictive.std()):
        _, place, equal = np.unique(values, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(equal) - 0.5 * equal)[place] / len(values) - 0.5
        spread = float(np.std(ranks))
        columns.append(ranks / spread if spread > 0.0 else ranks)
    return np.column_stack(columns)
