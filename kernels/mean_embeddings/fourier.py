"""Fourier features of sums of RBF kernels on scalar targets: the spectral integral by the trapezoid rule.

The rule converges faster than any power, and the expectation E psi(Y) of *any* family is its characteristic function at
fixed frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.location import mass_outside, moved
from congruence.kernels.distributions.waves import waves
from congruence.kernels.kernel_functions import RBF, Kernel
from congruence.kernels.mean_embeddings.base import EmbeddedErrors, FeatureError, FeatureMap
from congruence.kernels.mean_embeddings.gram import lower_factor
from congruence.kernels.streams import stream

_LANDMARKS = 768
_MORE_LANDMARKS = 256
_ROUNDS = 4
_CHUNK_ENTRIES = 4_000_000
_COVERED = 1e-10


@dataclass(frozen=True)
class FourierFeatures(FeatureMap):
    """psi(y) = [a_j cos(w_j (y - c)), a_j sin(w_j (y - c))]_j P, for a sum of RBF kernels on [low, high].

    ``projection`` P (2m, r) has orthonormal columns: it drops the directions that the kernel does not use on the
    interval, which leaves the numerical rank of the kernel there. None keeps all.
    """

    frequencies: Array
    amplitudes: Array
    low: float
    high: float
    error: float
    projection: Array | None = field(default=None, repr=False)

    @property
    def rank(self) -> int:
        return 2 * len(self.frequencies) if self.projection is None else int(self.projection.shape[1])

    @property
    def center(self) -> float:
        """c, the middle of the interval."""
        return (self.low + self.high) / 2

    def __call__(self, y: Any) -> Array:
        wave = waves(np.asarray(y, dtype=np.float64) - self.center, self.frequencies)
        return self._project(wave.real, wave.imag)

    def expectation(self, distribution: Distribution) -> Array:
        """See FeatureMap: E exp(iwY) is the family's characteristic function."""
        law = moved(distribution, -self.center)
        if law is None:
            turn = np.exp(-1j * self.frequencies * self.center)
            wave = distribution.characteristic_function(self.frequencies) * turn
        else:
            wave = law.characteristic_function(self.frequencies)
        return self._project(wave.real, wave.imag)

    def missed(self, y: Array, distribution: Distribution) -> FeatureError:
        """See FeatureMap.

        With k_Y off by at most e on the range, and a mass p_i outside, where it is off by at most its maximum k,
        |H_ij - Delta_i.Delta_j| <= 4 e + 2 k (p_i + p_j).
        """
        outside = mass_outside(distribution, self.low, self.high) + ((y < self.low) | (y > self.high))
        outside = np.where(outside < 1e-15, 0.0, outside)
        error = self.error
        if moved(distribution[:1], 0.0) is None:
            # exp(i w Y) and exp(-i w c) are rounded on their own, in phases far from the origin.
            error += 2.0 * np.finfo(np.float64).eps * float(self.frequencies[-1]) * max(abs(self.low), abs(self.high))
        maximum = float(np.sum(self.amplitudes**2))
        shared = 4.0 * maximum * float(np.sqrt(len(y) * np.sum(outside**2)))
        return FeatureError(np.full(len(y), 4.0 * error), shared)

    def _project(self, cosines: Array, sines: Array) -> Array:
        features = np.concatenate([cosines * self.amplitudes, sines * self.amplitudes], axis=-1)
        return features if self.projection is None else np.asarray(features @ self.projection)


def rbf_gammas(kernel: Kernel) -> Array | None:
    """The gammas of an RBF kernel or a sum of them; None for other kernels."""
    gammas = [term.gamma for term in kernel.terms if isinstance(term, RBF)]
    return np.array(gammas) if len(gammas) == len(kernel.terms) else None


def frequency_count(gammas: Array, low: float, high: float, tolerance: float) -> int:
    """How many frequencies the rule needs on [low, high]."""
    step, cutoff = _trapezoid_rule(gammas, low, high, tolerance)
    return int(min(np.ceil(cutoff / step) + 1, 2**31))


