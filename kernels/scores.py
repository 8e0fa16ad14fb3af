r"""Scores of predictive distributions, point by point: lower is better, arrays of shape (n,).

A log score can be infinite (an observation outside the support): ``negative_log_likelihood`` raises and names the row
unless ``infinite="keep"``, which returns +inf there. Distributions without a density (point forecasts, samples without
spread) have no log score; ``has_density`` tells.

Targets may be rounded. A density at a rounded target speaks of a point, where the data say an interval. With targets on
a grid of step delta, every distribution, that of all targets included, is scored by the probability of the cell around
the target,

.. math::  -\log \{F(y + \delta / 2) - F(y - \delta / 2)\} + \log \delta,

which tends to the negative log density as delta goes to 0, and is the negative log mass of counts at delta = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

import numpy as np

from congruence.kernels.arrays import Array, require_targets, row_slices
from congruence.kernels.distributions.base import Distribution, require_dimension
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.rng import stream

ON_GRID = 0.99
"""Share of the targets that lie on a grid where they are called rounded."""

_FEWEST_ROWS = 50
_LOOKED_AT = 20_000
_BESIDE = 0.98  # of the targets that are not the commonest one
_TIED = 0.01  # of the rows share their value with another; fewer do in finer grids, where a density is as good
_FINEST = 1e-5  # of the targets' spread; single precision alone is a grid of 1e-7
_OFF = 1e-3  # of a step
_APART = 1e-5  # of a step, at which two values are no longer one
_OF_A_CELL = 10
_BLOCK = 2**14


def resolution(y: Array) -> float | None:
    """The step delta of the grid on which at least 99 % of targets y (n,) lie; None where they lie on none.

    Of several grids the coarsest. Fewer than 50 targets, or targets of which fewer than 1 % come again, say nothing.
    """
    targets = np.asarray(y, dtype=np.float64)
    if targets.ndim != 1 or len(targets) < _FEWEST_ROWS:
        return None
    if len(targets) > _LOOKED_AT:
        targets = targets[stream(0, "targets whose resolution is looked at").integers(len(targets), size=_LOOKED_AT)]
    values, counts = np.unique(targets, return_counts=True)
    spread = float(np.std(targets))
    if len(values) < 3 or np.sum(counts[counts > 1]) < _TIED * len(targets):
        return None
    gaps = np.sort(np.diff(values))
    steps = [float(gaps[int(share * (len(gaps) - 1))]) for share in (0.0, 0.02, 0.05, 0.1, 0.3)]
    exponents = range(int(np.floor(np.log10(_FINEST * spread))), int(np.ceil(np.log10(np.ptp(values)))) + 1)
    steps += [digit * 10.0**exponent for digit, exponent in product((1.0, 2.0, 2.5, 5.0), exponents)]
    commonest = values[np.argmax(counts)]
    for step in sorted((step for step in steps if _FINEST * spread < step <= np.ptp(values) / 2.0), reverse=True):
        for offset in (0.0, commonest):
            places = (values - offset) / step
            held = counts * (np.abs(places - np.rint(places)) < _OFF)
            near = np.flatnonzero(held)
            # Beside targets of a million, those of 0 to 9 are not all zeros: of two values at one place one is.
            same = (np.diff(np.rint(places[near])) == 0.0) & (np.diff(places[near]) > _APART)
            first, second = near[:-1][same], near[1:][same]
            held[np.where(counts[first] < counts[second], first, second)] = 0
            # Where most targets are one value, the others must say so, too.
            beside = np.sum(held[values != commonest]) / np.sum(counts[values != commonest])
            if np.sum(held) >= ON_GRID * len(targets) and beside >= _BESIDE:
                return float(f"{step:.6g}")
    return None


def cell_log_scores(predictive: Distribution, y: Array, step: float) -> Array:
    """-log P(y_i - step / 2 < Y <= y_i + step / 2) + log step, (n,), of one target each; infinite where that is 0."""
    scores = np.empty(len(y))
    for rows in row_slices(len(y), _BLOCK):
        scores[rows] = np.log(step) - predictive[rows].log_mass(y[rows] - step / 2.0, y[rows] + step / 2.0)
    return scores


def marginal_log_score(y: Array, step: float | None = None) -> float:
    """The mean log score of the law of all targets at these (n,), as far as the targets themselves tell it.

    Of targets with a ``step`` that of the cells, by their frequencies where these hold ten targets on average; where
    they hold fewer, targets of a cell are spread evenly over it, and spacings (Vasicek 1976) smooth over the cells. Of
    others the masses of values that come again and a density, by spacings, beside them.
    """
    from scipy.stats import differential_entropy  # a second of imports that a refusal need not wait for

    n = len(y)
    values, counts = np.unique(y, return_counts=True)
    if step is not None and n < _OF_A_CELL * len(values):
        tied = np.repeat(counts, counts)
        place = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
        return float(differential_entropy(np.repeat(values, counts) + step * ((place + 0.5) / tied - 0.5)))
    atoms = counts >= max(2.0, _TIED * n) if step is None else np.ones(len(values), dtype=bool)
    others = np.repeat(values[~atoms], counts[~atoms])
    if len(others) < _OF_A_CELL:  # too few for a density
        atoms, others = np.ones(len(values), dtype=bool), others[:0]
    shares = counts[atoms] / n
    # Frequencies say too little by half a target a value (Miller 1955).
    entropy = -float(np.sum(shares * np.log(shares))) + (np.count_nonzero(atoms) - 1.0) / (2.0 * n)
    if len(others):
        rest = len(others) / n
        return entropy + rest * float(differential_entropy(others) - np.log(rest))
    return entropy + (0.0 if step is None else float(np.log(step)))


def matched_targets(predictive: Distribution, y: Any) -> Array:
    """y as finite float64 targets, one per distribution: (n,), or (n, q) where the distributions are of q > 1 targets.

    Raises:
        InvalidInputError: not finite, of another length, or of another number of targets.
    """
    targets = require_targets(y, "y", rows=len(predictive))
    require_dimension(predictive, targets)
    return targets


def negative_log_likelihood(
    y: Any, predictive: Distribution, *, infinite: Literal["raise", "keep"] = "raise", step: float | None = None
) -> Array:
    """-log f_i(y_i): density for continuous laws, mass for counts.

    Of targets that are rounded to a ``step`` (``rounding.resolution``) the log mass of the cell around each, less log
    step, so that densities and masses compare. Of draws (``Samples``) the density is that of the smoothed draws, and
    what its mean score exceeds that of the law behind so many normal draws by is taken off: in the mean over rows 5
    and 50 draws of one law score alike, and no single row decides.

    Raises:
        InvalidInputError: the law has no density, or a score is infinite and ``infinite`` is "raise".
    """
    targets = matched_targets(predictive, y)
    if step is None or (predictive.is_discrete and step <= 1.0) or predictive.dimension > 1:
        scores = -predictive.log_prob(targets)
    else:
        scores = cell_log_scores(predictive, targets, step)
    scores = scores - predictive.log_score_excess
    bad = ~np.isfinite(scores)
    if infinite == "raise" and bool(bad.any()):
        row = int(np.argmax(bad))
        raise InvalidInputError(
            f"negative_log_likelihood: {int(bad.sum())} of {len(scores)} rows have an infinite log score, the first is "
            f"row {row} with y = {targets[row]}: the model gives it probability 0. Use a family whose support covers "
            "the targets, or crps; infinite='keep' returns the infinite scores"
        )
    return np.asarray(scores)


def crps(y: Any, predictive: Distribution) -> Array:
    """Continuous ranked probability score; the energy score for vector targets. Fair for draws (``Samples``)."""
    targets = matched_targets(predictive, y)
    return predictive.crps(targets)


def squared_error(y: Any, predictive: Distribution) -> Array:
    """(y_i - E Y_i)^2; for vectors the squared Euclidean distance."""
    error = (matched_targets(predictive, y) - predictive.mean()) ** 2
    return np.asarray(error if error.ndim == 1 else error.sum(axis=1))


def absolute_error(y: Any, predictive: Distribution) -> Array:
    """|y_i - E Y_i|; for vectors the Euclidean distance."""
    return np.sqrt(squared_error(y, predictive))


def pinball_score(y: Any, predictive: Distribution, level: float) -> Array:
    """(1[y <= Q(level)] - level) (Q(level) - y): the quantile score, minimal in expectation at the true quantile.

    Q is ``predictive_quantile``.

    Raises:
        InvalidInputError: a level outside (0, 1).
    """
    _require_level(level)
    return pinball(matched_targets(predictive, y) - predictive.predictive_quantile(level), level)


def pinball(error: Array, level: float | Array) -> Array:
    """The quantile score of targets less their quantiles at ``level``."""
    return np.maximum(level * error, (level - 1.0) * error)


def interval_score(y: Any, predictive: Distribution, level: float) -> Array:
    """Winkler score of the central interval that holds ``level``: width + (2 / (1 - level)) distance outside.

    Gneiting and Raftery (2007), equation 43.
    """
    lower, upper = central_interval(predictive, level)
    return winkler(matched_targets(predictive, y), lower, upper, level)


def winkler(targets: Array, lower: Array, upper: Array, level: float | Array) -> Array:
    """``interval_score`` of intervals that are known."""
    outside = np.maximum(lower - targets, 0.0) + np.maximum(targets - upper, 0.0)
    return np.asarray(upper - lower + 2.0 / (1.0 - level) * outside)


def central_interval(predictive: Distribution, level: float) -> tuple[Array, Array]:
    """Predictive quantiles at (1 - level) / 2 and (1 + level) / 2, each (n,).

    Between l draws (``Samples``) at most (l - 1) / (l + 1) can be held: a wider level has the outermost draws.

    Raises:
        InvalidInputError: a level outside (0, 1).
    """
    (interval,) = central_intervals(predictive, [level])
    return interval


def central_intervals(predictive: Distribution, levels: Sequence[float]) -> list[tuple[Array, Array]]:
    """``central_interval`` at several ``levels`` from one look at the quantiles, which counts are quicker at."""
    for level in levels:
        _require_level(level)
    tails = sorted({tail for level in levels for tail in ((1.0 - level) / 2.0, (1.0 + level) / 2.0)})
    quantiles = predictive.predictive_quantile(np.array(tails)[None, :])
    at = {tail: quantiles[:, column] for column, tail in enumerate(tails)}
    return [(at[(1.0 - level) / 2.0], at[(1.0 + level) / 2.0]) for level in levels]


def holds_interval(predictive: Distribution, level: float) -> bool:
    """Whether the central interval of ``level`` lies between the outermost draws: 19 hold that of 90 %."""
    return predictive.members is None or (1.0 - level) / 2.0 * (predictive.members + 1) > 1.0 - 1e-9


def covered(predictive: Distribution, y: Any, level: float, *, interval: tuple[Array, Array] | None = None) -> Array:
    """1 where y_i lies in the central interval of ``level``, else 0; the mean is the coverage.

    Of draws (``Samples``) the share of the place of y_i among them that lies between the two levels, in [0, 1]: the
    probability that its randomised PIT does, so that the coverage of the truth is ``level`` for any number of draws.
    Likewise of predicted quantiles and bins, the share of the cell that holds y_i; a bin that was given no mass has
    one place among the levels. ``interval`` is the ``central_interval`` where it is known already.
    """
    targets = matched_targets(predictive, y)
    if predictive.stated != "all":
        _require_level(level)
        below, above = predictive.pit_range(targets)
        first, last = (1.0 - level) / 2.0, (1.0 + level) / 2.0
        share = above - below
        inside = np.maximum(np.minimum(above, last) - np.maximum(below, first), 0.0)
        point = (first <= below) & (below <= last)  # of a bin without mass, which has one place among the levels
        return np.asarray(np.where(share > 0.0, inside / np.where(share > 0.0, share, 1.0), point))
    lower, upper = central_interval(predictive, level) if interval is None else interval
    return np.asarray((lower <= targets) & (targets <= upper), dtype=np.float64)


def width(predictive: Distribution, level: float) -> Array:
    """Width of the central interval of ``level``."""
    lower, upper = central_interval(predictive, level)
    return np.asarray(upper - lower)


def sharpness(predictive: Distribution) -> float:
    """Root of the mean predictive variance (for vectors of its sum over the targets).

    The variance of draws (``Samples``) is the unbiased one: their number does not change the sharpness.
    """
    return sharpness_of(predictive.std())


def sharpness_of(std: Array, weights: Array | None = None) -> float:
    """``sharpness`` from predictive standard deviations, (n,) or (n, q), of rows that count ``weights``."""
    variance = std**2 if std.ndim == 1 else (std**2).sum(axis=1)
    return float(np.sqrt(np.average(variance, weights=weights)))


def point_scores(predictive: Distribution, y: Any, step: float | None = None) -> dict[str, Array]:
    """mean, std, crps, absolute_error, squared_error, and nll where the law has a density; each (n,).

    Of ``Quantiles`` also 1 where they crossed before they were sorted (``quantile_crossing``), and where the target
    lies beyond the outer ones (``beyond_quantiles``).

    Infinite log scores stay infinite: they are the truth about a model that excluded what happened. ``step`` is that of
    rounded targets, see ``negative_log_likelihood``.
    """
    targets = matched_targets(predictive, y)
    scores = {"mean": predictive.mean(), "std": predictive.std(), "crps": predictive.crps(targets)}
    if predictive.has_density():
        scores["nll"] = negative_log_likelihood(targets, predictive, infinite="keep", step=step)
    scores |= predictive.remarks(targets)
    scores["squared_error"] = squared_error(targets, predictive)
    scores["absolute_error"] = np.sqrt(scores["squared_error"])
    return scores


def _require_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise InvalidInputError(f"level: is {level}, expected a probability inside (0, 1)")
