"""Point forecasts as distributions: all mass on one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions import moments
from congruence.kernels.distributions.base import Distribution, Seed, align, align_levels, refuse
from congruence.kernels.distributions.vectors import as_vectors
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel


@dataclass(frozen=True)
class Deterministic(Distribution):
    """All mass on ``value`` (n,), or (n, q) for vector targets. Its CRPS is the absolute error; it has no density."""

    value: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", require_targets(np.atleast_1d(self.value), "Deterministic.value"))

    @property
    def dimension(self) -> int:
        return 1 if self.value.ndim == 1 else int(self.value.shape[1])

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, rows: Any) -> Self:
        chosen = self.value[rows]
        return type(self)(chosen[None] if chosen.ndim < self.value.ndim else chosen)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        return cls(np.concatenate([part.value for part in parts]))

    def has_density(self) -> bool:
        return False

    def log_prob(self, y: Any) -> NoReturn:  # noqa: ARG002
        """Raises InvalidInputError: a point forecast has no density."""
        raise InvalidInputError(
            "Deterministic.log_prob: a point forecast has no density, so no log score; use crps (here the absolute "
            "error), or let the model return a distribution"
        )

    def cdf(self, y: Any) -> Array:
        value, y = self._scalars("cdf", y)
        return np.asarray(value <= y, dtype=np.float64)

    def cdf_left(self, y: Any) -> Array:
        value, y = self._scalars("cdf_left", y)
        return np.asarray(value < y, dtype=np.float64)

    def quantile(self, q: Any) -> Array:
        """See Distribution: the value at every level."""
        value, q = self._scalars("quantile", q)
        align_levels(q, len(self))
        return np.broadcast_to(value, q.shape).copy()

    def _scalars(self, what: str, argument: Any) -> tuple[Array, Array]:
        if self.value.ndim == 2:
            refuse("Deterministic", what, self.dimension)
        argument, columns = align(argument, len(self))
        return (self.value[:, None] if columns else self.value), argument

    def mean(self) -> Array:
        return self.value.copy()

    def std(self) -> Array:
        """See Distribution: 0."""
        return np.zeros_like(self.value)

    def sample(self, size: int, seed: Seed = 0) -> Array:  # noqa: ARG002
        """The value ``size`` times: (n, size) or (n, size, q)."""
        return np.repeat(self.value[:, None], size, axis=1)

    def crps(self, y: Any) -> Array:
        """See Distribution: |y - value|, the Euclidean distance for vectors."""
        if self.value.ndim == 2:
            return np.asarray(np.linalg.norm(as_vectors(y, len(self), self.dimension) - self.value, axis=1))
        value, y = self._scalars("crps", y)
        return np.asarray(np.abs(y - value))

    def characteristic_function(self, t: Array) -> Array:
        """exp(i t value)."""
        if self.value.ndim == 2:
            refuse("Deterministic", "characteristic_function", self.dimension)
        return np.asarray(np.exp(1j * np.multiply.outer(self.value, t)))

    def raw_moments(self, order: int) -> Array:
        """See Distribution: mean powers of the values."""
        return moments.of_values(self.value[:, None], order)

    def _expected_diagonal(self, kernel: Kernel) -> Array:
        values = self.value[:, None]
        diagonal = np.asarray(kernel.diagonal(values.reshape(-1, *values.shape[2:])))
        return np.asarray(diagonal.reshape(values.shape[:2]).mean(axis=1))

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution: the kernel itself."""
        return np.asarray(kernel(self.value, nodes))
