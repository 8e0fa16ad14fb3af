"""The target side of congruence: Delta_i = psi(y_i) - E psi(Y_i) with Y_i ~ f(x_i), its variance, and k_Y itself.

Everything about a model is in Delta (n, r); everything about the inputs is in the system. The kernel calibration error
reads the same Delta.

Under the null hypothesis right-hand sides are Delta*_i = psi(y*_i) - E psi(Y_i) with y*_i drawn from the model. A test
needs thousands of them and they need not be exact, only computed alike for observed and drawn targets by a map that
does not look at which is which. So psi is cut to the directions that the model's own draws use, and tabulated over the
range that it was built for: of heavy tails the extremes lie far outside of it, where psi says nothing.

An ensemble's target y and its l members are exchangeable if they come from one distribution: a simulated target is one
of them, and its Delta is taken against the mean of the *others*, as the observed one's is against the ensemble.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array, require_targets, row_slices
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.features import (
    TOLERANCE,
    Density,
    FeatureMap,
    Missed,
    MonomialFeatures,
    StackedFeatures,
    few_counts,
    fourier_features,
    fourier_range,
)
from congruence.kernels.finite_features import count_features, error_features, scalar_features, vector_features
from congruence.kernels.kernel_functions import (
    RBF,
    Kernel,
    OutputScale,
    Polynomial,
    Sum,
    require_kernel,
    scaled_rbf,
    variance_gamma,
)
from congruence.kernels.rng import row_choices, row_uniforms, stream
from congruence.kernels.threads import map_on_threads

FINEST = 1e-4  # of var(y): a residual variance below it is taken as this much
_CHUNK_ROWS = 4096


def output_kernel_or_marginal(kernel: Kernel | None, y: Array) -> Kernel:
    """Returns k_Y where it is given, else ``marginal_kernel(y)``.

    Raises:
        InvalidInputError: it is no kernel, or as ``marginal_kernel``.
    """
    return marginal_kernel(y) if kernel is None else require_kernel(kernel, "output_kernel")


def marginal_kernel(y: Array) -> Kernel:
    """Returns the papers' output kernel: RBF with gamma = 1 / (2 var(y)), ddof 1.

    Raises:
        InvalidInputError: constant targets, or one row.
    """
    return RBF(variance_gamma(y))


def kernel_at_scale(scale: OutputScale, gamma: float, residual: float = 0.0) -> Kernel:
    """Returns k_Y at a scale from gamma = 1 / (2 var y), and for ``residual`` the variance of y given x."""
    if scale == "marginal":
        return RBF(gamma)
    if scale == "multiscale":
        return scaled_rbf(gamma)
    marginal = 1.0 / (2.0 * gamma)
    return RBF(1.0 / (2.0 * float(np.clip(residual, FINEST * marginal, marginal))))


def model_output_kernel(y: Array, predictive: Distribution, scale: OutputScale = "marginal") -> Kernel:
    """Returns k_Y at a protocol's scale as the model states it: a function of the predictions alone.

    A kernel whose bandwidth is read off y would depend on which targets are the observed ones, and the level of a test
    would hold only approximately. ``marginal``: RBF with gamma = 1 / (2 v), v the variance of a random row's target;
    ``residual``: v its mean variance given x; ``multiscale``: the sum of RBFs at the marginal v 4^-k, k = 0..3.
    Ensembles use their values and y together, which does not tell them apart. Where the model has no variance (heavy
    tails, one constant), the papers' gamma stands in.
    """
    pooled = predictive.exchangeable(y)
    if pooled is not None:
        within = float(np.sum(np.mean(np.var(pooled, axis=1, ddof=1), axis=0)))
        between = 1.0 / (2.0 * variance_gamma(pooled.reshape(-1, *pooled.shape[2:]))) - within
    else:
        within = float(np.sum(np.mean(predictive.std() ** 2, axis=0)))
        between = float(np.sum(np.var(predictive.mean(), axis=0)))
    return stated_kernel(within, between, scale) or marginal_kernel(y)


def stated_kernel(within: float, between: float, scale: OutputScale) -> Kernel | None:
    """Returns k_Y at a scale from the mean variance given x and what the means add to it; None without a variance."""
    variance = within if scale == "residual" else within + between
    if not np.isfinite(variance) or variance <= 0.0:
        return None
    gamma = 1.0 / (2.0 * variance)
    return scaled_rbf(gamma) if scale == "multiscale" else RBF(gamma)


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


TABLE_ENTRIES = 16_384
TABLE_TAIL = 1e-6
VECTOR_TOLERANCE = 1e-2
ENERGY = 0.998  # of the features of the model's draws that the kept directions hold
MAX_DIRECTIONS = 48
PILOT_ROWS = 4096
PURPOSE = "targets of a true version"  # of the band and of the test, which share their draws
_LARGEST = float(np.sqrt(np.finfo(np.float32).max)) / 1e3  # squares are summed over rows and coordinates
_NULL_ROWS = 65_536
_ENSEMBLE_ROWS = 1024


@dataclass(frozen=True)
class NullFeatures:
    """psi in the directions that a model's own draws use: fixed once, then the same for every row of a split.

    Attributes:
        features: psi itself.
        directions: the kept ones, (rank of psi, r).
        table: psi in them at ``low`` + j ``step``, (entries, r); None for vector targets.
        low, step: of the table.
    """

    features: FeatureMap = field(repr=False)
    directions: Array = field(repr=False)
    table: Array | None = field(default=None, repr=False)
    low: float = 0.0
    step: float = 1.0

    @classmethod
    def of(
        cls, features: FeatureMap, y: Array, predictive: Distribution, ends: tuple[float, float], *, is_discrete: bool
    ) -> NullFeatures:
        """Returns the directions of ``features`` that hold the draws of the pilot rows.

        Args:
            features: psi.
            y, predictive: targets and predictive distributions of the pilot rows.
            ends: between which all targets lie and all but a millionth of every prediction, for scalars.
            is_discrete: whether predictions lie on whole numbers.

        Raises:
            InvalidInputError: psi overflows single precision.
        """
        directions = _leading_directions(features, y, predictive)
        if y.ndim == 2:
            return cls(features, directions)
        low, high = max(ends[0], features.range[0]), min(ends[1], features.range[1])
        if is_discrete:
            low, high = float(np.floor(low)), float(np.ceil(high))
        step = 1.0 if is_discrete and high - low < TABLE_ENTRIES else max(high - low, 1e-300) / TABLE_ENTRIES
        grid = low + step * np.arange(int(np.ceil((high - low) / step)) + 2)
        return cls(features, directions, (features(grid) @ directions).astype(np.float32), low, step)

    def __call__(self, y: Array) -> Array:
        """Returns psi in the kept directions, (..., r), of targets (...) or (..., q), in single precision."""
        if self.table is None:
            flat = y.reshape(-1, y.shape[-1])
            parts = [
                (self.features(flat[rows]) @ self.directions).astype(np.float32)
                for rows in row_slices(max(len(flat), 1), _NULL_ROWS)
            ]
            return np.concatenate(parts).reshape(*y.shape[:-1], self.directions.shape[1])
        position = np.clip((y - self.low) / self.step, 0.0, len(self.table) - 1.000001)
        index = position.astype(np.intp)
        result = self.table[index]
        share = (position - index).astype(np.float32)[..., None]
        if np.any(share):
            result += share * (self.table[index + 1] - result)
        return np.asarray(result)

    def against(self, y: Array, predictive: Distribution) -> NullErrors:
        """Returns what makes Delta of any targets of some rows, with targets y and predictive distributions."""
        pooled = predictive.exchangeable(y)
        if pooled is None:
            some = row_slices(len(y), _NULL_ROWS)
            means = [self.features.expectation(predictive[rows]) @ self.directions for rows in some]
            return NullErrors(self, np.concatenate(means).astype(np.float32), 0)
        totals = [np.sum(self(pooled[rows]), axis=1) for rows in row_slices(len(y), _ENSEMBLE_ROWS)]
        return NullErrors(self, np.concatenate(totals), pooled.shape[1] - 1)


@dataclass(frozen=True)
class NullErrors:
    """Delta of any targets of some rows: against E psi, or of ensembles of l against the mean of the others.

    Attributes:
        features: psi.
        center: E psi(Y_i), or of ensembles the sum of psi over the target and all members, (n, r).
        members: l; 0 of distributions.
    """

    features: NullFeatures
    center: Array = field(repr=False)
    members: int

    def __call__(self, values: Array) -> Array:
        """Returns Delta of c targets per row: (n, c) or (n, c, q) to (n, c, r).

        Of ensembles, values are a row's target or members of its ensemble.
        """
        delta = self.features(values)
        if self.members == 0:
            delta -= self.center[:, None, :]
            return delta
        members = np.float32(self.members)
        return np.asarray(delta * (np.float32(1.0) + 1 / members) - self.center[:, None, :] / members)


def features_of_split(
    y: Array, predictive: Distribution, kernel: Kernel | None = None, *, scale: OutputScale = "marginal"
) -> NullFeatures:
    """Returns psi of one model, where all rows are here.

    Args:
        y: targets, (n,) or (n, q).
        predictive: n predictive distributions; ``Samples`` count as an ensemble of draws from the model's distribution.
        kernel: k_Y; by default the one that the *model* states at ``scale`` (``model_output_kernel``).
        scale: of the model's own kernel.

    Raises:
        InvalidInputError: lengths or dimensions differ.
    """
    y = require_targets(y, "y")
    if len(predictive) != len(y):
        raise InvalidInputError(
            f"predictive: {len(predictive)} distributions for {len(y)} targets; give one distribution per row of y"
        )
    require_dimension(predictive, y)
    try:
        own = model_output_kernel(y, predictive, scale) if kernel is None else kernel
        features = drawn_features(own, y, predictive)
    except BudgetError:
        if kernel is not None:
            raise
        features = drawn_features(marginal_kernel(y), y, predictive)
    pilot = pilot_rows(len(y))
    ends = (float(np.min(y)), float(np.max(y)))
    if y.ndim == 1:
        low, high = predictive.interval(TABLE_TAIL)
        ends = min(low, ends[0]), max(high, ends[1])
    return NullFeatures.of(features, y[pilot], predictive[pilot], ends, is_discrete=predictive.is_discrete)


def drawn_features(kernel: Kernel, y: Array, predictive: Distribution) -> FeatureMap:
    """Returns psi for simulated targets: nodes at the observed vectors would favour these."""
    if y.ndim == 1:
        return output_features(kernel, y, predictive)
    unobserved = exchangeable_targets(y, predictive, 1, stream(0, "exchangeable targets"))[:, 0]
    return output_features(kernel, unobserved, predictive, tolerance=VECTOR_TOLERANCE)


def drawn_targets(y: Array, predictive: Distribution, positions: Array, count: int, seed: int) -> Array:
    """Returns ``count`` targets drawn for the rows ``positions`` of a split, (n, count) or (n, count, q)."""
    values = predictive.exchangeable(y)
    if values is not None:
        chosen = row_choices(positions, count, values.shape[1], seed, PURPOSE)
        return np.asarray(values[np.arange(len(values))[:, None], chosen])
    return row_draws(predictive, positions, count, seed, PURPOSE)


def exchangeable_targets(y: Array, predictive: Distribution, count: int, rng: np.random.Generator) -> Array:
    """Returns ``count`` targets of each row that could have been the observed one, (n, count) or (n, count, q)."""
    pooled = predictive.exchangeable(y)
    if pooled is None:
        return np.asarray(predictive.sample(count, seed=rng))
    return np.asarray(pooled[np.arange(len(y))[:, None], rng.integers(pooled.shape[1], size=(len(y), count))])


def pilot_rows(n: int) -> Array:
    """Returns evenly spaced rows that tell which directions a model's draws use."""
    return np.unique(np.linspace(0, n - 1, min(n, PILOT_ROWS)).astype(np.intp))


