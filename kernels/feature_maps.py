"""Finite features psi of an output kernel: k_Y(y, y') = psi(y).psi(y') to a stated tolerance on a stated range.

They turn the norm in the output RKHS into a Euclidean norm of r numbers (r = 15 to 60 for one RBF), so the error of a
model is a difference first and a norm second: no cancellation, and never the root of a negative number.

``FourierFeatures`` serve every sum of RBF kernels on scalar targets: the kernel's spectral integral by the trapezoid
rule, which converges faster than any power, so the expectation E psi(Y) of *any* family is its characteristic function
at fixed frequencies. ``NodeFeatures`` serve every other kernel, and vector targets: pivoted Cholesky on nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array
from congruence.kernels.errors import BudgetError
from congruence.kernels.functions import RBF, Kernel, Sum
from congruence.kernels.streams import stream

if TYPE_CHECKING:
    from congruence.kernels.distributions.base import Distribution

MAX_RANK = 1024
NODE_TOLERANCE = 1e-9  # kernels that are not smooth need thousands of nodes for the next three digits
MAX_FREQUENCIES = 1024
_GRID = 1024
_TAILS = (1e-9, 1e-6, 1e-4, 1e-3)


class FeatureMap(ABC):
    """psi: targets -> R^r. ``error`` bounds |k(y, y') - psi(y).psi(y')| on the range it was built for."""

    rank: int
    error: float

    @abstractmethod
    def __call__(self, y: Any) -> Array:
        """psi(y_i), shape (n, r) in float64."""

    @abstractmethod
    def expectation(self, distribution: Distribution) -> Array:
        """E psi(Y_i) for Y_i ~ distribution[i], shape (n, r) in float64."""


@dataclass(frozen=True)
class FourierFeatures(FeatureMap):
    """psi(y) = [a_j cos(w_j (y - c)), a_j sin(w_j (y - c))]_j P, for a sum of RBF kernels on an interval.

    ``projection`` P (2m, r) has orthonormal columns: it drops the directions that the kernel does not use on the
    interval, which leaves the numerical rank of the kernel there.
    """

    frequencies: Array
    amplitudes: Array
    center: float
    error: float
    projection: Array = field(repr=False)

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Number of features r."""
        return int(self.projection.shape[1])

    def __call__(self, y: Any) -> Array:
        """See FeatureMap."""
        phase = np.multiply.outer(np.asarray(y, dtype=np.float64) - self.center, self.frequencies)
        return self._project(np.cos(phase), np.sin(phase))

    def expectation(self, distribution: Distribution) -> Array:
        """See FeatureMap: E exp(iwY) is the family's characteristic function."""
        wave = distribution.characteristic_function(self.frequencies) * np.exp(-1j * self.frequencies * self.center)
        return self._project(wave.real, wave.imag)

    def _project(self, cosines: Array, sines: Array) -> Array:
        features = np.concatenate([cosines * self.amplitudes, sines * self.amplitudes], axis=-1)
        return np.asarray(features @ self.projection)


@dataclass(frozen=True)
class NodeFeatures(FeatureMap):
    """psi(y) = L^-1 k(T, y) with K_TT = L L' on nodes T (r,) or (r, q): exact wherever k(., y) lies in their span."""

    kernel: Kernel
    nodes: Array
    factor: Array = field(repr=False)
    error: float

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Number of features r."""
        return len(self.nodes)

    def __call__(self, y: Any) -> Array:
        """See FeatureMap."""
        return self._whiten(self.kernel(np.asarray(y, dtype=np.float64), self.nodes))

    def expectation(self, distribution: Distribution) -> Array:
        """See FeatureMap: E k(t_j, Y) by the family's closed form or quadrature."""
        return self._whiten(distribution.kernel_expectation(self.kernel, self.nodes))

    def _whiten(self, block: Array) -> Array:
        return np.asarray(scipy.linalg.solve_triangular(self.factor, block.T, lower=True).T)


def output_features(
    kernel: Kernel, y: Array, distribution: Distribution | None = None, *, tolerance: float = 1e-12
) -> FeatureMap:
    """Features of ``kernel`` that hold for the targets y and for what the model predicts.

    Args:
        kernel: the output kernel k_Y.
        y: targets, (n,) or (n, q), which fix the range together with the predictions.
        distribution: predictive distributions; the range covers all but 1e-9 of their mass per side, or, for tails so
            heavy that this would need too many features, all but up to 1e-3; ``error`` then includes that mass.
        tolerance: largest error of k_Y on the range, relative to its maximum.

    Raises:
        BudgetError: the kernel needs more than 2,048 features there (bandwidth far below the range of the targets).
    """
    if y.ndim == 2:
        return _vector_features(kernel, y, distribution, tolerance)
    gammas = _rbf_gammas(kernel)
    for tail in _TAILS:
        low, high = _range(y, distribution, tail)
        if gammas is None or _frequency_count(gammas, low, high, tolerance) <= MAX_FREQUENCIES:
            break
    else:
        raise BudgetError(
            f"the output kernel needs more than {2 * MAX_FREQUENCIES} features to cover targets and predictions from "
            f"{low:.6g} to {high:.6g}: its bandwidth is far below that range. Use a wider output kernel, or check the "
            "predictions for outliers"
        )
    missed = 2.0 * tail if distribution is not None and tail > _TAILS[0] else 0.0
    if gammas is not None:
        return _fourier_features(gammas, low, high, tolerance, missed)
    return _node_features(kernel, _candidates(y, distribution, low, high), max(tolerance, NODE_TOLERANCE))


