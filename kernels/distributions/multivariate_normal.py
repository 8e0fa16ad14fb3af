"""The normal distribution of vector targets with independent components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions.arguments import as_numbers
from congruence.kernels.distributions.base import Distribution, Seed, Uniforms, refuse
from congruence.kernels.distributions.continuous import Normal
from congruence.kernels.distributions.gaussian_expectations import (
    gaussian_expectation,
    has_gaussian_expectation,
    polynomial_diagonal,
)
from congruence.kernels.distributions.point_masses import as_vectors, energy_score, mean_distance
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel, Polynomial
from congruence.kernels.streams import stream

_POINTS = 256
_CLOSED_FORM_ENTRIES = 250_000  # a block and its scratch stay in a core's cache


@dataclass(frozen=True, repr=False)
class MultivariateNormal(Distribution):
    """N(loc, diag(scale^2)) on q targets: ``loc`` and ``scale`` (n, q).

    ``cdf`` is the joint one. The energy score, and kernels other than RBF, Laplacian, Matern, polynomials and their
    sums, use 256 fixed quasi-random points. With one target, (n, 1), every method is that of the scalar family
    ``Normal``, shapes included.
    """

    loc: Array
    scale: Array

    def __post_init__(self) -> None:
        for name in ("loc", "scale"):
            self._hold(**{name: as_numbers(getattr(self, name), f"MultivariateNormal.{name}", "(n, q)", 2)})
        if self.loc.shape != self.scale.shape:
            raise InvalidInputError(
                f"MultivariateNormal: loc has shape {self.loc.shape}, scale {self.scale.shape}; they must agree"
            )
        if not np.all(self.scale > 0):
            row, column = (int(i) for i in np.argwhere(self.scale <= 0)[0])
            raise InvalidInputError(
                f"MultivariateNormal.scale: row {row}, target {column} is {self.scale[row, column]:g}, expected a "
                "positive standard deviation; check the model's output column"
            )

    @cached_property
    def _scalar(self) -> Normal | None:
        """The distribution of the only target, if there is one only."""
        return Normal(self.loc[:, 0], self.scale[:, 0]) if self.dimension == 1 else None

    @property
    def dimension(self) -> int:
        return int(self.loc.shape[1])

    def __len__(self) -> int:
        return len(self.loc)

    def __getitem__(self, rows: Any) -> Self:
        return type(self)(*(values[rows].reshape(-1, self.dimension) for values in (self.loc, self.scale)))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        return cls(np.concatenate([part.loc for part in parts]), np.concatenate([part.scale for part in parts]))

    def _standardize(self, y: Any) -> Array:
        return np.asarray((as_vectors(y, len(self), self.dimension) - self.loc) / self.scale)

    def log_prob(self, y: Any) -> Array:
        """Log density at y (n, q), shape (n,)."""
        if self._scalar is not None:
            return self._scalar.log_prob(y)
        z = self._standardize(y)
        return np.asarray(np.sum(-0.5 * z * z - np.log(self.scale) - 0.5 * np.log(2.0 * np.pi), axis=1))

    def cdf(self, y: Any) -> Array:
        """P(every component is at most that of y), for y (n, q), shape (n,)."""
        if self._scalar is not None:
            return self._scalar.cdf(y)
        return np.asarray(np.prod(scipy.special.ndtr(self._standardize(y)), axis=1))

    def quantile(self, q: Any) -> Array:
        """Raises InvalidInputError for q > 1: vectors have no order."""
        if self._scalar is None:
            refuse("MultivariateNormal", "quantile", self.dimension)
        return self._scalar.quantile(q)

    def mean(self) -> Array:
        """See Distribution, (n, q)."""
        if self._scalar is not None:
            return self._scalar.mean()
        return self.loc.copy()

    def std(self) -> Array:
        """See Distribution, (n, q)."""
        if self._scalar is not None:
            return self._scalar.std()
        return self.scale.copy()

    def sample(self, size: int, seed: Seed = 0) -> Array:
        """``size`` draws per row, (n, size, q)."""
        if self._scalar is not None:
            return self._scalar.sample(size, seed)
        noise = stream(seed, "samples").standard_normal((len(self), size, self.dimension))
        return np.asarray(self.loc[:, None, :] + self.scale[:, None, :] * noise)

    def sample_by(self, uniforms: Uniforms, size: int) -> Array:
        """See Distribution, (n, size, q)."""
        if self._scalar is not None:
            return self._scalar.sample_by(uniforms, size)
        noise = scipy.special.ndtri(uniforms(size * self.dimension, "")).reshape(len(self), size, self.dimension)
        return np.asarray(self.loc[:, None, :] + self.scale[:, None, :] * noise)

    def whitened(self, y: Array) -> tuple[Array, Distribution]:
        """See Distribution."""
        z = (np.reshape(y, self.loc.shape) - self.loc) / self.scale
        return z, MultivariateNormal(np.zeros_like(z), np.ones_like(z))

    def marginal(self, column: int) -> Normal:
        """See Distribution."""
        return Normal(self.loc[:, column], self.scale[:, column])

    def crps(self, y: Any) -> Array:
        """The energy score of y (n, q), shape (n,)."""
        if self._scalar is not None:
            return self._scalar.crps(y)
        targets = as_vectors(y, len(self), self.dimension)
        return energy_score(self._points(), targets, self._apart)

    @cached_property
    def _apart(self) -> Array:
        """Of two draws of a row, (n,): the same for all targets, and by far the longest part of their scores."""
        return mean_distance(self._points(), fair=False)

    def _points(self) -> Array:
        return np.asarray(self.loc[:, None, :] + self.scale[:, None, :] * normal_points(_POINTS, self.dimension))

    def characteristic_function(self, t: Array) -> Array:
        """Raises InvalidInputError for q > 1: features of vector targets use ``kernel_expectation``."""
        if self._scalar is None:
            refuse("MultivariateNormal", "characteristic_function", self.dimension)
        return self._scalar.characteristic_function(t)

    def raw_moments(self, order: int) -> Array:
        """Raises InvalidInputError for q > 1."""
        if self._scalar is None:
            refuse("MultivariateNormal", "raw_moments", self.dimension)
        return self._scalar.raw_moments(order)

    def _expected_diagonal(self, kernel: Kernel) -> Array:
        """See Distribution: closed form of polynomials, else over fixed points."""
        if self._scalar is not None:
            return self._scalar._expected_diagonal(kernel)
        if isinstance(kernel, Polynomial):
            return polynomial_diagonal(kernel, self.loc, self.scale**2)
        points = self._points()
        return np.asarray(kernel.diagonal(points.reshape(-1, self.dimension)).reshape(points.shape[:2]).mean(axis=1))

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution, nodes (r, q): Gaussian integrals where they have a closed form, else over fixed points."""
        if self._scalar is not None:
            return self._scalar.kernel_expectation(kernel, nodes)
        if has_gaussian_expectation(kernel):
            result = np.empty((len(self), len(nodes)))
            for rows in row_slices(len(self), _CLOSED_FORM_ENTRIES // max(1, len(nodes))):
                variance = self.scale[rows] ** 2
                result[rows] = gaussian_expectation(kernel, self.loc[rows], variance, nodes, np.zeros_like(nodes))
            return result
        if len(kernel.terms) > 1:
            return np.asarray(sum(self.kernel_expectation(term, nodes) for term in kernel.terms))
        result = np.empty((len(self), len(nodes)))
        for rows in row_slices(len(self), BLOCK_ENTRIES // (_POINTS * max(1, len(nodes)))):
            points = self[rows]._points()
            gram = np.asarray(kernel(points.reshape(-1, self.dimension), nodes))
            result[rows] = gram.reshape(len(points), _POINTS, -1).mean(axis=1)
        return result


@lru_cache(maxsize=8)
def normal_points(count: int, dimension: int) -> Array:
    """Points (count, dimension) spread like a standard normal distribution: scrambled Sobol points, always the same."""
    from scipy.stats import qmc  # not at the start: every family would load it

    uniform = qmc.Sobol(dimension, scramble=True, rng=stream(0, "Sobol points")).random(count)
    return np.asarray(scipy.special.ndtri(np.clip(uniform, 1e-12, 1.0 - 1e-12)))
