"""The target side of congruence: Delta_i = psi(y_i) - E psi(Y_i) with Y_i ~ f(x_i), and its variance if f is the truth.

Everything about a model is in Delta (n, r); everything about the inputs is in the Gram operator. The kernel calibration
error reads the same Delta.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.distributions.quadrature import probability_rule
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.feature_maps import FeatureMap, output_features
from congruence.kernels.functions import RBF, Kernel, Laplacian, Matern, Sum, variance_gamma
from congruence.kernels.streams import stream
from congruence.kernels.threads import available_threads, map_on_threads

_CHUNK_ROWS = 4096


@dataclass(frozen=True)
class TargetErrors:
    """Delta and what congruence would make of it.

    Attributes:
        delta: Delta, (n, r).
        variance: v_i = E |Delta_i|^2 if y_i ~ f(x_i): E k_Y(Y, Y) - |E psi(Y)|^2, with the Monte-Carlo term of finite
            samples, (n,).
        feature_error: bound on the error of k_Y that the features make.
        sampling_variance: the part of the variance that is the Monte-Carlo error of finite samples, (n,); None if none.
    """

    delta: Array = field(repr=False)
    variance: Array = field(repr=False)
    feature_error: float
    sampling_variance: Array | None = field(default=None, repr=False)


def target_errors(
    y: Array, predictive: Distribution, kernel: Kernel, *, features: FeatureMap | None = None
) -> TargetErrors:
    """Delta_i and v_i for targets y (n,) or (n, q) and n predictive distributions.

    ``Samples`` count as l exchangeable draws from the model's distribution, as in the papers: the Monte-Carlo error of
    their mean is part of v. One draw per point leaves v to be read off Delta itself, which is unbiased if f is true.

    Raises:
        InvalidInputError: lengths or dimensions differ.
    """
    y = require_targets(y, "y")
    if len(predictive) != len(y):
        raise InvalidInputError(
            f"predictive: {len(predictive)} distributions for {len(y)} targets; give one distribution per row of y"
        )
    require_dimension(predictive, y)
    features = output_features(kernel, y, predictive) if features is None else features
    delta, variance = np.empty((len(y), features.rank)), np.empty(len(y))

    def fill(start: int) -> None:
        rows = slice(start, start + _CHUNK_ROWS)
        model = predictive[rows]
        mean = model.kernel_mean(features)
        delta[rows] = features(y[rows]) - mean
        spread = np.maximum(expected_diagonal(model, kernel) - np.einsum("ij,ij->i", mean, mean), 0.0)
        variance[rows] = _with_sampling_noise(model, spread, delta[rows])

    starts = range(0, len(y), _CHUNK_ROWS)
    map_on_threads(fill, starts, min(len(starts), available_threads()))
    # Of a variance (1 + 1/l) s, the mean of l draws gives s/l.
    chance = variance / (predictive.values.shape[1] + 1) if isinstance(predictive, Samples) else None
    return TargetErrors(delta, variance, features.error, chance)


def _with_sampling_noise(model: Distribution, spread: Array, delta: Array) -> Array:
    if not isinstance(model, Samples):
        return spread
    draws = model.values.shape[1]
    if draws == 1:
        return np.asarray(np.einsum("ij,ij->i", delta, delta))
    # spread underestimates the variance by (l - 1)/l, and y - mean of l draws has (1 + 1/l) times the variance.
    return np.asarray(spread * (draws + 1) / (draws - 1))


def expected_diagonal(model: Distribution, kernel: Kernel) -> Array:
    """E k_Y(Y_i, Y_i), (n,): constant for stationary kernels, else by quadrature (scalar) or 256 draws (vectors)."""
    if _is_stationary(kernel):
        return np.full(len(model), float(kernel.diagonal(np.zeros(1))[0]))
    if np.ndim(model.mean()) == 2:
        draws = model.sample(256, seed=stream(0, "expected diagonal"))
        return np.asarray(kernel.diagonal(draws.reshape(-1, draws.shape[-1])).reshape(len(model), -1).mean(axis=1))
    p, w = probability_rule()
    values = model.quantile(p[None, :])
    return np.asarray(kernel.diagonal(values.ravel()).reshape(values.shape) @ w)


def _is_stationary(kernel: Kernel) -> bool:
    parts = kernel.parts if isinstance(kernel, Sum) else (kernel,)
    return all(isinstance(part, (RBF, Laplacian, Matern)) for part in parts)


def marginal_kernel(y: Array) -> Kernel:
    """The papers' output kernel: RBF with gamma = 1 / (2 var(y)), ddof 1.

    Raises:
        InvalidInputError: constant targets, or one row.
    """
    return RBF(variance_gamma(y))
