"""Do the outcomes gather at more than one place? A test of the histogram itself, whatever a mixture makes of it.

Mixtures of normals draw ripples on a flat law, and a network that was not shown one reads two modes into it. The mean
densities of a unimodal law over consecutive bins are unimodal, so the likelihood ratio of the bin counts against the
best unimodal densities sees a valley, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincc, ndtri, xlogy

from congruence.kernels.arrays import Array
from congruence.kernels.pit_interpreter.bins import HISTOGRAM_BINS, TAIL_LEVELS, merge
from congruence.kernels.pit_interpreter.shape import deepest_valley
from congruence.kernels.streams import stream

# Densities need bins of finite width: what lies beyond the outermost levels is left out.
_LEVELS = np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1)
_LEVELS[0], _LEVELS[-1] = TAIL_LEVELS[0], 1.0 - TAIL_LEVELS[0]
WIDTHS: Array = np.diff(ndtri(_LEVELS))
RESAMPLES = 100
_TINY = 1e-300


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
    """Whether the law behind bin ``counts`` (28,) has one mode, by resamples of the best unimodal densities.

    Of a statistic under inequality constraints, the law is a mixture of chi-squares; its tail is read off the gamma law
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
    """Depth of the deepest valley between two bins of each histogram (m, 28), relative to the highest bin, (m,)."""
    return deepest_valley(_inner(counts) / WIDTHS)


def _inner(counts: Array) -> Array:
    merged = merge(counts).astype(np.float64)
    merged[:, 0] -= counts[:, 0]
    merged[:, -1] -= counts[:, -1]
    return merged


def _likelihood_ratio(counts: Array) -> Array:
    """Twice the log-likelihood that the best unimodal densities lose, (m,), for counts (m, 20)."""
    rising = np.stack([_score(counts, WIDTHS, size) for size in range(len(WIDTHS) + 1)])
    falling = np.stack([_score(counts[:, ::-1], WIDTHS[::-1], size) for size in range(len(WIDTHS) + 1)])
    free = xlogy(counts, np.maximum(counts / WIDTHS, _TINY)).sum(axis=1)
    return np.asarray(2.0 * (free - (rising + falling[::-1]).max(axis=0)))


def _best_unimodal(counts: Array) -> Array:
    """The unimodal densities (20,) of largest likelihood for counts (20,): rising up to some bin, falling from it."""
    candidates = []
    for size in range(len(counts) + 1):
        rising = _rising(counts[None, :size], WIDTHS[:size])[0]
        falling = _rising(counts[None, size:][:, ::-1], WIDTHS[size:][::-1])[0, ::-1]
        candidates.append(np.concatenate([rising, falling]))
    return max(candidates, key=lambda density: float(xlogy(counts, np.maximum(density, _TINY)).sum()))


def _score(counts: Array, widths: Array, size: int) -> Array:
    """Log-likelihood of the first ``size`` bins under their best rising densities, (m,)."""
    density = _rising(counts[:, :size], widths[:size])
    return np.asarray(xlogy(counts[:, :size], np.maximum(density, _TINY)).sum(axis=1))


def _rising(counts: Array, widths: Array) -> Array:
    """Rising densities of largest likelihood for counts (m, k): max over starts, min over ends, of mean densities."""
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
