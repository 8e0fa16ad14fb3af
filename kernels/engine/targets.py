"""The target side of congruence: Delta_i = psi(y_i) - E psi(Y_i) with Y_i ~ f(x_i), its variance, and k_Y itself.

Everything about a model is in Delta (n, r); everything about the inputs is in the system. The kernel calibration error
reads the same Delta.

Bandwidths are read off targets: the papers', and several at once; or the model states them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, require_finite, require_targets, row_slices, to_numpy
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.distributions.expectations import coefficients
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.finite_features import count_features, error_features, scalar_features, vector_features
from congruence.kernels.fourier import (
    SMALLEST_TAIL,
    TAILS,
    TOLERANCE,
    Density,
    FeatureMap,
    Missed,
    fourier_features,
    fourier_range,
    target_range,
)
from congruence.kernels.kernel_functions import RBF, Kernel, OutputScale, Polynomial, Sum, as_columns, require_kernel
from congruence.kernels.rng import row_uniforms, stream
from congruence.kernels.threads import map_on_threads

FINEST = 1e-4  # of var(y): a residual variance below it is taken as this much
_CHUNK_ROWS = 4096
MOST_COUNTS = 512
REFUSED_SHARE = 0.05  # of the squared errors that features may miss
_ROUNDING = 16.0 * float(np.finfo(np.float64).eps)
SCALES = 4


def variance_gamma(values: Any) -> float:
    """1 / (2 var), ddof 1 (for several columns: their summed variance): the papers' bandwidth for targets.

    Raises:
        InvalidInputError: fewer than two values, or constant ones.
    """
    targets = require_targets(values, "targets")
    if len(targets) < 2:
        raise InvalidInputError("targets: one row has no variance; give an explicit gamma or at least two rows")
    flat = np.ravel(targets)
    return gamma_of_variance(
        float(np.sum(np.var(targets, axis=0, ddof=1))), len(targets), float(flat[np.argmax(np.abs(flat))])
    )


def gamma_of_variance(variance: float, n: int, farthest: float) -> float:
    """1 / (2 var) of n targets of which ``farthest`` is the largest in size.

    Raises:
        InvalidInputError: constant targets.
    """
    # Values that differ by rounding alone are constant; a small spread far from the origin is a spread.
    if not np.sqrt(variance) > 16.0 * np.finfo(np.float64).eps * abs(farthest):
        raise InvalidInputError(
            f"targets: all {n} values are (almost) {farthest}, so gamma = 1/(2 var) is not defined; give an explicit "
            "output kernel, or check the target column"
        )
    return 1.0 / (2.0 * variance)


def median_gamma(x: Any, *, pairs: int = 100_000, seed: int = 0) -> float:
    """1 / (2 median^2) of the distances of up to ``pairs`` random pairs of rows (Gretton's median heuristic)."""
    rows = to_numpy(as_columns(x)).astype(np.float64)
    require_finite(rows, "x")
    rng = stream(seed, "median distance")
    first, second = rng.integers(len(rows), size=(2, pairs))
    keep = first != second
    distances = np.sum((rows[first[keep]] - rows[second[keep]]) ** 2, axis=1)
    median = float(np.median(distances)) if len(distances) else 0.0
    if not median > 0:
        raise InvalidInputError("x: the median distance between rows is 0; give an explicit gamma")
    return 1.0 / (2.0 * median)


def multiscale_rbf(y: Array, scales: int = SCALES) -> Kernel:
    """``scaled_rbf`` at var(y): at the papers' single bandwidth, errors below the spread of the targets go unseen."""
    return scaled_rbf(variance_gamma(y), scales)


def scaled_rbf(gamma: float, scales: int = SCALES) -> Kernel:
    """The sum over k < ``scales`` of RBF kernels at gamma 4^k, each weighing the same."""
    return Sum(tuple(RBF(gamma * 4.0**k) for k in range(scales)))


def output_kernel_or_marginal(kernel: Kernel | None, y: Array) -> Kernel:
    """Returns k_Y where it is given, else the papers': RBF with gamma = 1 / (2 var(y)), ddof 1.

    Raises:
        InvalidInputError: it is no kernel; or constant targets, or one row.
    """
    return RBF(variance_gamma(y)) if kernel is None else require_kernel(kernel, "output_kernel")


def kernel_at_scale(scale: OutputScale, gamma: float, residual: float = 0.0) -> Kernel:
    """Returns k_Y at a scale from gamma = 1 / (2 var y), and for ``residual`` the variance of y given x."""
    if scale == "marginal":
        return RBF(gamma)
    if scale == "multiscale":
        return scaled_rbf(gamma)
    marginal = 1.0 / (2.0 * gamma)
    return RBF(1.0 / (2.0 * float(np.clip(residual, FINEST * marginal, marginal))))


@dataclass(frozen=True)
class MonomialFeatures(FeatureMap):
    """psi(y) = (a_q^(1/2) y^q)_q for k(y, y') = sum_q a_q (y y')^q; E psi(Y) are moments."""

    weights: Array
    error: float = field(repr=False)

    @classmethod
    def of(cls, polynomials: Sequence[Polynomial], y: Array) -> MonomialFeatures:
        """Returns features of a sum of polynomial kernels, with the rounding at targets y."""
        weights = np.zeros(1 + max(polynomial.degree for polynomial in polynomials))
        for polynomial in polynomials:
            weights[: polynomial.degree + 1] += coefficients(polynomial)
        largest = float(np.max(np.abs(y), initial=0.0))
        with np.errstate(over="ignore"):
            return cls(weights, _ROUNDING * float(np.sum(weights * largest ** (2.0 * np.arange(len(weights))))))

    @property
    def _powers(self) -> Array:
        return np.flatnonzero(self.weights)

    @property
    def rank(self) -> int:
        return len(self._powers)

    def __call__(self, y: Any) -> Array:
        powers = self._powers
        return np.asarray(np.sqrt(self.weights[powers]) * np.asarray(y, dtype=np.float64)[..., None] ** powers)

    def expectation(self, distribution: Distribution) -> Array:
        powers = self._powers
        return np.asarray(np.sqrt(self.weights[powers]) * distribution.raw_moments(int(powers[-1]))[:, powers])

    def missed(self, y: Array, distribution: Distribution) -> Missed:  # noqa: ARG002
        """See FeatureMap: rounding."""
        return Missed(np.full(len(y), 4.0 * self.error), np.zeros(len(y)))


@dataclass(frozen=True)
class StackedFeatures(FeatureMap):
    """The features of two kernels side by side: those of their sum."""

    first: FeatureMap
    second: FeatureMap

    @property
    def rank(self) -> int:
        return self.first.rank + self.second.rank

    @property
    def error(self) -> float:  # type: ignore[override]
        """See FeatureMap."""
        return self.first.error + self.second.error

    @property
    def is_sampled(self) -> bool:  # type: ignore[override]
        """See FeatureMap."""
        return self.first.is_sampled or self.second.is_sampled

    @property
    def range(self) -> tuple[float, float]:
        return self.first.range

    def __call__(self, y: Any) -> Array:
        return np.concatenate([self.first(y), self.second(y)], axis=-1)

    def expectation(self, distribution: Distribution) -> Array:
        return np.concatenate([self.first.expectation(distribution), self.second.expectation(distribution)], axis=-1)

    def missed(self, y: Array, distribution: Distribution) -> Missed:
        return self.first.missed(y, distribution).plus(self.second.missed(y, distribution))


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


def placed_targets(y: Array, predictive: Distribution, positions: Array, seed: int) -> Array:
    """Targets y (n,) of the rows ``positions`` of a split, those of stated cells at random places in their cells.

    A prediction that states quantiles or bins is right where the probabilities of its cells are, and is measured by
    these: between and beyond quantiles targets may lie otherwise than we interpolate, see ``Distribution.placed``.
    """
    if predictive.stated != "cells":
        return y
    return predictive.placed(y, row_uniforms(positions, 1, seed, "places of targets in their cells")[:, 0])


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
    y: Array,
    predictive: Distribution,
    kernel: Kernel,
    *,
    features: FeatureMap | None = None,
    measured: bool = True,
) -> TargetErrors:
    """Returns Delta_i and v_i for targets y (n,) or (n, q) and n predictive distributions.

    ``Samples`` count as l exchangeable draws from the model's distribution, as in the papers: the Monte-Carlo error of
    their mean is part of v. One draw per point leaves v to be read off Delta itself, which is unbiased if f is true.

    Args:
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

    def fill(rows: slice) -> None:
        mean = features.expectation(predictive[rows])
        delta[rows] = features(y[rows]) - mean
        squared_means[rows] = features.squared_means(predictive[rows], mean)

    with np.errstate(over="ignore", invalid="ignore"):
        map_on_threads(fill, row_slices(len(y), _CHUNK_ROWS))
        spread = np.maximum(predictive.kernel_diagonal(kernel) - squared_means, 0.0)
        missed = features.missed(y, predictive) if measured else None
    _require_no_overflow(y, delta, spread)
    variance = _with_sampling_noise(predictive, spread, delta)
    # Of a variance (1 + 1/l) s, the mean of l draws gives s/l.
    chance = None if predictive.members is None else variance / (predictive.members + 1)
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
