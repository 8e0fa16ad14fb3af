"""Finite features psi of an output kernel: k_Y(y, y') = psi(y).psi(y') to a stated tolerance on a stated range.

They turn the norm in the output RKHS into a Euclidean norm of r numbers (r = 15 to 60 for one RBF), so the error of a
model is a difference first and a norm second: no cancellation, and never the root of a negative number.

* Stationary kernels of one target: the spectral integral by the trapezoid rule. E psi(Y) of *any* family is its
  characteristic function at fixed frequencies. RBF kernels need few of them; Matern and Laplacian kernels have slow
  spectra, and are met to 1e-8 to 1e-2, as far as 1,024 frequencies go.
* The same between whole numbers: a table, and E psi(Y) is a sum of masses.
* Polynomials of one target: monomials, and E psi(Y) are moments (``engine.targets``).
* Vector targets, and kernels of another shape: nodes, by a pivoted Cholesky. Errors of few vectors are exact, see
  ``finite_features``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from congruence.kernels.arrays import Array, waves
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.errors import BudgetError
from congruence.kernels.kernel_functions import RBF, Kernel, Laplacian, Matern

TOLERANCE = 1e-12
# Tolerances that kernels with a slow spectrum are met to, with the tails that are left out: what is short goes first.
ROUGH_SHORT = ((1e-8, 1e-9), (1e-6, 1e-6), (1e-5, 1e-6), (1e-4, 1e-4))
ROUGH = ((1e-4, 1e-4), (1e-3, 1e-3), (3e-3, 1e-3), (1e-2, 1e-3), (3e-2, 1e-3))
MAX_FREQUENCIES = 1024
SHORT = 256  # frequencies that cost next to nothing
SMALLEST_TAIL = 1e-12
TAILS = (1e-9, 1e-6, 1e-4, 1e-3)


@dataclass(frozen=True)
class Missed:
    """What features leave out of the errors D_i = k_Y(y_i, .) - E k_Y(Y_i, .) of some rows.

    The products <D_i, D_j> are off by at most sqrt(rows_i rows_j) + sqrt(outside_i) + sqrt(outside_j).

    Attributes:
        rows: of each row's squared norm, (n,).
        outside: the square of what lies outside of the features' range, (n,).
    """

    rows: Array = field(repr=False)
    outside: Array = field(repr=False)

    def weighted(self, squares: Array) -> Missed:
        """Returns what is missed of rows that count with weights ``squares``, (n,)."""
        return Missed(squares * self.rows, squares**2 * self.outside)

    def plus(self, other: Missed) -> Missed:
        """Returns what is missed where two kernels' features stand side by side."""
        return Missed(self.rows + other.rows, (np.sqrt(self.outside) + np.sqrt(other.outside)) ** 2)


class FeatureMap(ABC):
    """psi: targets -> R^r. ``error`` bounds |k(y, y') - psi(y).psi(y')| on the range it was built for."""

    error: float
    is_sampled: ClassVar[bool] = False
    """Whether what is missed is read off draws rather than bounded."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Number of features r."""

    @abstractmethod
    def __call__(self, y: Any) -> Array:
        """Returns psi(y_i), (n, r), in float64."""

    def along(self, y: Any, directions: Array) -> Array:
        """Returns psi(y_i) in the ``directions`` (r, d): (n, d), in float64."""
        return np.asarray(self(y) @ directions)

    def on_grid(self, low: float, step: float, count: int, directions: Array) -> Array:
        """Returns psi at low + j step, j < ``count``, in the ``directions`` (r, d): (count, d), in float64."""
        return self.along(low + step * np.arange(count), directions)

    @abstractmethod
    def expectation(self, distribution: Distribution) -> Array:
        """Returns E psi(Y_i) for Y_i ~ distribution[i], (n, r), in float64."""

    def squared_means(self, distribution: Distribution, means: Array) -> Array:  # noqa: ARG002
        """Returns |E k_Y(Y_i, .)|^2, (n,), where ``means`` (n, r) are E psi(Y_i)."""
        return np.asarray(np.einsum("ij,ij->i", means, means))

    @abstractmethod
    def missed(self, y: Array, distribution: Distribution) -> Missed:
        """Returns what psi(y_i) - E psi(Y_i) leaves out of the errors of targets y (n,) or (n, q)."""

    @property
    def range(self) -> tuple[float, float]:
        """The interval of targets that the features were built for; everything where they have none."""
        return -np.inf, np.inf


