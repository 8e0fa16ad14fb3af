"""How a data-generating distribution differs from the standard normal predictive one, and whether it has one mode.

Location, spread, skewness and tails are L-moments (Hosking, 1990): integrals of the distribution function, so they move
no faster than the 1-Wasserstein distance in which the interpreter is trained, where ordinary moments hang on tails that
a histogram does not show.

A second mode is tested by the histogram itself: mixtures of normals draw ripples on a flat distribution, and a network
that was not shown one reads two modes into it. The mean densities of a unimodal distribution over consecutive bins are
unimodal, so the likelihood ratio of the counts against the best unimodal densities sees a valley, and nothing else.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincc, ndtr, ndtri, xlogy

from congruence.kernels.arrays import Array
from congruence.kernels.pit_interpreter.histogram import (
    HISTOGRAM_BINS,
    SPACING,
    SUPPORT,
    TAIL_LEVELS,
    merge,
    wasserstein,
)
from congruence.kernels.streams import stream

NORMAL_L_KURTOSIS = 0.12260171954089

KINDS = (
    "biased down",
    "biased up",
    "underdispersed",
    "overdispersed",
    "skewed right",
    "skewed left",
    "light-tailed",
    "heavy-tailed",
    "more modes",
)
"""What can be wrong with a predictive distribution; ``biased down`` means that it lies below the outcomes."""

BIAS_TOLERANCE = 0.1
SPREAD_TOLERANCE = 1.1
SKEWNESS_TOLERANCE = 0.015
TAILS_TOLERANCE = 0.03
VALLEY_TOLERANCE = 0.1
DISTANCE_TOLERANCE = 0.1

# Densities need bins of finite width: what lies beyond the outermost levels is left out.
_LEVELS = np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1)
_LEVELS[0], _LEVELS[-1] = TAIL_LEVELS[0], 1.0 - TAIL_LEVELS[0]
WIDTHS: Array = np.diff(ndtri(_LEVELS))
RESAMPLES = 100
_TINY = 1e-300


@dataclass(frozen=True)
class Shape:
    """Measures of m distributions, each (m,), in units of the predictive standard deviation.

    ``location``: the mean. ``spread``: sqrt(pi) times the second L-moment, which is the standard deviation of a normal.
    ``skewness``: the L-skewness, 0 where symmetric, 1/3 for an exponential. ``tails``: L-kurtosis less that of a
    normal, 0.11 for a Laplace. ``valley``: depth of the deepest valley between two peaks of the density, relative to
    the highest peak.
    """

    location: Array
    spread: Array
    skewness: Array
    tails: Array
    valley: Array


def measure(cdf: Array) -> Shape:
    """Return the measures of distribution functions (m, 241) on SUPPORT; mass beyond it counts as lying at its ends."""
    spread = cdf * (1.0 - cdf)
    second = np.maximum(spread.sum(axis=1) * SPACING, 1e-12)
    third = (spread * (2.0 * cdf - 1.0)).sum(axis=1) * SPACING
    fourth = (spread * (5.0 * cdf * (cdf - 1.0) + 1.0)).sum(axis=1) * SPACING
    location = SUPPORT[-1] - 0.5 * SPACING * (cdf[:, :-1] + cdf[:, 1:]).sum(axis=1)
    return Shape(
        location=location,
        spread=second * np.sqrt(np.pi),
        skewness=third / second,
        tails=fourth / second - NORMAL_L_KURTOSIS,
        valley=deepest_valley(np.diff(cdf, axis=1)),
    )


def deepest_valley(density: Array) -> Array:
    """Return the depth of the deepest valley between two peaks of densities (m, k), relative to the highest, (m,)."""
    left = np.maximum.accumulate(density, axis=1)
    right = np.maximum.accumulate(density[:, ::-1], axis=1)[:, ::-1]
    return np.asarray((np.minimum(left, right) - density).max(axis=1) / np.maximum(density.max(axis=1), 1e-12))


def faults(shape: Shape) -> Array:
    """Return which of KINDS are beyond their tolerance, boolean (m, 9)."""
    return np.stack(
        [
            shape.location > BIAS_TOLERANCE,
            shape.location < -BIAS_TOLERANCE,
            shape.spread > SPREAD_TOLERANCE,
            shape.spread < 1.0 / SPREAD_TOLERANCE,
            shape.skewness > SKEWNESS_TOLERANCE,
            shape.skewness < -SKEWNESS_TOLERANCE,
            shape.tails < -TAILS_TOLERANCE,
            shape.tails > TAILS_TOLERANCE,
            shape.valley > VALLEY_TOLERANCE,
        ],
        axis=1,
    )


def is_calibrated(cdf: Array) -> Array:
    """Return whether distribution functions (m, 241) have no fault and are close to the predictive one, boolean (m,).

    The second condition is for shapes that have no name here: a 1-Wasserstein distance of at most a tenth of the
    predictive standard deviation.
    """
    close = wasserstein(cdf, ndtr(SUPPORT)) <= DISTANCE_TOLERANCE
    return np.asarray(close & ~faults(measure(cdf)).any(axis=1))


@dataclass(frozen=True)
class UnimodalityTest:
    """The likelihood ratio statistic against unimodal densities and its p-value."""

    statistic: float
    p_value: float

    @property
    def largest_probability(self) -> float:
        """The most that a second mode can be worth, at even odds before: 1 / (1 - e p log p), or 1/2 for p > 1/e.

        The bound of Sellke, Bayarri and Berger (2001) on the Bayes factor over all alternatives.
        """
        p = min(self.p_value, np.exp(-1.0))
        return float(1.0 / (1.0 - math.e * xlogy(p, p)))


def unimodality_test(counts: Array, *, seed: int) -> UnimodalityTest:
    """Test whether the distribution behind ``counts`` (28,) has one mode, by resamples of the best unimodal densities.

    Under inequality constraints the statistic is a mixture of chi-squares; its tail is read off the gamma distribution
    with the mean and the variance of 100 resamples.
    """
    inner = _inner(counts[None])
    rows = int(inner.sum())
    if rows == 0:
        return UnimodalityTest(0.0, 1.0)
    fitted = _best_unimodal(inner[0]) * WIDTHS
    statistic = float(_likelihood_ratio(inner)[0])
    drawn = stream(seed, "unimodal histograms").multinomial(rows, fitted / fitted.sum(), size=RESAMPLES)
    null = np.maximum(_likelihood_ratio(drawn), 0.0)
    mean, variance = float(null.mean()), float(null.var(ddof=1))
    if statistic <= 0.0 or variance <= 0.0:
        return UnimodalityTest(statistic, float((1 + np.count_nonzero(null >= statistic)) / (RESAMPLES + 1)))
    return UnimodalityTest(statistic, float(gammaincc(mean**2 / variance, statistic * mean / variance)))


def valley_depth(counts: Array) -> Array:
    """Return the depth of each histogram's (m, 28) deepest valley between bins, relative to its highest bin, (m,)."""
    return deepest_valley(_inner(counts) / WIDTHS)


