"""The target side of congruence: Delta_i = psi(y_i) - E psi(Y_i) with Y_i ~ f(x_i), and its variance if f is the truth.

Everything about a model is in Delta (n, r); everything about the inputs is in the Gram operator. The kernel calibration
error reads the same Delta.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from congruence.kernels.arrays import Array, require_targets, row_slices
from congruence.kernels.bandwidths import variance_gamma
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import RBF, Kernel, require_kernel
from congruence.kernels.mean_embeddings.base import EmbeddedErrors, FeatureError
from congruence.kernels.mean_embeddings.feature_maps import SHORT, FeatureMap, few_counts, output_features, target_range
from congruence.kernels.mean_embeddings.fourier import (
    all_frequencies,
    fourier_features,
    frequency_count,
    projected_errors,
    rbf_gammas,
)
from congruence.kernels.mean_embeddings.gram import (
    FACTORED_ROWS,
    ErrorGram,
    error_coordinates,
    point_coordinates,
    require_share,
)
from congruence.kernels.mean_embeddings.line import is_line_kernel, line_errors
from congruence.kernels.mean_embeddings.line_products import exact_line_errors, without_kinks
from congruence.kernels.mean_embeddings.monomials import MonomialFeatures, without_polynomials
from congruence.kernels.threads import map_on_threads

_CHUNK_ROWS = 4096
_TOLERANCE = 1e-12
_TAILS = (1e-9, 1e-8, 1e-7, 1e-6)
_LONG = 16_384
_FEW_WAVES = 6_000_000  # of rows and frequencies: some seconds
_MANY_WAVES = 50_000_000  # half a minute, for predictions that could not be evaluated otherwise
_SCALAR_PAIRS = 1_000_000_000  # kernel values of a Gram matrix for scalars, above which masses on nodes are faster
_NEGLIGIBLE_MOVE = 1e-7  # mean squared displacement of the kernel means of an RBF


@dataclass(frozen=True)
class TargetErrors:
    """Delta and what congruence would make of it.

    Attributes:
        delta: Delta, (n, r).
        variance: v_i = E |Delta_i|^2 if y_i ~ f(x_i): E k_Y(Y, Y) - |E psi(Y)|^2, with the Monte-Carlo term of finite
            samples, (n,).
        feature_error: what Delta leaves out of the errors in the output RKHS.
        sampling_variance: the part of the variance that is the Monte-Carlo error of finite samples, (n,); None if none.
    """

    delta: Array = field(repr=False)
    variance: Array = field(repr=False)
    feature_error: FeatureError
    sampling_variance: Array | None = field(default=None, repr=False)


def target_errors(
    y: Array, predictive: Distribution, kernel: Kernel, *, features: FeatureMap | None = None
) -> TargetErrors:
    """Delta_i and v_i for targets y (n,) or (n, q) and n predictive distributions.

    ``Samples`` count as l exchangeable draws from the model's distribution, as in the papers: the Monte-Carlo error of
    their mean is part of v. One draw per point leaves v to be read off Delta itself, which is unbiased if f is true.

    Args:
        y: targets.
        predictive: one distribution per row.
        kernel: k_Y.
        features: psi to use, where several calls must share it; by default the coordinates that are the most exact.

    Raises:
        InvalidInputError: lengths or dimensions differ, or k_Y overflows on these targets.
        BudgetError: no affordable coordinates reach the errors; see ``embedded_errors``.
    """
    y = require_targets(y, "y")
    if len(predictive) != len(y):
        raise InvalidInputError(
            f"predictive: {len(predictive)} distributions for {len(y)} targets; give one distribution per row of y"
        )
    require_dimension(predictive, y)
    with np.errstate(over="ignore", invalid="ignore"):
        embedded = embedded_errors(y, predictive, kernel) if features is None else _by_features(y, predictive, features)
        spread = np.maximum(predictive.kernel_diagonal(kernel) - embedded.squared_means, 0.0)
    _require_no_overflow(y, embedded, spread)
    variance = _with_sampling_noise(predictive, spread, embedded.delta)
    # Of a variance (1 + 1/l) s, the mean of l draws gives s/l.
    chance = variance / (predictive.values.shape[1] + 1) if isinstance(predictive, Samples) else None
    return TargetErrors(embedded.delta, variance, embedded.error, chance)


def embedded_errors(y: Array, predictive: Distribution, kernel: Kernel) -> EmbeddedErrors:
    """Coordinates of the errors D_i = k_Y(y_i, .) - E k_Y(Y_i, .), by the first of these that serves.

    0. Scalars and polynomials, alone or as terms of a sum: monomials. Counts and stationary kernels: a table of counts.
    1. Scalars and sums of RBF kernels: Fourier features, where 256 frequencies cover targets and predictions.
    2. Laws of points and normals: the Gram matrix of the errors in closed form.
    3. Other laws of scalars, Laplacian and Matern kernels, up to 4,096 rows: the same by kernel means on a line.
    4. Scalars otherwise: masses on nodes; projected Fourier features for RBF where few predictions are far wider than
       the others.
    5. Features on nodes.

    Raises:
        BudgetError: coordinates of rank 1,024 miss more than a twentieth of the errors (vector targets that fill a
            volume wide for the kernel), or scalar targets thousands of bandwidths apart.
    """
    rest, polynomials = without_polynomials(kernel)
    if polynomials and y.ndim == 1:
        exact = _by_features(y, predictive, MonomialFeatures.of(polynomials, y))
        return exact if rest is None else embedded_errors(y, predictive, rest).joined(exact)
    gammas = rbf_gammas(kernel) if y.ndim == 1 else None
    if gammas is None and y.ndim == 1 and kernel.is_stationary and few_counts(y, predictive) is not None:
        return _by_features(y, predictive, output_features(kernel, y, predictive))
    if gammas is not None and frequency_count(gammas, *target_range(y, predictive, _TAILS[0]), _TOLERANCE) <= SHORT:
        return _by_features(y, predictive, output_features(kernel, y, predictive))
    gram = ErrorGram.of(y, predictive, kernel)
    on_line = y.ndim == 1 and is_line_kernel(kernel)
    if gram is not None and _prefers_gram(gram, on_line, is_rbf=gammas is not None):
        return error_coordinates(gram)
    if gammas is not None and (embedded := _by_fourier(gammas, y, predictive, _TAILS[:3], _FEW_WAVES)) is not None:
        return embedded
    by_means = _by_line_means(y, predictive, kernel) if on_line and len(y) <= FACTORED_ROWS else None
    if by_means is not None:
        return by_means
    if on_line:
        embedded = line_errors(y, predictive, kernel)
        if gammas is None or np.mean(_displaced(embedded)) <= _NEGLIGIBLE_MOVE:
            return embedded
        embedded = _by_fourier(gammas, y, predictive, _TAILS, _MANY_WAVES)
        return embedded or _by_features(y, predictive, output_features(kernel, y, predictive))
    embedded = _by_features(y, predictive, output_features(kernel, y, predictive))
    if gram is None:
        return embedded
    missed, whole = gram.missed_share(embedded.delta)
    require_share(missed / whole, len(y), embedded.delta.shape[1])
    return replace(embedded, error=gram.missed_by(embedded.delta))


def _by_line_means(y: Array, predictive: Distribution, kernel: Kernel) -> EmbeddedErrors | None:
    rest, kinked = without_kinks(kernel)
    exact = exact_line_errors(y, predictive, kinked)
    return exact if exact is None or rest is None else exact.joined(embedded_errors(y, predictive, rest))


def _prefers_gram(gram: ErrorGram, on_line: bool, *, is_rbf: bool) -> bool:
    if not on_line or is_rbf:
        return gram.takes_at_most()
    return len(gram) <= FACTORED_ROWS and gram.takes_at_most(_SCALAR_PAIRS)


def _displaced(embedded: EmbeddedErrors) -> Array:
    displaced = embedded.error.displaced
    return np.zeros(1) if displaced is None else displaced


def embedded_targets(kernel: Kernel, y: Array) -> tuple[Array, float]:
    """psi (n, r) with psi psi' = [k_Y(y_i, y_j)] for targets y (n,) or (n, q), and the largest error of an entry."""
    is_scalar_rbf = y.ndim == 1 and rbf_gammas(kernel) is not None
    if len(y) <= FACTORED_ROWS and not is_scalar_rbf:
        psi, missed = point_coordinates(kernel, y)
        return psi, float(np.max(missed, initial=0.0))
    features = output_features(kernel, y)
    return features(y), features.error