def target_range(y: Array, distribution: Distribution | None, tail: float) -> tuple[float, float]:
    """Returns an interval with the targets and all but ``tail`` of the mass of every prediction on each side."""
    low, high = float(np.min(y)), float(np.max(y))
    if distribution is not None:
        lower, upper = distribution.interval(tail)
        low, high = min(low, lower), max(high, upper)
    return low, high


def rbf_gammas(kernel: Kernel) -> Array | None:
    """Returns the gammas of an RBF kernel or a sum of them; None for other kernels."""
    gammas = [term.gamma for term in kernel.terms if isinstance(term, RBF)]
    return np.array(gammas) if len(gammas) == len(kernel.terms) else None


class Density(NamedTuple):
    """The spectral density of a stationary kernel of one target: of an RBF, or of Matern 1/2, 3/2, 5/2.

    Attributes:
        scale: gamma of an RBF; the rate a of exp(-a r) times a polynomial of a r.
        nu: the Matern smoothness; infinite for an RBF.
    """

    scale: float
    nu: float

    @classmethod
    def of(cls, term: Kernel) -> Density | None:
        """Returns that of a kernel that is no sum; None where it has none that is known."""
        if isinstance(term, RBF):
            return cls(term.gamma, math.inf)
        if isinstance(term, Laplacian):
            return cls(term.gamma, 0.5)
        if isinstance(term, Matern):
            return cls(math.sqrt(2.0 * term.nu) / term.length_scale, term.nu)
        return None

    @property
    def is_rough(self) -> bool:
        """Whether it falls as a power of the frequency."""
        return math.isfinite(self.nu)

    @property
    def _constant(self) -> float:
        return math.gamma(self.nu + 0.5) / (math.sqrt(math.pi) * math.gamma(self.nu))

    def at(self, frequencies: Array) -> Array:
        """Returns the density at frequencies (m,), of total mass 1 over the line."""
        if not self.is_rough:
            return np.asarray(np.exp(-(frequencies**2) / (4.0 * self.scale)) / np.sqrt(4.0 * np.pi * self.scale))
        relative = 1.0 + (frequencies / self.scale) ** 2
        return np.asarray(self._constant / self.scale * relative ** -(self.nu + 0.5))

    def reach(self, tolerance: float) -> float:
        """Returns the distance beyond which the kernel has died out."""
        digits = math.log(4.0 / tolerance)
        if not self.is_rough:
            return math.sqrt(digits / self.scale)
        return (digits + 2.0 * (self.nu - 0.5) * math.log1p(digits)) / self.scale

    def cutoff(self, tolerance: float) -> float:
        """Returns the frequency beyond which there is next to no density."""
        if not self.is_rough:
            return math.sqrt(4.0 * self.scale * math.log(4.0 / tolerance))
        return float(self.scale * (self._constant / (self.nu * tolerance)) ** (1.0 / (2.0 * self.nu)))


def _frequencies(terms: Sequence[Density], low: float, high: float, tolerance: float) -> tuple[float, int]:
    """Returns the step of the trapezoid rule on [low, high], and how many frequencies it needs."""
    reach = max(term.reach(tolerance) for term in terms)
    step = 2.0 * math.pi / (high - low + reach)  # the rule makes k periodic: the images stay ``reach`` away
    return step, int(min(math.ceil(max(term.cutoff(tolerance) for term in terms) / step) + 1, 2**31))


