"""Positive-definite kernel functions k(x, x') on inputs and targets, with scikit-learn's parameter names.

A kernel is a frozen value: calling it gives a Gram block, ``diagonal`` gives k(x, x) without building the block, and
``describe`` gives what a protocol digest needs. Blocks live where their inputs live (NumPy or CuPy). Sums and products
of kernels are kernels, in one form whatever the order and the brackets: equal kernels have one description and digest.
Bandwidths are read off inputs or targets: the papers', the median heuristic, and several at once.
"""

from __future__ import annotations

import json
import operator
import warnings
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, require_finite, require_targets, to_numpy
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.product_forms import (
    DistanceForm,
    MaternForm,
    PolynomialForm,
    ProductForm,
    RBFForm,
    l1_distances,
    squared_distances,
)
from congruence.kernels.rng import stream

CENTER_ROWS = 1024


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

    @property
    def terms(self) -> tuple[Kernel, ...]:
        """The kernels whose sum this one is, none of them a sum: itself, unless it is a sum."""
        return (self,)

    @property
    def is_stationary(self) -> bool:
        """Whether k(x + c, x' + c) = k(x, x') for every c."""
        return False

    def center(self, x: Any) -> Any | None:
        """A point c (d,) near the rows of x (n, d) such that k(x - c, x' - c) = k(x, x'), in the dtype of x.

        |x|^2 - 2 x.x' + |x'|^2 loses the digits of |x|^2 / |x - x'|^2, and so those of an offset that all inputs share.
        None where the kernel has no such c, or where subtracting it would not shorten the inputs.
        """
        return _offset(x) if self.is_stationary else None

    def product_form(self, dimension: int) -> ProductForm | None:  # noqa: ARG002
        """The kernel as a function of x.z' and the norms of inputs of ``dimension`` features; None if it is none."""
        return None

    def __add__(self, other: Kernel) -> Kernel:
        return Sum((self, other))

    def __mul__(self, other: Kernel) -> Kernel:
        return Product((self, other))


def require_kernel(kernel: Any, name: str) -> Kernel:
    """``kernel``, where it is one; ``name`` is the argument it was given as.

    Raises:
        InvalidInputError: it is something else, as scikit-learn's names of kernels are.
    """
    if isinstance(kernel, Kernel):
        return kernel
    raise InvalidInputError(
        f"{name}: expected a kernel of congruence.kernels such as RBF(gamma=1.0) or Polynomial(degree=3, gamma=1.0, "
        f"coef0=1.0), got {kernel!r}"
    )


def as_columns(x: Any) -> Any:
    """Points (n,) as one column (n, 1)."""
    return x[:, None] if x.ndim == 1 else x


