"""How a data-generating distribution differs from the standard normal predictive one: five measures, with tolerances.

Location, spread, skewness and tails are L-moments (Hosking, 1990): integrals of the distribution function, so they move
no faster than the 1-Wasserstein distance in which the interpreter is trained, where ordinary moments hang on tails that
a histogram does not show.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from congruence.kernels.arrays import Array
from congruence.kernels.pit_interpreter.mixtures import SPACING, SUPPORT, wasserstein

NORMAL_L_KURTOSIS = 0.12260171954089


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
    """The measures of distribution functions (m, 241) on SUPPORT; mass beyond it counts as lying at its ends."""
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
    """Depth of the deepest valley between two peaks of densities (m, k), relative to the highest peak, (m,)."""
    left = np.maximum.accumulate(density, axis=1)
    right = np.maximum.accumulate(density[:, ::-1], axis=1)[:, ::-1]
    return np.asarray((np.minimum(left, right) - density).max(axis=1) / np.maximum(density.max(axis=1), 1e-12))


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


def faults(shape: Shape) -> Array:
    """Which of KINDS are beyond their tolerance, boolean (m, 9)."""
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
    """Whether distribution functions (m, 241) have no fault and are close to the predictive one, boolean (m,).

    The second condition is for shapes that have no name here: a 1-Wasserstein distance of at most a tenth of the
    predictive standard deviation.
    """
    close = wasserstein(cdf, ndtr(SUPPORT)) <= DISTANCE_TOLERANCE
    return np.asarray(close & ~faults(measure(cdf)).any(axis=1))