def fourier_range(
    terms: Sequence[Density], y: Array, distribution: Distribution | None, tolerance: float
) -> tuple[float, float, float]:
    """Returns a range and a tolerance that 1,024 frequencies serve."""
    ladder = [(tolerance, SMALLEST_TAIL, SHORT), *((tolerance, tail, MAX_FREQUENCIES) for tail in TAILS)]
    if any(term.is_rough for term in terms):
        ladder = [(*pair, SHORT) for pair in ROUGH_SHORT] + [(*pair, MAX_FREQUENCIES) for pair in ROUGH]
    for wanted, tail, most in ladder:
        low, high = target_range(y, distribution, tail)
        if _frequencies(terms, low, high, wanted)[1] <= most:
            return low, high, wanted
    inner, outer = target_range(y, None, 0.0), (low, high)
    if _frequencies(terms, *inner, wanted)[1] > MAX_FREQUENCIES:
        raise BudgetError(
            f"the output kernel needs more than {2 * MAX_FREQUENCIES} features to cover targets from {inner[0]:.6g} to "
            f"{inner[1]:.6g}: its bandwidth is far below that range. Use a wider output kernel, or check the targets "
            "for outliers"
        )
    share = 1.0
    while _frequencies(terms, low, high, wanted)[1] > MAX_FREQUENCIES:
        share *= 0.7
        low, high = inner[0] - share * (inner[0] - outer[0]), inner[1] + share * (outer[1] - inner[1])
    return low, high, wanted