def _range(y: Array, distribution: Distribution | None, tail: float) -> tuple[float, float]:
    low, high = float(np.min(y)), float(np.max(y))
    if distribution is not None:
        lower, upper = distribution.interval(tail)
        low, high = min(low, lower), max(high, upper)
    return low, high


def _rbf_gammas(kernel: Kernel) -> Array | None:
    parts = kernel.parts if isinstance(kernel, Sum) else (kernel,)
    if all(isinstance(part, RBF) for part in parts):
        return np.array([part.gamma for part in parts if isinstance(part, RBF)])
    return None


def _trapezoid_rule(gammas: Array, low: float, high: float, tolerance: float) -> tuple[float, float]:
    digits = np.log(4.0 / tolerance)
    reach = np.sqrt(digits / gammas.min())  # beyond it, the widest RBF has died out
    cutoff = np.sqrt(4.0 * gammas.max() * digits)  # beyond it, the spectrum of the narrowest one has
    step = 2.0 * np.pi / (high - low + reach)  # the rule makes k periodic: the images stay `reach` away
    return float(step), float(cutoff)


def _frequency_count(gammas: Array, low: float, high: float, tolerance: float) -> int:
    step, cutoff = _trapezoid_rule(gammas, low, high, tolerance)
    return int(np.ceil(cutoff / step)) + 1


def _fourier_features(gammas: Array, low: float, high: float, tolerance: float, missed: float) -> FourierFeatures:
    step, _ = _trapezoid_rule(gammas, low, high, tolerance)
    count = _frequency_count(gammas, low, high, tolerance)
    frequencies = step * np.arange(count)
    # Spectral density of exp(-gamma t^2), folded onto positive frequencies.
    density = np.sum(np.exp(-(frequencies[:, None] ** 2) / (4.0 * gammas)) / np.sqrt(4.0 * np.pi * gammas), axis=1)
    weights = 2.0 * step * density
    weights[0] /= 2.0
    whole = FourierFeatures(frequencies, np.sqrt(weights), (low + high) / 2, tolerance, np.eye(2 * count))
    return replace(whole, error=tolerance + missed, projection=_used_directions(whole, low, high))


def _used_directions(features: FourierFeatures, low: float, high: float) -> Array:
    grid = np.linspace(low, high, 4 * len(features.frequencies)) if high > low else np.array([low])
    values = features(grid)
    energy, directions = np.linalg.eigh(values.T @ values)
    # A dropped direction costs at most its energy in the kernel, summed over the grid.
    kept = energy > features.error / 10.0
    return np.ascontiguousarray(directions[:, kept][:, ::-1])


def _candidates(y: Array, distribution: Distribution | None, low: float, high: float) -> Array:
    if distribution is not None and distribution.is_discrete and high - low < MAX_RANK:
        return np.union1d(np.arange(np.floor(low), np.ceil(high) + 1), y)
    distinct = np.unique(y)
    grid = 0.5 * (low + high) - 0.5 * (high - low) * np.cos(np.pi * (np.arange(_GRID) + 0.5) / _GRID)
    return np.union1d(distinct if len(distinct) <= MAX_RANK else distinct[:: len(distinct) // MAX_RANK + 1], grid)


def _vector_features(kernel: Kernel, y: Array, distribution: Distribution | None, tolerance: float) -> NodeFeatures:
    candidates = y
    if distribution is not None:
        draws = distribution.sample(4, seed=stream(0, "feature range"))  # where a model predicts, features must see
        candidates = np.concatenate([y, draws.reshape(-1, y.shape[1])])
    rng = stream(0, "feature candidates")
    if len(candidates) > MAX_RANK:
        candidates = candidates[rng.choice(len(candidates), MAX_RANK, replace=False)]
    return _node_features(kernel, candidates, max(tolerance, NODE_TOLERANCE))


def _node_features(kernel: Kernel, candidates: Array, tolerance: float) -> NodeFeatures:
    """Diagonally pivoted Cholesky over the candidates until the largest residual of k is below the tolerance."""
    residual = np.asarray(kernel.diagonal(candidates), dtype=np.float64).copy()
    limit = max(tolerance, 1e-13) * residual.max()
    rows = np.empty((64, len(candidates)))
    pivots: list[int] = []
    while residual.max() > limit and len(pivots) < min(MAX_RANK, len(candidates)):
        pivot, rank = int(np.argmax(residual)), len(pivots)
        if rank == len(rows):
            rows = np.concatenate([rows, np.empty_like(rows)])
        row = np.asarray(kernel(candidates[pivot : pivot + 1], candidates), dtype=np.float64)[0]
        row -= rows[:rank, pivot] @ rows[:rank]
        rows[rank] = row / np.sqrt(residual[pivot])
        residual = np.maximum(residual - rows[rank] ** 2, 0.0)
        residual[pivot] = 0.0
        pivots.append(pivot)
    factor = np.tril(rows[: len(pivots), pivots].T)
    features = NodeFeatures(kernel, candidates[pivots], factor, float(residual.max()))
    return replace(features, error=_error_between(features, candidates))


def _error_between(features: NodeFeatures, candidates: Array) -> float:
    """Largest k(t, t) - |psi(t)|^2 at the candidates and, for scalars, halfway between: models predict there too."""
    if candidates.ndim == 1 and len(candidates) > 1:
        middle = (candidates[1:] + candidates[:-1]) / 2
        missed = features.kernel.diagonal(middle) - np.sum(features(middle) ** 2, axis=1)
        return float(max(features.error, missed.max(), 0.0))
    return features.error
