"""Normal mixtures as the data-generating distributions behind a PIT histogram, measured and tested for their modes.

PIT values are counted in the twenty bins that people look at, with the two outer ones split for the tails. Mixtures are
refined by expectation-maximisation towards the counts themselves.

How such a distribution differs from the standard normal predictive one is said by location, spread, skewness and
tails. They are L-moments (Hosking, 1990): integrals of the distribution function, so they move
no faster than the 1-Wasserstein distance in which the interpreter is trained, where ordinary moments hang on tails that
a histogram does not show.

A second mode is tested by the histogram itself: mixtures of normals draw ripples on a flat distribution, and a network
that was not shown one reads two modes into it. The mean densities of a unimodal distribution over consecutive bins are
unimodal, so the likelihood ratio of the counts against the best unimodal densities sees a valley, and nothing else.

The network, in NumPy, goes from bin counts to a mixture of five normals and the probabilities of faults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np
from safetensors.numpy import load
from scipy.special import expit, gammaincc, ndtr, ndtri, softmax, xlogy

from congruence.kernels.arrays import Array
from congruence.kernels.rng import stream

HISTOGRAM_BINS = 20

# The outer bins hold everything beyond 1.64 predictive standard deviations. Split at these levels they tell a heavy
# tail from a wide distribution; beyond 1e-4 even a million values leave too few counts to read.
TAIL_LEVELS = (1e-4, 1e-3, 1e-2, 2.5e-2)

_tails = np.asarray(TAIL_LEVELS)
_middle_edges = np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1)[1:-1]

EDGES: Array = np.concatenate([[0.0], _tails, _middle_edges, 1.0 - _tails[::-1], [1.0]])
"""Edges of the counted bins, from 0 to 1, shape (29,)."""

NORMAL_EDGES: Array = ndtri(EDGES[1:-1])
"""The inner edges on the scale of the standard normal predictive distribution, shape (27,)."""

_STARTS = np.concatenate([[0], np.arange(len(_tails) + 1, len(_tails) + HISTOGRAM_BINS)])

SUPPORT: Array = np.linspace(-6.0, 6.0, 241)
"""Where distribution functions are compared, in predictive standard deviations: PIT values say nothing further out."""

SPACING = float(SUPPORT[1] - SUPPORT[0])

STEPS = 20
PRIOR_ROWS = 1000.0
"""How many outcomes the network's estimate is worth: chosen on held-out histograms of all sample sizes. With 100
outcomes the estimate stays what it was; with 10^6 the amortised network alone has four times the error.
"""

_FAR = 40.0
_SMALLEST_MASS = 1e-12
_SMALLEST_SCALE = 0.02


def count(values: Array) -> Array:
    """Return the counts of PIT ``values`` between EDGES, shape (28,)."""
    return np.histogram(values, bins=EDGES)[0]


def merge(counts: Array) -> Array:
    """Return counts or probabilities (..., 28) between EDGES, summed into the twenty equal bins (..., 20)."""
    return np.asarray(np.add.reduceat(counts, _STARTS, axis=-1))


def histogram(counts: Array) -> Array:
    """Return the histogram (..., 20) of ``counts`` (..., 28), scaled so that the area under it is one."""
    merged = merge(counts)
    return np.asarray(merged * (HISTOGRAM_BINS / merged.sum(axis=-1, keepdims=True)))


def mixture_cdf(weights: Array, means: Array, scales: Array, at: Array) -> Array:
    """Return the distribution functions of mixtures with parameters (m, K) at the points ``at`` (p,), (m, p)."""
    total = np.zeros((len(weights), len(at)))
    for weight, mean, scale in zip(weights.T, means.T, scales.T, strict=True):
        total += weight[:, None] * ndtr((at - mean[:, None]) / scale[:, None])
    return total


def mixture_density(weights: Array, means: Array, scales: Array, at: Array) -> Array:
    """Return the densities of mixtures with parameters (m, K) at the points ``at`` (p,), (m, p)."""
    total = np.zeros((len(weights), len(at)))
    for weight, mean, scale in zip(weights.T, means.T, scales.T, strict=True):
        z = (at - mean[:, None]) / scale[:, None]
        total += (weight / scale)[:, None] * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return total


def wasserstein(cdf: Array, other: Array) -> Array:
    """Return the 1-Wasserstein distance of distribution functions (..., 241) on SUPPORT."""
    return np.asarray(np.abs(cdf - other).sum(axis=-1) * SPACING)


def refine(counts: Array, weights: Array, means: Array, scales: Array) -> tuple[Array, Array, Array]:
    """Return the weights, means and scales of mixtures (m, K) moved towards the likelihood of ``counts`` (m, 28).

    Maximises the grouped-data likelihood (McLachlan and Jones, 1988) of the counts together with PRIOR_ROWS
    pseudo-counts in the proportions of the mixture that was given.
    """
    edges = np.concatenate([[-np.inf], NORMAL_EDGES, [np.inf]])
    given = _moments(edges, means, scales)[0]
    prior = (weights[:, :, None] * given).sum(axis=1)
    shares = (counts + PRIOR_ROWS * prior) / (counts.sum(axis=1, keepdims=True) + PRIOR_ROWS)
    for _ in range(STEPS):
        mass, first, second = _moments(edges, means, scales)
        total = (weights[:, :, None] * mass).sum(axis=1)
        # Where no component reaches a bin its moments are rounding errors: its counts then pull at nothing.
        reached = np.where(total > _SMALLEST_MASS, shares / np.maximum(total, _SMALLEST_MASS), 0.0)
        responsibility = reached[:, None, :] * weights[:, :, None]
        size = (responsibility * mass).sum(axis=2) + _SMALLEST_MASS
        shift = (responsibility * first).sum(axis=2) / size
        variance = (responsibility * second).sum(axis=2) / size - shift**2
        weights = size / size.sum(axis=1, keepdims=True)
        means = means + scales * shift
        scales = np.maximum(scales * np.sqrt(np.maximum(variance, 0.0)), _SMALLEST_SCALE)
    return weights, means, scales


def _moments(edges: Array, means: Array, scales: Array) -> tuple[Array, Array, Array]:
    """Return integrals of 1, z and z^2 over each bin under each component, in its own units, each (m, K, bins)."""
    z = np.clip((edges - means[:, :, None]) / scales[:, :, None], -_FAR, _FAR)
    height = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    mass = np.diff(ndtr(z), axis=2)
    return mass, -np.diff(height, axis=2), mass - np.diff(z * height, axis=2)


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


SMALLEST_ROWS, LARGEST_ROWS = 30, 1_000_000
"""Between which the sample sizes lie that the network was trained on."""

COMPONENTS = 5
FEATURES = len(EDGES) - 2 + HISTOGRAM_BINS + 1
OUTPUTS = 3 * COMPONENTS + len(KINDS) + 1
LOG_SCALE_LIMITS = (-3.5, 2.0)
MEAN_LIMIT = 8.0


@dataclass(frozen=True)
class Decomposition:
    """Estimates for m histograms: mixture parameters (m, 5), fault probabilities (m, 9), P(calibrated) (m,)."""

    weights: Array
    means: Array
    scales: Array
    faults: Array
    calibrated: Array


def features(counts: Array) -> Array:
    """Return what the network sees of ``counts`` (m, 28), shape (m, 48).

    The estimated data-generating distribution on the normal scale at every edge, probit(G(z_k)) - z_k, which is zero
    where calibrated and linear in z for a wrong mean and variance; the roots of the twenty densities, whose noise is
    the same in every bin; and the sample size, so that noise is not read as shape.
    """
    rows = counts.sum(axis=1, keepdims=True)
    cumulative = (np.cumsum(counts, axis=1)[:, :-1] + 0.5) / (rows + 1.0)
    roots = np.sqrt(merge(counts) * (HISTOGRAM_BINS / rows)) - 1.0
    size = np.log10(np.clip(rows, SMALLEST_ROWS, LARGEST_ROWS)) / 3.0 - 1.0
    return np.concatenate([ndtri(cumulative) - NORMAL_EDGES, roots, size], axis=1)


@lru_cache(maxsize=1)
def weights() -> dict[str, Array]:
    """Return the trained weights that ship with the package (float32, by layer)."""
    return load(resources.files(__package__).joinpath("weights.safetensors").read_bytes())


def decompose(counts: Array, parameters: dict[str, Array] | None = None) -> Decomposition:
    """Return the network's estimates for ``counts`` (m, 28), with ``parameters`` or the shipped weights."""
    layers = weights() if parameters is None else parameters
    hidden = np.tanh(features(counts) @ layers["hidden_1.weight"].T + layers["hidden_1.bias"])
    hidden = np.tanh(hidden @ layers["hidden_2.weight"].T + layers["hidden_2.bias"])
    raw = (hidden @ layers["output.weight"].T + layers["output.bias"]).astype(np.float64)
    logits, means, log_scales, faults = np.split(raw, [COMPONENTS, 2 * COMPONENTS, 3 * COMPONENTS], axis=1)
    probabilities = expit(faults)
    return Decomposition(
        weights=softmax(logits, axis=1),
        means=np.clip(means, -MEAN_LIMIT, MEAN_LIMIT),
        scales=np.exp(np.clip(log_scales, *LOG_SCALE_LIMITS)),
        faults=probabilities[:, :-1],
        calibrated=probabilities[:, -1],
    )
