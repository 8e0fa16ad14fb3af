"""Kernels k_P on predictive distributions: exp(-scale d^exponent) for a Hilbertian metric d.

A metric is Hilbertian if d(p, p') = |phi(p) - phi(p')| for coordinates phi in a Euclidean space; then the kernel is
positive definite for every scale > 0 and 0 < exponent <= 2 (Widmann et al. 2021, appendix D). So a kernel here is two
steps: ``coordinates`` (once per row, the only step that knows the family) and a call on two blocks of coordinates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import ndtr

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions import (
    Distribution,
    Laplace,
    Logistic,
    MultivariateNormal,
    Normal,
)
from congruence.kernels.engine.targets import output_features
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.rng import stream

_DIRECT_COLUMNS = 16
_SCALE_ROWS = 1000
_CHUNK_ROWS = 16_384
_DROPPED_ENERGY = 1e-13  # of second moments, relative to the largest: their rounding is some 1e-15
_SCORES = np.linspace(-5.0, 5.0, 64)  # normal scores of the quantiles: beyond lies 6e-7 of the mass
_LEVELS = ndtr(_SCORES)
_SHARES = np.exp(-0.5 * _SCORES**2) / np.exp(-0.5 * _SCORES**2).sum()


class EqualPredictionsError(InvalidInputError):
    """Most predictions are equal, as far as a kernel knows them: their median distance is no scale."""


@dataclass(frozen=True)
class PredictionKernel(ABC):
    """exp(-scale d^exponent) with d the Euclidean distance of the coordinates that a subclass gives; k_P(p, p) = 1.

    ``kernel(a, b)`` for coordinates a (n, e) and b (m, e) is the block [k_P(p_i, p'_j)], (n, m).

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

    @abstractmethod
    def coordinates(self, parts: Sequence[Distribution], output_kernel: Kernel) -> list[Array]:
        """Return phi of the rows of each part, in one common system of coordinates.

        Args:
            parts: predictive distributions; more than one for test locations.
            output_kernel: k_Y of the calibration error.
        """

    def distances(self, a: Array, b: Array) -> Array:
        """Return d for two blocks of coordinates, (n, m)."""
        if a.shape[1] <= _DIRECT_COLUMNS:
            return np.asarray(cdist(a, b))
        squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)
        products = a @ b.T
        products *= 2.0
        squares -= products
        return np.asarray(np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares))

    def __call__(self, a: Array, b: Array) -> Array:
        if self.scale is None:
            raise InvalidInputError(f"{type(self).__name__}: scale=None must be fitted to coordinates first")
        return np.asarray(np.exp(-self.scale * self.distances(a, b) ** self.exponent))

    def fitted(self, coordinates: Array) -> Self:
        """Return the kernel with the scale filled in that it reads off the data.

        Raises:
            EqualPredictionsError: scale is None and most predictions are equal.
        """
        if self.scale is not None:
            return self
        rows = coordinates
        if len(rows) > _SCALE_ROWS:
            rows = rows[stream(0, "prediction distances").choice(len(rows), _SCALE_ROWS, replace=False)]
        distances = self.distances(rows, rows)[np.triu_indices(len(rows), k=1)]
        median = float(np.median(distances)) if len(distances) else 0.0
        if not median > 0:
            raise EqualPredictionsError(
                f"{type(self).__name__}: the median distance between predictions is 0, so scale=None is not defined; "
                "give a scale"
            )
        return replace(self, scale=median**-self.exponent)


class Wasserstein(PredictionKernel):
    """exp(-scale W_2^exponent), W_2 the 2-Wasserstein distance of two predictive distributions.

    Closed for normals, Laplace and logistic distributions (location and scale are the coordinates), and for samples of
    one size (in order). For every other scalar family W_2 is the L2 distance of the quantile functions, hence
    Hilbertian as well: here at 64 levels evenly spaced in normal scores, which is exact to some 1e-4 of smooth families
    and to a step's width of discrete ones.
    """

    def coordinates(self, parts: Sequence[Distribution], output_kernel: Kernel) -> list[Array]:  # noqa: ARG002
        """Return coordinates as the base says.

        Raises:
            InvalidInputError: a row has no finite variance, or the family is vector-valued without a closed form.
        """
        families = {type(part) for part in parts}
        ratio = _STANDARD_DEVIATIONS.get(next(iter(families))) if len(families) == 1 else None
        if ratio is not None:
            stated = [part.parameters() for part in parts]
            return [np.column_stack([values["loc"], ratio * values["scale"]]) for values in stated]
        advice = "; use MaximumMeanDiscrepancy() as the kernel on predictions"
        for part in parts:
            name, std = type(part).__name__, part.std()
            if part.dimension > 1:
                raise InvalidInputError(
                    f"{name}: the Wasserstein distance of these vector-valued predictions has no closed form{advice}"
                )
            if not np.all(np.isfinite(std)):
                row = int(np.argmin(np.isfinite(std)))
                raise InvalidInputError(
                    f"{name}: row {row} has the standard deviation {std[row]}, so its 2-Wasserstein distance to others "
                    f"is not defined{advice}"
                )
        members = [part.draws for part in parts if part.draws is not None]
        if len(members) == len(parts) and len({values.shape[1] for values in members}) == 1:
            return _compressed([np.sort(values, axis=1) / np.sqrt(values.shape[1]) for values in members])
        chunks = [
            [part[rows].quantile(_LEVELS[None, :]) for rows in row_slices(len(part), _CHUNK_ROWS)] for part in parts
        ]
        return _compressed([np.concatenate(of_part) * np.sqrt(_SHARES) for of_part in chunks])


# The standard deviation at scale 1 of families that are closed under location and scale.
_STANDARD_DEVIATIONS: dict[type[Distribution], float] = {
    Normal: 1.0,
    MultivariateNormal: 1.0,  # with independent components
    Laplace: 2.0**0.5,
    Logistic: np.pi / 3.0**0.5,
}


def _compressed(parts: list[Array]) -> list[Array]:
    """Rotate and cut: rows of quantiles span a handful of directions, and distances need no others."""
    rows = np.concatenate(parts)
    center = rows.mean(axis=0)
    moment = (rows - center).T @ (rows - center)
    energy, axes = np.linalg.eigh(moment)
    kept = axes[:, energy > _DROPPED_ENERGY * energy[-1]] if energy[-1] > 0 else axes[:, -1:]
    return [(part - center) @ kept for part in parts]


@dataclass(frozen=True)
class MaximumMeanDiscrepancy(PredictionKernel):
    """exp(-scale MMD^exponent), MMD(p, p') = |E psi(Y) - E psi(Y')|: for every family with kernel means.

    Attributes:
        kernel: the kernel on targets behind psi; None is the target kernel of the calibration error.
    """

    kernel: Kernel | None = None

    def coordinates(self, parts: Sequence[Distribution], output_kernel: Kernel) -> list[Array]:
        """Return coordinates as the base says.

        Raises:
            InvalidInputError: the parts are of different families.
        """
        families = sorted({type(part).__name__ for part in parts})
        if len(families) > 1:
            raise InvalidInputError(
                f"predictions and test predictions are of different families ({', '.join(families)}); give both as one"
            )
        predictive = parts[0] if len(parts) == 1 else type(parts[0]).concatenate(parts)
        features = output_features(output_kernel if self.kernel is None else self.kernel, predictive.mean(), predictive)
        return [features.expectation(part) for part in parts]
