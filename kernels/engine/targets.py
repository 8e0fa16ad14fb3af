"""The target side of congruence: Delta_i = psi(y_i) - E psi(Y_i) with Y_i ~ f(x_i), its variance, and k_Y itself.

Everything about a model is in Delta (n, r); everything about the inputs is in the system. The kernel calibration error
reads the same Delta.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array, require_targets, row_slices
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.error_features import error_features
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.features import FeatureMap, Missed
from congruence.kernels.kernel_functions import RBF, Kernel, OutputScale, require_kernel, scaled_rbf, variance_gamma
from congruence.kernels.threads import map_on_threads

REFUSED_SHARE = 0.05  # of the squared errors that features may miss
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
    features = error_features(kernel, y, predictive) if features is None else features
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


def require_share(missed: float, whole: float, rows: int, rank: int) -> None:
    """Raise BudgetError where features chosen on sampled rows miss more than a twentieth of the squared errors."""
    if missed > REFUSED_SHARE * whole:
        raise BudgetError(
            f"the output kernel's {rank} features, chosen on sampled rows, miss {missed / whole:.3g} of the errors of "
            f"{rows:,} targets: they fill a volume that is wide for the kernel. Use a wider output kernel, or fewer "
            "targets at once"
        )


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
