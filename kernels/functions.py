"""Positive-definite kernel functions k(x, x') on inputs and targets, with scikit-learn's parameter names.

A kernel is a frozen value: calling it gives a Gram block, ``diagonal`` gives k(x, x) without building the block, and
``describe`` gives what a protocol digest needs. Blocks live where their inputs live (NumPy or CuPy). Sums and products
of kernels are kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, require_finite, require_targets, to_numpy
from congruence.kernels.errors import InvalidInputError


class Kernel(ABC):
    """k(x, x'): ``kernel(x, z)`` for x (n, d) and z (m, d) is the (n, m) block [k(x_i, z_j)]."""

    @abstractmethod
    def __call__(self, x: Any, z: Any | None = None) -> Any:
        """The block [k(x_i, z_j)] of shape (n, m); z defaults to x."""

    @abstractmethod
    def diagonal(self, x: Any) -> Any:
        """k(x_i, x_i), shape (n,)."""

    def describe(self) -> dict[str, Any]:
        """Name and parameters, for the protocol's digest."""
        return {"kind": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]

    def __add__(self, other: Kernel) -> Kernel:
        return Sum((self, other))

    def __mul__(self, other: Kernel) -> Kernel:
        return Product((self, other))


def _columns(x: Any) -> Any:
    return x[:, None] if x.ndim == 1 else x


def _squared_distances(x: Any, z: Any) -> Any:
    xp = array_namespace(x, z)
    distances = x @ z.T
    distances *= -2
    distances += (x * x).sum(axis=1)[:, None]
    distances += (z * z).sum(axis=1)[None, :]
    # |x|^2 - 2 x.z + |z|^2 cancels for near points: rounding may leave a small negative number there, or, of a point
    # to itself, a small positive one, whose root (Matern 1/2) would be far above rounding.
    xp.maximum(distances, 0, out=distances)
    if z is x:
        xp.fill_diagonal(distances, 0)
    return distances


@dataclass(frozen=True)
class _Stationary(Kernel):
    gamma: float

    def __post_init__(self) -> None:
        if not self.gamma > 0 or not np.isfinite(self.gamma):
            raise InvalidInputError(f"{type(self).__name__}: gamma is {self.gamma}, expected a positive number")

    def diagonal(self, x: Any) -> Any:
        xp = array_namespace(x)
        return xp.ones(x.shape[0], dtype=x.dtype)


class RBF(_Stationary):
    """exp(-gamma |x - x'|^2)."""

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        """See Kernel."""
        x = _columns(x)
        z = x if z is None else _columns(z)
        xp = array_namespace(x, z)
        block = _squared_distances(x, z)
        block *= -self.gamma
        return xp.exp(block, out=block)


class Laplacian(_Stationary):
    """exp(-gamma |x - x'|_1): the true L1 distance, whose square is not positive definite for d > 1."""

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        """See Kernel."""
        x = _columns(x)
        z = x if z is None else _columns(z)
        xp = array_namespace(x, z)
        if xp is np:
            from scipy.spatial.distance import cdist

            block = cdist(x, z, metric="cityblock").astype(np.result_type(x, z), copy=False)
        else:
            block = xp.zeros((x.shape[0], z.shape[0]), dtype=x.dtype)
            for column in range(x.shape[1]):  # one feature at a time: (n, m, d) would not fit
                block += xp.abs(x[:, column, None] - z[None, :, column])
        block *= -self.gamma
        return xp.exp(block, out=block)


@dataclass(frozen=True)
class Matern(Kernel):
    """Matern kernel of smoothness ``nu`` in {1/2, 3/2, 5/2}, at scaled distance t = |x - x'| / length_scale."""

    nu: float
    length_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.nu not in (0.5, 1.5, 2.5):
            raise InvalidInputError(f"Matern: nu is {self.nu}, expected 0.5, 1.5 or 2.5")
        if not self.length_scale > 0 or not np.isfinite(self.length_scale):
            raise InvalidInputError(f"Matern: length_scale is {self.length_scale}, expected a positive number")

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        """See Kernel."""
        x = _columns(x)
        z = x if z is None else _columns(z)
        xp = array_namespace(x, z)
        t = xp.sqrt(_squared_distances(x, z)) * float(np.sqrt(2 * self.nu) / self.length_scale)
        decay = xp.exp(-t)
        if self.nu == 0.5:
            return decay
        if self.nu == 1.5:
            return (1 + t) * decay
        return (1 + t + t * t / 3) * decay

    def diagonal(self, x: Any) -> Any:
        """See Kernel."""
        return array_namespace(x).ones(x.shape[0], dtype=x.dtype)


@dataclass(frozen=True)
class Polynomial(Kernel):
    """(gamma x.x' + coef0)^degree; ``gamma=None`` is 1/d, as in scikit-learn."""

    degree: int = 3
    gamma: float | None = None
    coef0: float = 1.0

    def __post_init__(self) -> None:
        if int(self.degree) != self.degree or self.degree < 1:
            raise InvalidInputError(f"Polynomial: degree is {self.degree}, expected a whole number of at least 1")
        if self.gamma is not None and not (self.gamma > 0 and np.isfinite(self.gamma)):
            raise InvalidInputError(f"Polynomial: gamma is {self.gamma}, expected a positive number, or None for 1/d")
        if not self.coef0 >= 0 or not np.isfinite(self.coef0):
            raise InvalidInputError(f"Polynomial: coef0 is {self.coef0}, expected 0 or more (else not a kernel)")

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        """See Kernel."""
        x = _columns(x)
        z = x if z is None else _columns(z)
        block = x @ z.T
        block *= self._gamma(x)
        block += self.coef0
        return _power(block, self.degree)

    def diagonal(self, x: Any) -> Any:
        """See Kernel."""
        x = _columns(x)
        return _power((x * x).sum(axis=1) * self._gamma(x) + self.coef0, self.degree)

    def _gamma(self, x: Any) -> float:
        return 1.0 / x.shape[1] if self.gamma is None else self.gamma


def _power(block: Any, degree: int) -> Any:
    # Repeated products: xp.power on floats is an order of magnitude slower.
    result = block.copy()
    for _ in range(int(degree) - 1):
        result *= block
    return result


class Linear(Polynomial):
    """gamma x.x' + coef0, with gamma 1 and coef0 0 by default."""

    def __init__(self, gamma: float | None = 1.0, coef0: float = 0.0) -> None:
        super().__init__(degree=1, gamma=gamma, coef0=coef0)


@dataclass(frozen=True)
class _Composite(Kernel):
    parts: tuple[Kernel, ...]

    def describe(self) -> dict[str, Any]:
        """Name and the descriptions of the parts."""
        return {"kind": type(self).__name__, "parts": [part.describe() for part in self.parts]}


class Sum(_Composite):
    """The sum of kernels."""

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        """See Kernel."""
        total = self.parts[0](x, z)
        for part in self.parts[1:]:
            total += part(x, z)
        return total

    def diagonal(self, x: Any) -> Any:
        """See Kernel."""
        total = self.parts[0].diagonal(x)
        for part in self.parts[1:]:
            total = total + part.diagonal(x)
        return total


class Product(_Composite):
    """The product of kernels."""

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        """See Kernel."""
        total = self.parts[0](x, z)
        for part in self.parts[1:]:
            total *= part(x, z)
        return total

    def diagonal(self, x: Any) -> Any:
        """See Kernel."""
        total = self.parts[0].diagonal(x)
        for part in self.parts[1:]:
            total = total * part.diagonal(x)
        return total


def variance_gamma(values: Any) -> float:
    """1 / (2 var), ddof 1 (for several columns: their summed variance): the papers' bandwidth for targets.

    Raises:
        InvalidInputError: fewer than two values, or constant ones.
    """
    targets = require_targets(values, "targets")
    if len(targets) < 2:
        raise InvalidInputError("targets: one row has no variance; give an explicit gamma or at least two rows")
    variance = float(np.sum(np.var(targets, axis=0, ddof=1)))
    # Values that differ by rounding alone are constant; a small spread far from the origin is a spread.
    if not np.sqrt(variance) > 16.0 * np.finfo(np.float64).eps * float(np.max(np.abs(targets), initial=0.0)):
        raise InvalidInputError(
            f"targets: all {len(targets)} values are (almost) {np.ravel(targets)[0]}, so gamma = 1/(2 var) is not "
            "defined; give an explicit output kernel, or check the target column"
        )
    return 1.0 / (2.0 * variance)


def median_gamma(x: Any, *, pairs: int = 100_000, seed: int = 0) -> float:
    """1 / (2 median^2) of the distances of up to ``pairs`` random pairs of rows (Gretton's median heuristic)."""
    rows = to_numpy(_columns(x)).astype(np.float64)
    require_finite(rows, "x")
    rng = np.random.default_rng(seed)
    first, second = rng.integers(len(rows), size=(2, pairs))
    keep = first != second
    distances = np.sum((rows[first[keep]] - rows[second[keep]]) ** 2, axis=1)
    median = float(np.median(distances)) if len(distances) else 0.0
    if not median > 0:
        raise InvalidInputError("x: the median distance between rows is 0; give an explicit gamma")
    return 1.0 / (2.0 * median)


def dimension_gamma(x: Any) -> float:
    """1 / d, scikit-learn's default for polynomial kernels."""
    return 1.0 / float(_columns(x).shape[1])


def multiscale_rbf(y: Array, scales: int = 4) -> Kernel:
    """Sum over k < ``scales`` of RBF kernels at variance var(y) 4^-k, each weighing the same.

    At the papers' single bandwidth, errors much smaller than the spread of the targets cannot be seen.
    """
    gamma = variance_gamma(y)
    return Sum(tuple(RBF(gamma * 4.0**k) for k in range(scales)))