def _offset(x: Any) -> Any | None:
    """The median row, to which one far row is nothing; of a sample of rows."""
    xp = array_namespace(x)
    rows = x[:: max(1, x.shape[0] // CENTER_ROWS)].astype(np.float64)
    center = xp.median(rows, axis=0).astype(x.dtype)
    shifted = rows - center.astype(np.float64)
    before, after = (xp.median(xp.einsum("ij,ij->i", points, points)) for points in (rows, shifted))
    return center if float(after) < 0.5 * float(before) else None


def _key(kernel: Kernel) -> str:
    """The description as text, which equal kernels share."""
    return json.dumps(kernel.describe(), sort_keys=True, default=repr)


def _order(kernel: Kernel) -> tuple[str, list[float], str]:
    """What parts are sorted by: the kind, then the numbers."""
    described = kernel.describe()
    numbers = [float(value) for value in described.values() if isinstance(value, (int, float))]
    return str(described["kind"]), numbers, _key(kernel)


class _Value(Kernel):
    """Kernels that are equal where their descriptions are."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and _key(self) == _key(other)

    def __hash__(self) -> int:
        return hash(_key(self))


def _floats(kernel: Kernel, *names: str) -> None:
    """Numbers as float64, so that 1 and 1.0 have one digest."""
    for name in names:
        value = getattr(kernel, name)
        object.__setattr__(kernel, name, value if value is None else float(value))


class _Stationary(_Value):
    """Functions of the distance, 1 where that is 0; those of the Euclidean distance have a ``DistanceForm``."""

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        x = as_columns(x)
        form = self.product_form(x.shape[1])
        assert isinstance(form, DistanceForm)
        block = squared_distances(x, x if z is None else as_columns(z), exact_near=form.exact_near)
        block *= form.weight
        return form.values(block)

    @property
    def is_stationary(self) -> bool:
        return True

    def diagonal(self, x: Any) -> Any:
        return array_namespace(x).ones(x.shape[0], dtype=x.dtype)


@dataclass(frozen=True, eq=False)
class _OfGamma(_Stationary):
    gamma: float

    def __post_init__(self) -> None:
        _floats(self, "gamma")
        if not self.gamma > 0 or not np.isfinite(self.gamma):
            raise InvalidInputError(f"{type(self).__name__}: gamma is {self.gamma}, expected a positive number")


class RBF(_OfGamma):
    """exp(-gamma |x - x'|^2)."""

    def product_form(self, dimension: int) -> RBFForm:  # noqa: ARG002
        return RBFForm(self.gamma)


class Laplacian(_OfGamma):
    """exp(-gamma |x - x'|_1): the true L1 distance, whose square is not positive definite for d > 1."""

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        x = as_columns(x)
        z = x if z is None else as_columns(z)
        block = l1_distances(x, z)
        block *= -self.gamma
        return array_namespace(block).exp(block, out=block)


@dataclass(frozen=True, eq=False)
class Matern(_Stationary):
    """Matern kernel of smoothness ``nu`` in {1/2, 3/2, 5/2}, at scaled distance t = |x - x'| / length_scale."""

    nu: float
    length_scale: float = 1.0

    def __post_init__(self) -> None:
        _floats(self, "nu", "length_scale")
        if self.nu not in (0.5, 1.5, 2.5):
            raise InvalidInputError(f"Matern: nu is {self.nu}, expected 0.5, 1.5 or 2.5")
        if not self.length_scale > 0 or not np.isfinite(self.length_scale):
            raise InvalidInputError(f"Matern: length_scale is {self.length_scale}, expected a positive number")

    def product_form(self, dimension: int) -> MaternForm:  # noqa: ARG002
        return MaternForm(self.nu, self.length_scale)


@dataclass(frozen=True, eq=False)
class Polynomial(_Value):
    """(gamma x.x' + coef0)^degree; ``gamma=None`` is 1/d, as in scikit-learn. Of degree 1 it is ``Linear``."""

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
        object.__setattr__(self, "degree", int(self.degree))
        _floats(self, "gamma", "coef0")

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "kind": "Linear" if self.degree == 1 else "Polynomial"}

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        x = as_columns(x)
        z = x if z is None else as_columns(z)
        form = self.product_form(x.shape[1])
        block = x @ z.T
        block *= form.scale
        return form.values(block)

    def product_form(self, dimension: int) -> PolynomialForm:
        gamma = 1.0 / dimension if self.gamma is None else self.gamma
        return PolynomialForm(gamma, self.coef0, int(self.degree))

    def diagonal(self, x: Any) -> Any:
        x = as_columns(x)
        form = self.product_form(x.shape[1])
        return form.values((x * x).sum(axis=1) * form.scale)


class Linear(Polynomial):
    """gamma x.x' + coef0, with gamma 1 and coef0 0 by default."""

    def __init__(self, gamma: float | None = 1.0, coef0: float = 0.0) -> None:
        super().__init__(degree=1, gamma=gamma, coef0=coef0)


@dataclass(frozen=True, eq=False)
class _Composite(_Value):
    """Sorted parts, none of them of the same kind as the whole."""

    parts: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        family = type(self)
        flat: list[Kernel] = []
        for part in self.parts:
            terms = require_kernel(part, f"{family.__name__}.parts").terms
            whole = terms[0] if len(terms) == 1 else part
            flat += whole.parts if isinstance(whole, family) else [whole]
        if not flat:
            raise InvalidInputError(f"{family.__name__}.parts: is empty; give at least one kernel")
        object.__setattr__(self, "parts", tuple(sorted(flat, key=_order)))

    @property
    def terms(self) -> tuple[Kernel, ...]:
        return self.parts[0].terms if len(self.parts) == 1 else (self,)

    def describe(self) -> dict[str, Any]:
        """Name and the descriptions of the parts; of a single part, its own."""
        if len(self.parts) == 1:
            return self.parts[0].describe()
        return {"kind": type(self).__name__, "parts": [part.describe() for part in self.parts]}

    @property
    def is_stationary(self) -> bool:
        return all(part.is_stationary for part in self.parts)

    @staticmethod
    @abstractmethod
    def _joined(one: Any, other: Any, /) -> Any:
        """Two blocks, in the memory of the first."""

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        return reduce(self._joined, (part(x, z) for part in self.parts))

    def diagonal(self, x: Any) -> Any:
        return reduce(self._joined, (part.diagonal(x) for part in self.parts))


class Sum(_Composite):
    """The sum of kernels."""

    _joined = staticmethod(operator.iadd)

    @property
    def terms(self) -> tuple[Kernel, ...]:
        return self.parts


class Product(_Composite):
    """The product of kernels."""

    _joined = staticmethod(operator.imul)


OutputScale = Literal["marginal", "residual", "multiscale"]
SCALES = 4


def variance_gamma(values: Any) -> float:
    """1 / (2 var), ddof 1 (for several columns: their summed variance): the papers' bandwidth for targets.

    Raises:
        InvalidInputError: fewer than two values, or constant ones.
    """
    targets = require_targets(values, "targets")
    if len(targets) < 2:
        raise InvalidInputError("targets: one row has no variance; give an explicit gamma or at least two rows")
    flat = np.ravel(targets)
    return gamma_of_variance(
        float(np.sum(np.var(targets, axis=0, ddof=1))), len(targets), float(flat[np.argmax(np.abs(flat))])
    )


def gamma_of_variance(variance: float, n: int, farthest: float) -> float:
    """1 / (2 var) of n targets of which ``farthest`` is the largest in size.

    Raises:
        InvalidInputError: constant targets.
    """
    # Values that differ by rounding alone are constant; a small spread far from the origin is a spread.
    if not np.sqrt(variance) > 16.0 * np.finfo(np.float64).eps * abs(farthest):
        raise InvalidInputError(
            f"targets: all {n} values are (almost) {farthest}, so gamma = 1/(2 var) is not defined; give an explicit "
            "output kernel, or check the target column"
        )
    return 1.0 / (2.0 * variance)


def median_gamma(x: Any, *, pairs: int = 100_000, seed: int = 0) -> float:
    """1 / (2 median^2) of the distances of up to ``pairs`` random pairs of rows (Gretton's median heuristic)."""
    rows = to_numpy(as_columns(x)).astype(np.float64)
    require_finite(rows, "x")
    rng = stream(seed, "median distance")
    first, second = rng.integers(len(rows), size=(2, pairs))
    keep = first != second
    distances = np.sum((rows[first[keep]] - rows[second[keep]]) ** 2, axis=1)
    median = float(np.median(distances)) if len(distances) else 0.0
    if not median > 0:
        raise InvalidInputError("x: the median distance between rows is 0; give an explicit gamma")
    return 1.0 / (2.0 * median)


def multiscale_rbf(y: Array, scales: int = SCALES) -> Kernel:
    """``scaled_rbf`` at var(y): at the papers' single bandwidth, errors below the spread of the targets go unseen."""
    return scaled_rbf(variance_gamma(y), scales)


def scaled_rbf(gamma: float, scales: int = SCALES) -> Kernel:
    """The sum over k < ``scales`` of RBF kernels at gamma 4^k, each weighing the same."""
    return Sum(tuple(RBF(gamma * 4.0**k) for k in range(scales)))


NEARLY_CONSTANT = 0.01


POINTS = 46  # with 1,035 pairs


class NearlyConstantKernelWarning(UserWarning):
    """The input kernel hardly depends on its inputs, so that CCE hardly depends on x."""


def kernel_variation(x: Array, kernel: Kernel) -> float:
    """Relative standard deviation of k(x, x') over random pairs: near 0 means a kernel that ignores its input."""
    points = x[np.sort(stream(0, "kernel variation").choice(len(x), min(len(x), POINTS), replace=False))]
    if len(points) < 3:
        return float("nan")
    center = kernel.center(points)
    gram = kernel(points if center is None else points - center)
    values = gram[~np.eye(len(gram), dtype=bool)].astype(np.float64)
    mean = float(abs(values.mean()))
    return float((values / mean).std()) if mean > 0 else float("inf")


def warn_if_nearly_constant(variation: float, *, stacklevel: int = 3) -> None:
    """Warn of a kernel that varies so little."""
    if variation < NEARLY_CONSTANT:
        warnings.warn(constant_kernel(variation), NearlyConstantKernelWarning, stacklevel=stacklevel)


def constant_kernel(variation: float) -> str:
    """The warning of a kernel that varies so little."""
    return (
        f"the input kernel varies by {variation:.2g} of its mean between points, so CCE hardly depends on x: inputs "
        "that are (nearly) the same, or unit-norm embeddings with gamma = 1/d, which belongs to raw ones; use "
        "gamma = 1 on unit norm, or check the inputs"
    )