def _inner(counts: Array) -> Array:
    merged = merge(counts).astype(np.float64)
    merged[:, 0] -= counts[:, 0]
    merged[:, -1] -= counts[:, -1]
    return merged


def _likelihood_ratio(counts: Array) -> Array:
    """Return twice the log-likelihood that the best unimodal densities lose, (m,), for counts (m, 20)."""
    rising = np.stack([_score(counts, WIDTHS, size) for size in range(len(WIDTHS) + 1)])
    falling = np.stack([_score(counts[:, ::-1], WIDTHS[::-1], size) for size in range(len(WIDTHS) + 1)])
    free = xlogy(counts, np.maximum(counts / WIDTHS, _TINY)).sum(axis=1)
    return np.asarray(2.0 * (free - (rising + falling[::-1]).max(axis=0)))


def _best_unimodal(counts: Array) -> Array:
    """Return the unimodal densities (20,) of largest likelihood for counts (20,)."""
    candidates = []
    for size in range(len(counts) + 1):
        rising = _rising(counts[None, :size], WIDTHS[:size])[0]
        falling = _rising(counts[None, size:][:, ::-1], WIDTHS[size:][::-1])[0, ::-1]
        candidates.append(np.concatenate([rising, falling]))
    return max(candidates, key=lambda density: float(xlogy(counts, np.maximum(density, _TINY)).sum()))


def _score(counts: Array, widths: Array, size: int) -> Array:
    """Return the log-likelihood of the first ``size`` bins under their best rising densities, (m,)."""
    density = _rising(counts[:, :size], widths[:size])
    return np.asarray(xlogy(counts[:, :size], np.maximum(density, _TINY)).sum(axis=1))


def _rising(counts: Array, widths: Array) -> Array:
    """Return the rising densities of largest likelihood, (m, k): max over starts, min over ends, of mean densities."""
    size = len(widths)
    if size == 0:
        return np.zeros((len(counts), 0))
    mass = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)
    reach = np.concatenate([[0.0], np.cumsum(widths)])
    within = np.tri(size, dtype=bool).T  # runs of bins that end where they start, or after
    length = np.where(within, reach[None, 1:] - reach[:-1, None], 1.0)
    mean = np.where(within, (mass[:, None, 1:] - mass[:, :-1, None]) / length, np.inf)
    least = np.minimum.accumulate(mean[:, :, ::-1], axis=2)[:, :, ::-1]
    return np.asarray(np.where(within, least, -np.inf).max(axis=1))