def fourier_features(gammas: Array, low: float, high: float, tolerance: float) -> FourierFeatures:
    """Features on [low, high] in the directions that the kernel uses there."""
    whole = all_frequencies(gammas, low, high, tolerance)
    grid = np.linspace(low, high, 4 * len(whole.frequencies)) if high > low else np.array([low])
    # The least directions hang on the last digits: sines and cosines, not products of them.
    phase = np.multiply.outer(grid - whole.center, whole.frequencies)
    values = whole._project(np.cos(phase), np.sin(phase))
    energy, directions = np.linalg.eigh(values.T @ values)
    # A dropped direction costs at most its energy in the kernel, summed over the grid.
    kept = energy > tolerance / 10.0
    dropped = float(np.sum(np.maximum(energy[~kept], 0.0)))
    return replace(whole, error=tolerance + dropped, projection=np.ascontiguousarray(directions[:, kept][:, ::-1]))


def all_frequencies(gammas: Array, low: float, high: float, tolerance: float) -> FourierFeatures:
    """Features on [low, high], two for each frequency."""
    step, _ = _trapezoid_rule(gammas, low, high, tolerance)
    frequencies = step * np.arange(frequency_count(gammas, low, high, tolerance))
    # Spectral density of exp(-gamma t^2), folded onto positive frequencies.
    density = np.sum(np.exp(-(frequencies[:, None] ** 2) / (4.0 * gammas)) / np.sqrt(4.0 * np.pi * gammas), axis=1)
    weights = 2.0 * step * density
    weights[0] /= 2.0
    return FourierFeatures(frequencies, np.sqrt(weights), low, high, tolerance * len(gammas))


def _trapezoid_rule(gammas: Array, low: float, high: float, tolerance: float) -> tuple[float, float]:
    digits = np.log(4.0 / tolerance)
    reach = np.sqrt(digits / gammas.min())  # beyond it, the widest RBF has died out
    cutoff = np.sqrt(4.0 * gammas.max() * digits)  # beyond it, the spectrum of the narrowest one has
    step = 2.0 * np.pi / (high - low + reach)  # the rule makes k periodic: the images stay `reach` away
    return float(step), float(cutoff)


def projected_errors(y: Array, predictive: Distribution, features: FourierFeatures) -> EmbeddedErrors:
    """Coordinates of the errors on the span of some of them, for intervals on which thousands of features are needed.

    A prediction far from all others needs one direction of its own, not the hundreds of its interval. Rows that the
    span misses by more than 1e-10 join it, the worst first, for a few rounds; what is then missed is stated exactly.
    """
    n = len(y)
    rng = stream(0, "projected waves")
    landmarks = np.sort(rng.choice(n, min(n, _LANDMARKS), replace=False))
    for _ in range(_ROUNDS):
        basis = _span(features(y[landmarks]) - features.expectation(predictive[landmarks]))
        delta, squared_means, missed = np.empty((n, basis.shape[1])), np.empty(n), np.empty(n)
        for rows in row_slices(n, _CHUNK_ENTRIES // features.rank):
            mean = features.expectation(predictive[rows])
            whole = features(y[rows]) - mean
            delta[rows] = whole @ basis
            squared_means[rows] = np.einsum("ij,ij->i", mean, mean)
            missed[rows] = np.einsum("ij,ij->i", whole, whole) - np.einsum("ij,ij->i", delta[rows], delta[rows])
        worst = np.argsort(missed)[-_MORE_LANDMARKS:]
        worst = worst[missed[worst] > _COVERED * float(np.sum(features.amplitudes**2))]
        if len(worst) == 0:
            break
        landmarks = np.union1d(landmarks, worst)
    of_features = features.missed(y, predictive)
    return EmbeddedErrors(
        delta, squared_means, FeatureError(np.maximum(missed, 0.0) + of_features.rows, of_features.shared)
    )


def _span(errors: Array) -> Array:
    """An orthonormal basis (c, r) of the rows of ``errors`` (L, c)."""
    factor = lower_factor(errors @ errors.T)
    return np.asarray(scipy.linalg.qr(errors[factor.pivots].T, mode="economic")[0])