@dataclass(frozen=True)
class FourierFeatures(FeatureMap):
    """psi(y) = [a_j cos(w_j (y - c)), a_j sin(w_j (y - c))]_j P on [low, high], c its middle.

    ``projection`` P (2m, r) has orthonormal columns: it drops the directions that the kernel does not use on the
    interval, which leaves the numerical rank of the kernel there.
    """

    frequencies: Array = field(repr=False)
    amplitudes: Array = field(repr=False)
    low: float
    high: float
    error: float
    projection: Array = field(repr=False)

    @property
    def rank(self) -> int:
        return int(self.projection.shape[1])

    @property
    def range(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def center(self) -> float:
        """c."""
        return (self.low + self.high) / 2

    def __call__(self, y: Any) -> Array:
        return self._project(waves(np.asarray(y, dtype=np.float64) - self.center, self.frequencies))

    def along(self, y: Any, directions: Array) -> Array:
        return replace(self, projection=self.projection @ directions)(y)  # one product instead of two

    def on_grid(self, low: float, step: float, count: int, directions: Array) -> Array:
        """See FeatureMap: a wave at a + b is that at a times that at b, so a few hundred of them make all."""
        inner = math.isqrt(count - 1) + 1
        starts, within = low - self.center + step * inner * np.arange(-(-count // inner)), step * np.arange(inner)
        cosines, sines = np.split(self.projection @ directions, 2)
        of_directions = np.ascontiguousarray((cosines + 1j * sines).T) * self.amplitudes
        turned = waves(-starts, self.frequencies)[:, None] * of_directions
        found = turned.view(np.float64) @ waves(within, self.frequencies).view(np.float64).T
        return np.asarray(found.transpose(0, 2, 1).reshape(-1, directions.shape[1])[:count])

    def expectation(self, distribution: Distribution) -> Array:
        """See FeatureMap: E exp(iwY) is the family's characteristic function."""
        centred = distribution.translated(-self.center)
        if centred is None:
            turn = np.exp(-1j * self.frequencies * self.center)
            wave = distribution.characteristic_function(self.frequencies) * turn
        else:
            wave = centred.characteristic_function(self.frequencies)
        return self._project(wave)

    def missed(self, y: Array, distribution: Distribution) -> Missed:
        """See FeatureMap: with a mass p_i outside, where k is off by at most its maximum, 2 k p_i is missed."""
        outside = mass_outside(distribution, self.low, self.high) + ((y < self.low) | (y > self.high))
        outside = np.where(outside < 1e-15, 0.0, outside)
        error = self.error
        if distribution[:1].translated(0.0) is None:
            # exp(i w Y) and exp(-i w c) are rounded on their own, in phases far from the origin.
            error += 2.0 * np.finfo(np.float64).eps * float(self.frequencies[-1]) * max(abs(self.low), abs(self.high))
        maximum = float(np.sum(self.amplitudes**2))
        return Missed(np.full(len(y), 4.0 * error), (2.0 * maximum * outside) ** 2)

    def _project(self, wave: Array) -> Array:
        """Cosines and sines stand beside each other in memory, as P's rows do here: one product, and no copies."""
        halves = self.projection.reshape(2, len(self.frequencies), -1) * self.amplitudes[:, None]
        rows = halves.transpose(1, 0, 2).reshape(2 * len(self.frequencies), -1)
        return np.asarray(np.ascontiguousarray(wave, dtype=np.complex128).view(np.float64) @ rows)


@lru_cache(maxsize=4)
def fourier_features(terms: tuple[Density, ...], low: float, high: float, tolerance: float) -> FourierFeatures:
    """Returns features on [low, high] in the directions that the kernel uses there; the last few are kept at hand."""
    step, count = _frequencies(terms, low, high, tolerance)
    frequencies = step * np.arange(count)
    weights = 2.0 * step * np.sum([term.at(frequencies) for term in terms], axis=0)  # folded onto positive frequencies
    weights[0] /= 2.0
    nothing = np.empty((2 * count, 0))
    whole = FourierFeatures(frequencies, np.sqrt(weights), low, high, tolerance * len(terms), nothing)
    # Around the middle cosines are even and sines odd: of either, half of the range says all.
    phase = np.multiply.outer(np.linspace(0.0, (high - low) / 2.0, 2 * count if high > low else 1), frequencies)
    # The least directions hang on the last digits: sines and cosines, not products of them.
    values = [np.cos(phase) * whole.amplitudes, np.sin(phase) * whole.amplitudes]
    spectra = [np.linalg.eigh(2.0 * (part.T @ part)) for part in values]
    directions, lost = _used(values, spectra, tolerance)
    projection = np.zeros((2 * count, len(directions)))
    for place, (_, axes) in enumerate(spectra):
        own = directions // count == place
        projection[place * count : (place + 1) * count, own] = axes[:, directions[own] % count]
    return replace(whole, error=whole.error + lost, projection=projection)


def _used(values: Sequence[Array], spectra: Sequence[tuple[Array, Array]], tolerance: float) -> tuple[Array, float]:
    """Returns the numbers of the directions that are used, the first ones first, and what the others hold."""
    energy = np.concatenate([each for each, _ in spectra])
    order = np.argsort(energy)
    dropped, kept = np.cumsum(np.maximum(energy[order], 0.0)), energy[order] > tolerance / 10.0
    if tolerance > 1e-10:  # what is dropped at a point, rather than in the sum over the grid
        points, count = values[0].shape
        kept = dropped > 0.3 * points * tolerance  # for then it is beyond a tenth of it in the mean over the points
        least = order[~kept]
        squares = np.empty((points, len(least)))
        for place, (part, (_, axes)) in enumerate(zip(values, spectra, strict=True)):
            own = least // count == place
            squares[:, own] = (part @ axes[:, least[own] % count]) ** 2
        dropped = np.max(np.cumsum(squares, axis=1), axis=0)
        kept[~kept] = dropped > tolerance / 10.0
    missed = np.count_nonzero(~kept)
    return order[missed:][::-1], float(dropped[missed - 1]) if missed else 0.0


def mass_outside(distribution: Distribution, low: float, high: float) -> Array:
    """Returns P(Y < low) + P(Y > high), (n,)."""
    return np.maximum(distribution.cdf_left(low) + (1.0 - distribution.cdf(high)), 0.0)