def _leading_directions(features: FeatureMap, y: Array, predictive: Distribution) -> Array:
    """Returns the leading directions of the second moment of psi over draws of the pilot rows, (rank, r)."""
    pilot = predictive.exchangeable(y)
    if pilot is None:
        pilot = predictive.sample(4, seed=stream(0, "pilot draws"))
    flat = pilot.reshape(-1, *y.shape[1:])
    flat = flat[:: len(flat) // (8 * PILOT_ROWS) + 1] if len(flat) > 8 * PILOT_ROWS else flat
    if y.ndim == 1:
        flat = np.clip(flat, *features.range)
    with np.errstate(over="ignore", invalid="ignore"):
        values = features(flat)
    finite = np.isfinite(values)
    largest = float(np.max(np.abs(values[finite]), initial=0.0))
    if not finite.all() or largest > _LARGEST:
        raise InvalidInputError(
            f"y: the output kernel's features reach {largest:.3g} on targets and predictions, the limit of single "
            f"precision is {_LARGEST:.3g}; rescale both to a spread near 1, or use a stationary output kernel (RBF)"
        )
    energy, axes = np.linalg.eigh(values.T @ values)
    held = np.cumsum(energy[::-1]) / np.sum(energy)
    count = min(int(np.searchsorted(held, ENERGY)) + 1, MAX_DIRECTIONS, len(energy))
    return np.ascontiguousarray(axes[:, : -count - 1 : -1])


def row_draws(predictive: Distribution, positions: Array, count: int, seed: int, purpose: str) -> Array:
    """``count`` independent draws from the law of each row, (n, count) or (n, count, q)."""
    return predictive.sample_by(lambda numbers, use: row_uniforms(positions, numbers, seed, f"{purpose}{use}"), count)