def shared_features(kernel: Kernel, y: Array, predictive: Distribution) -> FeatureMap | None:
    """Features that serve any draws of the models; None where each set of draws needs coordinates of its own."""
    gammas = rbf_gammas(kernel) if y.ndim == 1 else None
    return None if gammas is None else output_features(kernel, y, predictive)


def _by_fourier(
    gammas: Array, y: Array, predictive: Distribution, tails: tuple[float, ...], waves: int
) -> EmbeddedErrors | None:
    """Fourier features that leave out the least of ``tails`` that takes at most so many waves; None if none does."""
    for tail in tails:
        low, high = target_range(y, predictive, tail)
        count = frequency_count(gammas, low, high, _TOLERANCE)
        if count <= SHORT:
            return _by_features(y, predictive, fourier_features(gammas, low, high, _TOLERANCE))
        if count <= _LONG and count * len(y) <= waves:
            return projected_errors(y, predictive, all_frequencies(gammas, low, high, _TOLERANCE))
    return None


def _by_features(y: Array, predictive: Distribution, features: FeatureMap) -> EmbeddedErrors:
    delta, squared_means = np.empty((len(y), features.rank)), np.empty(len(y))

    def fill(rows: slice) -> None:
        mean = features.expectation(predictive[rows])
        delta[rows] = features(y[rows]) - mean
        squared_means[rows] = np.einsum("ij,ij->i", mean, mean)

    map_on_threads(fill, row_slices(len(y), _CHUNK_ROWS))
    return EmbeddedErrors(delta, squared_means, features.missed(y, predictive))


