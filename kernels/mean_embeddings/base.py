"""Feature maps of an output kernel, coordinates of the target errors, and what these leave out.

Let H be the Gram matrix of the errors D_i = k_Y(y_i, .) - E k_Y(Y_i, .) in the output RKHS, H_ij = <D_i, D_j>, and
Delta (n, r) their coordinates. CCE(x)^2 = a(x)' H a(x), the computed one is a' Delta Delta' a, and |a(x)|^2 is at most
k(x, x) / (4 n lambda). Two kinds of error enter differently: what an orthogonal projection (or an error of k_Y itself)
leaves out changes the square, an error of D_i itself changes the norm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.kernels.arrays import Array

if TYPE_CHECKING:
    from congruence.kernels.distributions.base import Distribution


@dataclass(frozen=True)
class FeatureError:
    """H~ - Delta Delta' = E + E' with |E_ij| <= sqrt(rows_i rows_j), ||E'|| <= shared, where H~ is of errors D~ near D.

    Attributes:
        rows: what is missed of each row; for orthogonal projections, |D_i|^2 - |Delta_i|^2, (n,).
        shared: bound on the spectral norm of the rest.
        displaced: |D_i - D~_i|^2, (n,); None where D~ is D.
        kind: ``bound`` where all are proven (up to rounding, and Simpson's rule on distribution functions), ``sampled``
            where they are read off random rows or draws.
    """

    rows: Array = field(repr=False)
    shared: float = 0.0
    displaced: Array | None = field(default=None, repr=False)
    kind: str = "bound"

    @property
    def norm(self) -> float:
        """Bound on the spectral norm ||H~ - Delta Delta'||."""
        return float(np.sum(self.rows)) + self.shared

    def bound(self, values: Array, kernel_maximum: float, shift: float) -> float:
        """Bound on |computed - exact| CCE at points where at least ``values`` (m,) were computed.

        ``kernel_maximum``: of k(x, x); ``shift``: n lambda.
        """
        weight = kernel_maximum / (4.0 * shift)  # of |a(x)|^2
        squared = weight * self.norm
        displaced = 0.0 if self.displaced is None else float(np.sqrt(weight * np.sum(self.displaced)))
        smallest = float(np.min(values, initial=np.inf))
        return displaced + min(float(np.sqrt(squared)), squared / max(smallest, np.finfo(np.float64).tiny))

    def joined(self, other: FeatureError) -> FeatureError:
        """The error where these coordinates and others, of another term of the kernel, stand side by side."""
        displaced = [error.displaced for error in (self, other) if error.displaced is not None]
        kind = "sampled" if "sampled" in (self.kind, other.kind) else "bound"
        shared = self.shared + other.shared
        return FeatureError(self.rows + other.rows, shared, np.sum(displaced, axis=0) if displaced else None, kind)

    def weighted(self, rows: Array, roots: Array) -> FeatureError:
        """The error of diag(roots) Delta[rows]."""
        largest = float(np.max(roots, initial=0.0)) ** 2
        displaced = None if self.displaced is None else roots**2 * self.displaced[rows]
        return FeatureError(roots**2 * self.rows[rows], largest * self.shared, displaced, self.kind)


@dataclass(frozen=True)
class EmbeddedErrors:
    """The errors D_i of n rows in coordinates.

    Attributes:
        delta: Delta, (n, r).
        squared_means: |E k_Y(Y_i, .)|^2, (n,).
        error: what the coordinates miss.
    """

    delta: Array = field(repr=False)
    squared_means: Array = field(repr=False)
    error: FeatureError

    def joined(self, other: EmbeddedErrors) -> EmbeddedErrors:
        """Coordinates for the sum of two kernels."""
        delta = np.concatenate([self.delta, other.delta], axis=1)
        return EmbeddedErrors(delta, self.squared_means + other.squared_means, self.error.joined(other.error))


class FeatureMap(ABC):
    """psi: targets -> R^r. ``error`` bounds |k(y, y') - psi(y).psi(y')| on the range it was built for."""

    error: float

    @property
    @abstractmethod
    def rank(self) -> int:
        """Number of features r."""

    @abstractmethod
    def __call__(self, y: Any) -> Array:
        """psi(y_i), shape (n, r) in float64."""

    @abstractmethod
    def expectation(self, distribution: Distribution) -> Array:
        """E psi(Y_i) for Y_i ~ distribution[i], shape (n, r) in float64."""

    @abstractmethod
    def missed(self, y: Array, distribution: Distribution) -> FeatureError:
        """What psi(y_i) - E psi(Y_i) leaves out of the errors of targets y (n,) or (n, q)."""
