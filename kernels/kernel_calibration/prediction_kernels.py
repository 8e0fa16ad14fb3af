"""Kernels k_P on predictive distributions: exp(-scale d^exponent) for a Hilbertian metric d.

A metric is Hilbertian if d(p, p') = |phi(p) - phi(p')| for coordinates phi in a Euclidean space; then the kernel is
positive definite for every scale > 0 and 0 < exponent <= 2 (Widmann et al. 2021, appendix D). So a kernel here is two
steps: ``coordinates`` (once per row, the only step that knows the family) and a call on two blocks of coordinates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.spatial.distance import cdist

from congruence.kernels.arrays import Array, array_namespace
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration.quantile_embedding import wasserstein_coordinates
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.feature_maps import output_features
from congruence.kernels.streams import stream

_DIRECT_COLUMNS = 16
_SCALE_ROWS = 1000


class PredictionKernel(ABC):
    """k_P with k_P(p, p) = 1: ``kernel(a, b)`` for coordinates a (n, e) and b (m, e) is the block [k_P(p_i, p'_j)]."""

    @abstractmethod
    def coordinates(self, parts: Sequence[Distribution], output_kernel: Kernel) -> list[Array]:
        """phi of the rows of each part, in one common system of coordinates.

        Args:
            parts: predictive distributions; more than one for test locations.
            output_kernel: k_Y of the calibration error.
        """

    @abstractmethod
    def __call__(self, a: Any, b: Any) -> Any:
        """The block of k_P for two blocks of coordinates."""

    def fitted(self, coordinates: Array) -> PredictionKernel:  # noqa: ARG002
        """The kernel with what it reads off the data filled in."""
        return self

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Name and parameters, for reports and digests."""


@dataclass(frozen=True)
class HilbertianKernel(PredictionKernel):
    """exp(-scale d^exponent) with d the Euclidean distance of the coordinates that a subclass gives.

    Attributes:
        scale: lambda of the paper; None is 1 / median(d)^exponent over random pairs of predictions.
        exponent: nu of the paper, in (0, 2].
    """

    scale: float | None = 1.0
    exponent: float = 1.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.scale is not None and not (self.scale > 0 and np.isfinite(self.scale)):
            raise InvalidInputError(
                f"{name}: scale is {self.scale}, expected a positive number, or None for the median"
            )
        if not 0 < self.exponent <= 2:
            raise InvalidInputError(
                f"{name}: exponent is {self.exponent}, expected a number in (0, 2]: beyond 2 it is no kernel"
            )

    def __call__(self, a: Any, b: Any) -> Any:
        if self.scale is None:
            raise InvalidInputError(f"{type(self).__name__}: scale=None must be fitted to coordinates first")
        xp = array_namespace(a, b)
        block = self.distances(a, b)
        if self.exponent != 1:
            block = xp.power(block, self.exponent, out=block)
        block *= -self.scale
        return xp.exp(block, out=block)

    def distances(self, a: Any, b: Any) -> Any:
        """d for two blocks of coordinates, (n, m)."""
        return pairwise_distances(a, b)

    def fitted(self, coordinates: Array) -> Self:
        """See PredictionKernel.

        Raises:
            InvalidInputError: scale is None and most predictions are equal.
        """
        if self.scale is not None:
            return self
        rows = coordinates
        if len(rows) > _SCALE_ROWS:
            rows = rows[stream(0, "prediction distances").choice(len(rows), _SCALE_ROWS, replace=False)]
        distances = self.distances(rows, rows)[np.triu_indices(len(rows), k=1)]
        median = float(np.median(distances)) if len(distances) else 0.0
        if not median > 0:
            raise InvalidInputError(
                f"{type(self).__name__}: the median distance between predictions is 0, so scale=None is not defined; "
                "give a scale"
            )
        return replace(self, scale=median**-self.exponent)

    def describe(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, "scale": self.scale, "exponent": self.exponent}


class Wasserstein(HilbertianKernel):
    """exp(-scale W_2^exponent), W_2 the 2-Wasserstein distance of two predictive distributions.

    Closed for normals and Laplace (location and scale are the coordinates). For every other scalar family, mixtures
    included, W_2 is the L2 distance of the quantile functions, hence Hilbertian as well.
    """

    def coordinates(self, parts: Sequence[Distribution], output_kernel: Kernel) -> list[Array]:  # noqa: ARG002
        return wasserstein_coordinates(parts)


@dataclass(frozen=True)
class MaximumMeanDiscrepancy(HilbertianKernel):
    """exp(-scale MMD^exponent), MMD(p, p') = |E psi(Y) - E psi(Y')|: for every family with kernel means.

    Attributes:
        kernel: the kernel on targets behind psi; None is the target kernel of the calibration error.
    """

    kernel: Kernel | None = None

    def coordinates(self, parts: Sequence[Distribution], output_kernel: Kernel) -> list[Array]:
        predictive = concatenated(parts)
        features = output_features(output_kernel if self.kernel is None else self.kernel, predictive.mean(), predictive)
        return [features.expectation(part) for part in parts]

    def describe(self) -> dict[str, Any]:
        kernel = None if self.kernel is None else self.kernel.describe()
        return {**super().describe(), "kernel": kernel}


def parameter_embedding(predictive: Distribution) -> Array:
    """The parameters of each row side by side, (n, e)."""
    return np.column_stack([np.reshape(values, (len(predictive), -1)) for values in predictive.parameters().values()])


def moment_embedding(predictive: Distribution) -> Array:
    """Mean and standard deviation of each row, (n, 2) or (n, 2q): it tells families apart by nothing else."""
    return np.column_stack([predictive.mean(), predictive.std()])


@dataclass(frozen=True)
class HilbertianEmbedding(HilbertianKernel):
    """exp(-scale |phi(p) - phi(p')|^exponent) for any injective map phi of the predictions into (n, e) numbers.

    Attributes:
        embedding: phi; the parameters by default.
    """

    embedding: Callable[[Distribution], Array] = parameter_embedding

    def coordinates(self, parts: Sequence[Distribution], output_kernel: Kernel) -> list[Array]:  # noqa: ARG002
        return [np.asarray(self.embedding(part), dtype=np.float64) for part in parts]

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "embedding": getattr(self.embedding, "__qualname__", repr(self.embedding))}


def concatenated(parts: Sequence[Distribution]) -> Distribution:
    """The rows of all parts.

    Raises:
        InvalidInputError: the parts are of different families.
    """
    if len(parts) == 1:
        return parts[0]
    families = sorted({type(part).__name__ for part in parts})
    if len(families) > 1:
        raise InvalidInputError(
            f"predictions and test predictions are of different families ({', '.join(families)}); give both as one"
        )
    return type(parts[0]).concatenate(parts)


def pairwise_distances(a: Any, b: Any) -> Any:
    """|a_i - b_j|, shape (n, m); by direct differences for few columns, so that near rows lose no digits."""
    xp = array_namespace(a, b)
    if xp is np and a.shape[1] <= _DIRECT_COLUMNS:
        return cdist(a, b)
    if a.shape[1] <= _DIRECT_COLUMNS:
        block = xp.zeros((a.shape[0], b.shape[0]), dtype=xp.result_type(a, b))
        for column in range(a.shape[1]):
            block += (a[:, column, None] - b[None, :, column]) ** 2
    else:
        block = a @ b.T
        if a is b:
            # Sums in one and the same order: between near rows their rounding cancels.
            index = xp.arange(block.shape[0])
            left = right = block[index, index]
        else:
            left, right = (a * a).sum(axis=1), (b * b).sum(axis=1)
        block *= -2
        block += left[:, None]
        block += right[None, :]
        block = xp.maximum(block, 0, out=block)
    return xp.sqrt(block, out=block)
