"""Features of polynomial kernels of one target, which are exact and few, and of sums with other kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.moments import coefficients
from congruence.kernels.kernel_functions import Kernel, Polynomial, Sum
from congruence.kernels.mean_embeddings.base import FeatureError, FeatureMap

_ROUNDING = 16.0 * float(np.finfo(np.float64).eps)


def without_polynomials(kernel: Kernel) -> tuple[Kernel | None, tuple[Polynomial, ...]]:
    """The terms of a kernel that are no polynomials, as one kernel, and those that are."""
    polynomials = tuple(term for term in kernel.terms if isinstance(term, Polynomial))
    rest = tuple(term for term in kernel.terms if not isinstance(term, Polynomial))
    return (Sum(rest) if rest else None), polynomials


@dataclass(frozen=True)
class MonomialFeatures(FeatureMap):
    """psi(y) = (a_q^(1/2) y^q)_q for k(y, y') = sum_q a_q (y y')^q; E psi(Y) are the law's moments."""

    weights: Array
    error: float = field(repr=False)

    @classmethod
    def of(cls, polynomials: Sequence[Polynomial], y: Array) -> MonomialFeatures:
        """Features of a sum of polynomial kernels, with the rounding at targets y."""
        weights = np.zeros(1 + max(polynomial.degree for polynomial in polynomials))
        for polynomial in polynomials:
            weights[: polynomial.degree + 1] += coefficients(polynomial)
        largest = float(np.max(np.abs(y), initial=0.0))
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

    def missed(self, y: Array, distribution: Distribution) -> FeatureError:  # noqa: ARG002
        """See FeatureMap: rounding."""
        return FeatureError(np.full(len(y), 4.0 * self.error))


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

    def __call__(self, y: Any) -> Array:
        return np.concatenate([self.first(y), self.second(y)], axis=-1)

    def expectation(self, distribution: Distribution) -> Array:
        return np.concatenate([self.first.expectation(distribution), self.second.expectation(distribution)], axis=-1)

    def missed(self, y: Array, distribution: Distribution) -> FeatureError:
        return self.first.missed(y, distribution).joined(self.second.missed(y, distribution))