def _require_no_overflow(y: Array, embedded: EmbeddedErrors, spread: Array) -> None:
    finite = np.isfinite(embedded.delta).all(axis=1) & np.isfinite(spread)
    if not finite.all():
        row = int(np.argmin(finite))
        raise InvalidInputError(
            f"y: the output kernel overflows, or its expectation is infinite, at {int(np.sum(~finite))} of {len(y)} "
            f"rows, the first is row {row} "
            f"(target {y[row]}); rescale targets and predictions to a spread near 1, or use a stationary output kernel "
            "(RBF)"
        )


def _with_sampling_noise(model: Distribution, spread: Array, delta: Array) -> Array:
    if not isinstance(model, Samples):
        return spread
    draws = model.values.shape[1]
    if draws == 1:
        return np.asarray(np.einsum("ij,ij->i", delta, delta))
    # spread underestimates the variance by (l - 1)/l, and y - mean of l draws has (1 + 1/l) times the variance.
    return np.asarray(spread * (draws + 1) / (draws - 1))


def output_kernel_or_marginal(kernel: Kernel | None, y: Array) -> Kernel:
    """k_Y where it is given, else ``marginal_kernel(y)``.

    Raises:
        InvalidInputError: it is no kernel, or as ``marginal_kernel``.
    """
    return marginal_kernel(y) if kernel is None else require_kernel(kernel, "output_kernel")


def marginal_kernel(y: Array) -> Kernel:
    """The papers' output kernel: RBF with gamma = 1 / (2 var(y)), ddof 1.

    Raises:
        InvalidInputError: constant targets, or one row.
    """
    return RBF(variance_gamma(y))
