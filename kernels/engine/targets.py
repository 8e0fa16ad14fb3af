"""The target side of congruence: Delta_i = psi(y_i) - E psi(Y_i) with Y_i ~ f(x_i), and its variance.

Everything about a model is in Delta (n, r); everything about the inputs is in the system. The kernel calibration error
reads the same Delta.

psi of a stationary kernel of one target is its spectral integral by the trapezoid rule: E psi(Y) of *any* family is its
characteristic function at fixed frequencies. RBF kernels need few of them; Matern and Laplacian kernels have slow
spectra, and are met to 1e-8 to 1e-2, as far as 1,024 frequencies go. Other kernels have other features, see
``finite_features``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from congruence.kernels.arrays import Array, require_targets, row_slices, waves
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.distributions.base import mass_outside, require_dimension, target_range
from congruence.kernels.error_features import ErrorFeatures, error_features
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.finite_features import (
    TAIL,
    FeatureMap,
    Missed,
    MonomialFeatures,
    StackedFeatures,
    count_features,
    scalar_features,
    vector_features,
)
from congruence.kernels.kernel_functions import RBF, Kernel, Laplacian, Matern, Polynomial, Sum
from congruence.kernels.pit import rounded_draws
from congruence.kernels.rng import row_uniforms
from congruence.kernels.threads import map_on_threads

TOLERANCE = 1e-12
# Tolerances that kernels with a slow spectrum are met to, with the tails that are left out: what is short goes first.
ROUGH_SHORT = ((1e-8, 1e-9), (1e-6, 1e-6), (1e-5, 1e-6), (1e-4, 1e-4))
ROUGH = ((1e-4, 1e-4), (1e-3, 1e-3), (3e-3, 1e-3), (1e-2, 1e-3), (3e-2, 1e-3))
MAX_FREQUENCIES = 1024
WIDE = 20.0  # reaches of a kernel, on a range of which it uses more than 95 % of the directions
SHORT = 256  # frequencies that cost next to nothing
SMALLEST_TAIL = 1e-12
TAILS = (TAIL, 1e-6, 1e-4, 1e-3)
MOST_COUNTS = 512
REFUSED_SHARE = 0.05  # of the squared errors that features may miss
_CHUNK_ROWS = 4096


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
    if high - low > WIDE * max(term.reach(tolerance) for term in terms):  # nearly all directions are used
        return replace(whole, projection=np.delete(np.eye(2 * count), count, axis=1))  # the sine of 0 is none
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


def few_counts(y: Array, distribution: Distribution | None) -> tuple[float, float] | None:
    """Returns the least and largest count of targets and predictions of whole numbers, where these are few."""
    if distribution is None or not distribution.is_discrete or np.any(y != np.floor(y)):
        return None
    for tail in (SMALLEST_TAIL, TAILS[0]):
        low, high = target_range(y, distribution, tail)
        if high - low < MOST_COUNTS:
            return float(np.floor(low)), float(np.ceil(high))
    return None


def require_share(missed: float, whole: float, rows: int, rank: int) -> None:
    """Raise BudgetError where features chosen on sampled rows miss more than a twentieth of the squared errors."""
    if missed > REFUSED_SHARE * whole:
        raise BudgetError(
            f"the output kernel's {rank} features, chosen on sampled rows, miss {missed / whole:.3g} of the errors of "
            f"{rows:,} targets: they fill a volume that is wide for the kernel. Use a wider output kernel, or fewer "
            "targets at once"
        )


def output_features(
    kernel: Kernel, y: Array, distribution: Distribution | None = None, *, tolerance: float = TOLERANCE
) -> FeatureMap:
    """Returns features of ``kernel`` that hold for the targets y and for what the model predicts.

    Args:
        kernel: the output kernel k_Y.
        y: targets, (n,) or (n, q), which fix the range together with the predictions.
        distribution: predictive distributions; the range covers all but 1e-12 or 1e-9 of their mass per side, or for
            tails so heavy that this would need too many features, all but up to 1e-3, or else what 1,024 frequencies
            hold around the targets. ``FeatureMap.missed`` counts the mass outside.
        tolerance: largest error of k_Y on the range, of kernels with a fast spectrum.

    Raises:
        BudgetError: the kernel needs more than 2,048 features on the range of the targets alone (bandwidth far below).
    """
    if y.ndim == 2:
        return vector_features(kernel, y, distribution, tolerance)
    polynomials = tuple(term for term in kernel.terms if isinstance(term, Polynomial))
    if polynomials:
        monomials = MonomialFeatures.of(polynomials, y)
        rest = tuple(term for term in kernel.terms if not isinstance(term, Polynomial))
        if not rest:
            return monomials
        return StackedFeatures(output_features(Sum(rest), y, distribution, tolerance=tolerance), monomials)
    counts = few_counts(y, distribution)
    if counts is not None and kernel.is_stationary:
        return count_features(kernel, *counts, tolerance)
    spectra = [Density.of(term) for term in kernel.terms]
    if any(spectrum is None for spectrum in spectra):
        return scalar_features(kernel, y, distribution, tolerance)
    terms = tuple(spectrum for spectrum in spectra if spectrum is not None)
    return fourier_features(terms, *fourier_range(terms, y, distribution, tolerance))


def features_of_errors(kernel: Kernel, y: Array, predictive: Distribution) -> FeatureMap:
    """Returns features for the errors of these rows: exact ones of few vectors, else those of ``output_features``."""
    exact = error_features(kernel, y, predictive) if y.ndim == 2 else None
    return output_features(kernel, y, predictive) if exact is None else exact


def in_cells(
    y: Array, predictive: Distribution, positions: Array, seed: int, steps: Sequence[float | None] | None = None
) -> tuple[Array, Distribution]:
    """Targets y (n,) or (n, q) of the rows ``positions`` of a split and their distributions, as they are judged.

    Targets of stated cells lie at random places in their cells. So do those that are rounded to ``steps``
    (``pit.cell_steps``); draws are rounded as they are, and stay exchangeable with them. Vectors are placed by their
    marginals: exact, as targets whose marginals have a closed form are predicted as independent.

    A prediction that states quantiles or bins is right where the probabilities of its cells are, and is measured by
    these: between and beyond quantiles targets may lie otherwise than we interpolate, see ``Distribution.placed``.
    """
    if predictive.stated != "cells" and steps is None:
        return y, predictive
    targets = np.array(y, dtype=np.float64).reshape(len(y), -1)
    draws = None if predictive.draws is None else np.array(predictive.draws).reshape(len(y), -1, targets.shape[1])
    shares = row_uniforms(positions, targets.shape[1], seed, "places of targets in their cells")
    for column, step in enumerate(steps or (None,)):
        law, at = predictive.marginal(column), targets[:, column]
        if draws is None and law is not None:
            targets[:, column] = law.placed(at, shares[:, column], step)
        elif draws is not None and step is not None:
            draws[:, :, column] = rounded_draws(draws[:, :, column], at, step)
    if draws is None:
        return targets.reshape(y.shape), predictive
    assert isinstance(predictive, Samples)  # or corrected ones, which stay such
    return targets.reshape(y.shape), replace(predictive, values=draws)


@dataclass(frozen=True)
class TargetErrors:
    """Delta and what congruence would make of it.

    Attributes:
        delta: Delta, (n, r).
        variance: v_i = E |Delta_i|^2 if y_i ~ f(x_i): E k_Y(Y, Y) - |E psi(Y)|^2, with the Monte-Carlo term of finite
            samples, (n,).
        missed: what Delta leaves out of the errors in the output RKHS, where that was asked for.
        sampling_variance: the part of the variance that is the Monte-Carlo error of finite samples, (n,); None if none.
    """

    delta: Array = field(repr=False)
    variance: Array = field(repr=False)
    missed: Missed | None = None
    sampling_variance: Array | None = field(default=None, repr=False)

    def weighted(self, roots: Array | None) -> TargetErrors:
        """Returns the same of rows that count with weights ``roots``^2 in their reference."""
        if roots is None:
            return self
        squares = roots**2
        return TargetErrors(
            roots[:, None] * self.delta,
            squares * self.variance,
            None if self.missed is None else self.missed.weighted(squares),
            None if self.sampling_variance is None else squares * self.sampling_variance,
        )


def target_errors(
    y: Array, predictive: Distribution, kernel: Kernel, *, features: FeatureMap | None = None, measured: bool = True
) -> TargetErrors:
    """Returns Delta_i and v_i for targets y (n,) or (n, q) and n predictive distributions.

    ``Samples`` count as l exchangeable draws from the model's distribution, as in the papers: the Monte-Carlo error of
    their mean is part of v. One draw per point leaves v to be read off Delta itself, which is unbiased if f is true.

    Args:
        y: targets.
        predictive: one distribution per row.
        kernel: k_Y.
        features: psi to use, where several calls must share it; by default those of these rows.
        measured: with what they miss.

    Raises:
        InvalidInputError: lengths or dimensions differ, or k_Y overflows on these targets.
        BudgetError: k_Y needs too many features on the range of the targets.
    """
    y = require_targets(y, "y")
    if len(predictive) != len(y):
        raise InvalidInputError(
            f"predictive: {len(predictive)} distributions for {len(y)} targets; give one distribution per row of y"
        )
    require_dimension(predictive, y)
    features = features_of_errors(kernel, y, predictive) if features is None else features
    delta, squared_means = np.empty((len(y), features.rank)), np.empty(len(y))
    pairs, of_pairs = predictive.independent_pairs, np.empty(len(y))

    def fill(rows: slice) -> None:
        mean = features.expectation(predictive[rows])
        delta[rows] = features(y[rows]) - mean
        squared_means[rows] = (
            features.squared_means(predictive[rows])  # errors span no means
            if isinstance(features, ErrorFeatures)
            else np.einsum("ij,ij->i", mean, mean)
        )
        if pairs is not None:
            of_pairs[rows] = np.sum(features.expectation(pairs[rows]) ** 2, axis=1)

    with np.errstate(over="ignore", invalid="ignore"):
        map_on_threads(fill, row_slices(len(y), _CHUNK_ROWS))
        spread = np.maximum(predictive.kernel_diagonal(kernel) - squared_means, 0.0)
        missed = features.missed(y, predictive) if measured else None
    _require_no_overflow(y, delta, spread)
    between = spread if pairs is None else np.maximum(pairs.kernel_diagonal(kernel) - of_pairs, 0.0)
    variance = _with_sampling_noise(predictive, between, delta)
    # Of a variance (1 + 1/l) s, the mean of l draws gives s/l; of those that depend on each other less.
    less = between - spread
    chance = None if predictive.members is None else np.maximum(variance / (predictive.members + 1) + less, 0.0)
    variance = np.maximum(variance + less, 0.0)
    return TargetErrors(delta, variance, missed, chance)


def _require_no_overflow(y: Array, delta: Array, spread: Array) -> None:
    finite = np.isfinite(delta).all(axis=1) & np.isfinite(spread)
    if not finite.all():
        row = int(np.argmin(finite))
        raise InvalidInputError(
            f"y: the output kernel overflows, or its expectation is infinite, at {int(np.sum(~finite))} of {len(y)} "
            f"rows, the first is row {row} "
            f"(target {y[row]}); rescale targets and predictions to a spread near 1, or use a stationary output kernel "
            "(RBF)"
        )


def _with_sampling_noise(model: Distribution, spread: Array, delta: Array) -> Array:
    draws = model.members
    if draws is None:
        return spread
    if draws == 1:
        return np.asarray(np.einsum("ij,ij->i", delta, delta))
    # spread underestimates the variance by (l - 1)/l, and y - mean of l draws has (1 + 1/l) times the variance.
    return np.asarray(spread * (draws + 1) / (draws - 1))
