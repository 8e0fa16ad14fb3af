"""Probability integral transforms, their scores, and tests of their uniformity.

F_i(y_i) is uniform if F_i is the distribution of y_i. Where F_i jumps at y_i (counts, censored distributions), F_i(y_i)
alone is not uniform even for the true distribution; a point drawn uniformly from the jump is. Of l draws of F_i
(ensembles), the rank of y_i among l + 1 is uniform: (rank + V) / (l + 1).

Scores of PIT values have mean 0 and covariance I at every input, if the model is the truth:
phi_j(u) = sqrt(2j + 1) P_j(2u - 1) with the Legendre polynomials P_j: orthonormal on [0, 1], and without the constant
(Neyman 1937). The first four say what is wrong: bias, spread, skew and tails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from scipy.special import chdtrc, eval_legendre, eval_sh_legendre

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.rng import keyed_uniforms
from congruence.kernels.scores import matched_targets, resolution

PitKind = Literal["randomized", "mid", "nonrandomized"]


_FINE, _MOVED = 0.3, 0.15
"""sqrt(n) times the mean square of a step in interquartile ranges, up to which the scores of cells are those of PIT
values at the targets; and what a mean score may differ by, in its standard errors: those at a bound differ more."""

_LOOKED_AT = 5_000
_TIED = 1e-3  # of a step, up to which a quantile is one of the values that targets have


def cell_step(y: Array, predictive: Distribution, n: int | None = None) -> float | None:
    """The step of the cells in which targets are judged: that to which they are rounded, where it is not too fine.

    None where PIT values at the rounded targets are as good, of distributions that have jumps of their own (of counts,
    where the step is 1), of bins, and where quantiles are rounded as the targets are (see ``distributions.cells``).

    Args:
        y: targets of some rows, (s,); of vectors (s, q), for which it is None.
        predictive: of these.
        n: rows that are judged together; by default these.
    """
    levels = predictive.quantile_levels
    step = None if y.ndim != 1 or (predictive.stated == "cells" and levels is None) else resolution(y)
    if step is None or (predictive.is_discrete and step <= 1.0):
        return None
    rows = np.linspace(0, len(y) - 1, min(len(y), _LOOKED_AT)).astype(np.intp)
    y, predictive, root = y[rows], predictive[rows], float(np.sqrt(n or len(y)))
    if levels is not None:
        places = (predictive.quantile(levels[None, :]) - y[:1]) / step
        if np.mean(np.abs(places - np.rint(places)) < _TIED) > 0.5:
            return None
    low, high = predictive.predictive_quantile(np.array([[0.25, 0.75]])).T
    known = np.isfinite(low) & np.isfinite(high)
    share = step / np.maximum(high[known] - low[known], step)
    moved = mean_scores(*pit_ranges(y, predictive)) - mean_scores(*pit_ranges(y, predictive, step))
    coarse = root * float(np.sum(share**2)) > _FINE * len(rows)
    return step if coarse or root * float(np.max(np.abs(moved.mean(axis=0)))) > _MOVED else None


def cell_steps(y: Array, predictive: Distribution, n: int | None = None) -> tuple[float | None, ...] | None:
    """``cell_step`` of each of the targets of a row, y (s,) or (s, q); None where all are judged as they are.

    Of vectors those are whose marginals have no closed form.
    """
    columns = [(values, predictive.marginal(k)) for k, values in enumerate(y.reshape(len(y), -1).T)]
    steps = tuple(None if law is None else cell_step(values, law, n) for values, law in columns)
    return steps if any(steps) else None


def rounded_draws(draws: Array, y: Array, step: float) -> Array:
    """Draws (n, l) rounded to a ``step`` as the targets y (n,) beside them are: any of them could be the target."""
    return np.asarray(y[:, None] + step * np.rint((draws - y[:, None]) / step))


def pit_ranges(y: Array, predictive: Distribution, step: float | None = None) -> tuple[Array, Array]:
    """Over which the PIT of targets y (n,) is uniform if the model is the truth; see ``Distribution.pit_range``.

    Of targets that are rounded to a ``step`` it is that of all that is rounded to the target.
    """
    if (cells := predictive.cells(y, step)) is not None:
        return cells.range
    if step is None:
        return predictive.pit_range(y)
    return predictive.pit_range(y - step / 2.0)[0], predictive.pit_range(y + step / 2.0)[1]


def pit_values(
    y: Any,
    predictive: Distribution,
    *,
    kind: PitKind = "randomized",
    seed: int = 0,
    keys: Any | None = None,
    step: float | None = None,
) -> Array:
    """PIT of y_i under the i-th distribution, (n,), in [0, 1].

    Args:
        predictive: n scalar distributions.
        y: targets (n,).
        kind: where F_i jumps at y_i: "randomized" a uniform point of the jump, "mid" its middle (Lancaster's mid-p),
            "nonrandomized" its top F_i(y_i). All three agree for continuous distributions. For draws (``Samples``) the
            jump is the place of y_i among them, and "nonrandomized" their empirical distribution function.
        seed: of the randomisation.
        keys: one number or string per row that names it, (n,). The random number of a row depends on the seed and its
            key alone, so it is the same in every sharding. Row numbers by default.
        step: to which targets are rounded (``scores.resolution``): the jump is then the cell around the target.

    Raises:
        InvalidInputError: another kind, or mismatched rows.
    """
    targets = matched_targets(predictive, y)
    if kind == "nonrandomized":
        return predictive.cdf(targets)
    lower, upper = pit_ranges(targets, predictive, step)
    if kind == "mid":
        return np.asarray((lower + upper) / 2.0)
    if kind != "randomized":
        raise InvalidInputError(f"kind: is {kind!r}, expected 'randomized', 'mid' or 'nonrandomized'")
    share = keyed_uniforms(np.arange(len(targets)) if keys is None else keys, seed, "randomized PIT")
    if len(share) != len(targets):
        raise InvalidInputError(f"keys: {len(share)} keys for {len(targets)} rows; give one key per row")
    return np.asarray(lower + share * (upper - lower))


def require_pit(values: Any, *, at_least: int = 1) -> Array:
    """``values`` as PIT values (n,) in [0, 1].

    Raises:
        InvalidInputError: fewer than ``at_least`` values, another shape, or a value that is no probability, by row.
    """
    pit = require_targets(values, "values")
    if pit.ndim != 1 or len(pit) < at_least:
        raise InvalidInputError(f"values: shape {pit.shape}, expected {at_least} or more PIT values (n,)")
    inside = (pit >= 0.0) & (pit <= 1.0)
    if not bool(np.all(inside)):
        row = int(np.argmin(inside))
        raise InvalidInputError(
            f"values: row {row} is {pit[row]:g}; PIT values lie in [0, 1], as pit_values(y, predictive) gives them"
        )
    return pit


ORDERS = ("bias", "spread", "skew", "tails")
"""What the mean of each score speaks of: positive bias, targets above the prediction; positive spread, targets further
out than predicted (too narrow a distribution); positive skew, a tail of the targets upwards beyond the distribution's;
positive tails, ends and middle both fuller than predicted."""


def pit_scores(pit: Any) -> Array:
    """phi_1 to phi_4 of PIT values (n,): an array (n, 4) in the order of ``ORDERS``.

    Raises:
        InvalidInputError: values outside [0, 1] or not finite, by row.
    """
    centered = 2.0 * require_pit(pit) - 1.0
    scores = np.empty((len(centered), len(ORDERS)))
    for j in range(len(ORDERS)):
        scores[:, j] = np.sqrt(2 * j + 3) * eval_legendre(j + 1, centered)
    return scores


def mean_scores(lower: Array, upper: Array) -> Array:
    """phi_1 to phi_4, averaged over [lower, upper] (...), (..., 4)."""
    c, square = lower + upper - 1.0, (upper - lower) ** 2  # of 2u - 1: its middle, and its half width squared
    squared = c**2  # higher powers by products: NumPy takes twenty times as long for them
    second = squared + square / 3.0
    fourth = squared * (squared + 2.0 * square) + square**2 / 5.0
    return np.stack(
        [
            np.sqrt(3.0) * c,
            np.sqrt(5.0) * (1.5 * second - 0.5),
            np.sqrt(7.0) * c * (2.5 * (squared + square) - 1.5),
            (35.0 * fourth - 30.0 * second + 3.0) * (3.0 / 8.0),
        ],
        axis=-1,
    )


_BINS = 20
_EXPECTED_PER_BIN = 5
_ORDER = 6  # of the smooth test
_TAIL = 3.0
"""The Cramer-von Mises statistic from which on SciPy's series is no longer read: it was made for smaller ones."""


@dataclass(frozen=True)
class UniformityTest:
    """A test statistic of n PIT values and the probability of one at least as large if they are uniform."""

    statistic: float
    p_value: float


def kolmogorov_smirnov(values: Any) -> UniformityTest:
    """Largest distance between the empirical cdf of the PIT values and the diagonal."""
    result = scipy.stats.kstest(require_pit(values, at_least=2), "uniform")
    return UniformityTest(float(result.statistic), float(result.pvalue))


def cramer_von_mises(values: Any) -> UniformityTest:
    """n times the integrated squared distance W between the empirical cdf of the PIT values and the diagonal.

    The probability is SciPy's (Csorgo and Faraway 1996, J. R. Stat. Soc. B 58) up to W = 3, and the tail of the limit
    distribution beyond, sum of Z_k^2 / (k pi)^2: sqrt(2) P(Z^2 > pi^2 W) (Zolotarev 1961), 1 % less than the exact one
    at 3 (8e-8), and closer further out.
    """
    pit = np.sort(require_pit(values, at_least=2))
    n = len(pit)
    statistic = float(1.0 / (12.0 * n) + np.sum(((np.arange(n) + 0.5) / n - pit) ** 2))
    if statistic > _TAIL:
        return UniformityTest(statistic, float(np.sqrt(2.0) * scipy.stats.chi2.sf(np.pi**2 * statistic, 1)))
    return UniformityTest(statistic, float(scipy.stats.cramervonmises(pit, "uniform").pvalue))


def smooth_test(values: Any) -> UniformityTest:
    """Neyman's smooth test of order six (Neyman, 1937; Rayner and Best, 1989): chi-square of six degrees of freedom.

    The sum over orders j of the squared score sum_i phi_j(u_i) / sqrt(n), with orthonormal Legendre polynomials phi_j.
    It needs no bins, and its power goes to smooth departures: orders 1 to 4 see bias, dispersion, skewness and tails;
    two more see a second and third mode.
    """
    pit = require_pit(values)
    scores = [np.sqrt(2 * j + 1) * eval_sh_legendre(j, pit).sum() for j in range(1, _ORDER + 1)]
    statistic = float(np.square(scores).sum() / len(pit))
    return UniformityTest(statistic, float(chdtrc(_ORDER, statistic)))


def chi_square(values: Any, bins: int | None = None) -> UniformityTest:
    """Pearson's test of equal counts in ``bins`` equal bins; by default 20, fewer if they would expect below 5 each.

    Raises:
        InvalidInputError: fewer than 2 bins, or too few values for the approximation (below 5 a bin).
    """
    pit = require_pit(values, at_least=2)
    chosen = min(_BINS, len(pit) // _EXPECTED_PER_BIN) if bins is None else bins
    if chosen < 2 or len(pit) < _EXPECTED_PER_BIN * chosen:
        raise InvalidInputError(
            f"chi_square: {len(pit)} values in {chosen} bins; the test needs at least 2 bins and {_EXPECTED_PER_BIN} "
            "values per bin. Give more rows, or use cramer_von_mises"
        )
    counts = np.histogram(pit, bins=chosen, range=(0.0, 1.0))[0]
    result = scipy.stats.chisquare(counts)
    return UniformityTest(float(result.statistic), float(result.pvalue))
