"""Finite features psi of an output kernel: k_Y(y, y') = psi(y).psi(y') to a stated tolerance on a stated range.

They turn the norm in the output RKHS into a Euclidean norm of r numbers (r = 15 to 60 for one RBF), so the error of a
model is a difference first and a norm second: no cancellation, and never the root of a negative number. They serve any
target and any law on their range; ``mean_embeddings`` has coordinates for given targets and laws alone, which are exact
where features would be too many.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.errors import BudgetError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.base import FeatureMap
from congruence.kernels.mean_embeddings.counted import MOST_COUNTS, CountFeatures, count_features
from congruence.kernels.mean_embeddings.fourier import FourierFeatures, fourier_features, frequency_count, rbf_gammas
from congruence.kernels.mean_embeddings.monomials import MonomialFeatures, StackedFeatures, without_polynomials
from congruence.kernels.mean_embeddings.nodes import MAX_RANK, NodeFeatures, node_features
from congruence.kernels.streams import stream

__all__ = ["CountFeatures", "FeatureMap", "FourierFeatures", "NodeFeatures", "output_features"]

NODE_TOLERANCE = 1e-9  # kernels that are not smooth need thousands of nodes for the next three digits
MAX_FREQUENCIES = 1024
SMALLEST_TAIL = 1e-12
TAILS = (1e-9, 1e-6, 1e-4, 1e-3)
SHORT = 256  # frequencies that cost next to nothing
_GRID = 1024
_CANDIDATES = 4096
_CHECKED = 4096


def output_features(
    kernel: Kernel, y: Array, distribution: Distribution | None = None, *, tolerance: float = 1e-12
) -> FeatureMap:
    """Features of ``kernel`` that hold for the targets y and for what the model predicts.

    Args:
        kernel: the output kernel k_Y.
        y: targets, (n,) or (n, q), which fix the range together with the predictions.
        distribution: predictive distributions; the range covers all but 1e-12 or 1e-9 of their mass per side, or for
            tails so heavy that this would need too many features, all but up to 1e-3, or else what 1,024 frequencies
            hold around the targets. ``FeatureMap.missed`` counts the mass outside.
        tolerance: largest error of k_Y on the range.

    Raises:
        BudgetError: the kernel needs more than 2,048 features on the range of the targets alone (bandwidth far below).
    """
    if y.ndim == 2:
        return _vector_features(kernel, y, distribution, tolerance)
    rest, polynomials = without_polynomials(kernel)
    if polynomials:
        monomials = MonomialFeatures.of(polynomials, y)
        if rest is None:
            return monomials
        return StackedFeatures(output_features(rest, y, distribution, tolerance=tolerance), monomials)
    gammas = rbf_gammas(kernel)
    if gammas is None:
        if (counts := few_counts(y, distribution)) is not None and kernel.is_stationary:
            return count_features(kernel, *counts, tolerance)
        low, high = target_range(y, distribution, TAILS[0])
        return node_features(kernel, _candidates(y, distribution, low, high), max(tolerance, NODE_TOLERANCE))
    counts = few_counts(y, distribution)
    if counts is not None:
        return count_features(kernel, *counts, tolerance)
    low, high = _fourier_range(gammas, y, distribution, tolerance)
    return fourier_features(gammas, low, high, tolerance)


def target_range(y: Array, distribution: Distribution | None, tail: float) -> tuple[float, float]:
    """An interval that holds the targets and all but ``tail`` of the mass of every prediction on each side."""
    low, high = float(np.min(y)), float(np.max(y))
    if distribution is not None:
        lower, upper = distribution.interval(tail)
        low, high = min(low, lower), max(high, upper)
    return low, high


def few_counts(y: Array, distribution: Distribution | None) -> tuple[float, float] | None:
    """The least and largest count of targets and laws that are whole numbers, where these are few; else None."""
    if distribution is None or not distribution.is_discrete or np.any(y != np.floor(y)):
        return None
    for tail in (SMALLEST_TAIL, TAILS[0]):
        low, high = target_range(y, distribution, tail)
        if high - low < MOST_COUNTS:
            return float(np.floor(low)), float(np.ceil(high))
    return None


def _fourier_range(gammas: Array, y: Array, distribution: Distribution | None, tolerance: float) -> tuple[float, float]:
    for tail, most in ((SMALLEST_TAIL, SHORT), *((tail, MAX_FREQUENCIES) for tail in TAILS)):
        low, high = target_range(y, distribution, tail)
        if frequency_count(gammas, low, high, tolerance) <= most:
            return low, high
    inner, outer = target_range(y, None, 0.0), (low, high)
    if frequency_count(gammas, *inner, tolerance) > MAX_FREQUENCIES:
        raise BudgetError(
            f"the output kernel needs more than {2 * MAX_FREQUENCIES} features to cover targets from {inner[0]:.6g} to "
            f"{inner[1]:.6g}: its bandwidth is far below that range. Use a wider output kernel, or check the targets "
            "for outliers"
        )
    share = 1.0
    while frequency_count(gammas, low, high, tolerance) > MAX_FREQUENCIES:
        share *= 0.7
        low, high = inner[0] - share * (inner[0] - outer[0]), inner[1] + share * (outer[1] - inner[1])
    return low, high


def _candidates(y: Array, distribution: Distribution | None, low: float, high: float) -> Array:
    if distribution is not None and distribution.is_discrete and high - low < MAX_RANK:
        return np.union1d(np.arange(np.floor(low), np.ceil(high) + 1), y)
    distinct = np.unique(y)
    grid = 0.5 * (low + high) - 0.5 * (high - low) * np.cos(np.pi * (np.arange(_GRID) + 0.5) / _GRID)
    return np.union1d(distinct if len(distinct) <= MAX_RANK else distinct[:: len(distinct) // MAX_RANK + 1], grid)


def _vector_features(kernel: Kernel, y: Array, distribution: Distribution | None, tolerance: float) -> NodeFeatures:
    rng = stream(0, "feature candidates")
    seen = [y[rng.choice(len(y), min(len(y), _CHECKED), replace=False)]]
    if distribution is not None:
        rows = rng.choice(len(distribution), min(len(distribution), _CHECKED), replace=False)
        # Where a model predicts, features must see.
        seen.append(distribution[rows].sample(4, seed=stream(0, "feature range")).reshape(-1, y.shape[1]))
    candidates = np.concatenate(seen)
    if len(candidates) > _CANDIDATES:
        candidates = candidates[rng.choice(len(candidates), _CANDIDATES, replace=False)]
    features = node_features(kernel, candidates, max(tolerance, NODE_TOLERANCE))
    # What was interpolated says nothing of the rest: the error is read where the nodes had no say.
    fresh = [y]
    if distribution is not None:
        fresh.append(distribution[rows].sample(2, seed=stream(0, "fresh draws")).reshape(-1, y.shape[1]))
    return replace(features, error=max(features.error, *(float(np.max(features.power(points))) for points in fresh)))
