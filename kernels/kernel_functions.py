"""Positive-definite kernel functions k(x, x') on inputs and targets, with scikit-learn's parameter names.

A kernel is a frozen value: calling it gives a Gram block, ``diagonal`` gives k(x, x) without building the block, and
``describe`` gives what a protocol digest needs. Blocks live where their inputs live (NumPy or CuPy). Most kernels are
an elementwise function of the products x.z' and of the squared norms, applied in place by the library that holds the
block (``ProductKernel``). Sums and products of kernels are kernels, in one form whatever the order and the brackets:
equal kernels have one description and digest.
"""

from __future__ import annotations

import json
import operator
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from congruence.kernels.arrays import array_namespace, require_finite, to_numpy
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.rng import stream

CENTER_ROWS = 1024
NEAR = 1e-4  # of |x|^2 + |z|^2: squared distances below it are computed from differences where the kernel needs them


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

    def product_form(self, dimension: int) -> ProductKernel | None:  # noqa: ARG002
        """The kernel on inputs of ``dimension`` features as a function of x.z' and the norms; None if it is none."""
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


class Side(NamedTuple):
    """Rows of one side of a block, with their squared norms where the kernel uses them."""

    x: Any
    norms: Any


class ProductKernel(_Value):
    """k(x, z) = f(scale x.z', |x|^2, |z|^2): ``finish`` applies f in place."""

    uses_norms: ClassVar[bool] = False

    @property
    @abstractmethod
    def scale(self) -> float:
        """What inner products are multiplied by."""

    @abstractmethod
    def values(self, argument: Any, scratch: Any | None = None) -> Any:
        """Kernel values from the function's own argument, in its memory; ``scratch``, of its shape, is overwritten."""

    def finish(self, block: Any, scratch: Any | None, x: Side, z: Side) -> None:  # noqa: ARG002
        """Turn ``block`` = scale x z' into kernel values."""
        self.values(block, scratch)

    def product_form(self, dimension: int) -> ProductKernel:  # noqa: ARG002
        return self


class _Stationary(_Value):
    """Functions of the distance, 1 where that is 0."""

    @property
    def is_stationary(self) -> bool:
        return True

    def diagonal(self, x: Any) -> Any:
        return array_namespace(x).ones(x.shape[0], dtype=x.dtype)


class _Radial(_Stationary, ProductKernel):
    """Functions of u = weight |x - z|^2 = weight |x|^2 - 2 weight x.z' + weight |z|^2."""

    uses_norms: ClassVar[bool] = True
    sees_rounding: ClassVar[bool] = False
    """Whether the function sees the rounding of distances far below the norms."""

    @property
    @abstractmethod
    def weight(self) -> float:
        """What squared distances are multiplied by; negative where u is at most 0."""

    @property
    def scale(self) -> float:
        return -2.0 * self.weight

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        x = as_columns(x)
        same = z is None or z is x
        z = x if same else as_columns(z)
        xp = array_namespace(x, z)
        norms = xp.einsum("ij,ij->i", x, x)
        center = x.mean(axis=0) if x.shape[0] else x.sum(axis=0)
        if 2.0 * float(center @ center) * x.shape[0] > float(norms.sum()):  # an offset: its digits would be lost
            x, z = x - center, z - center
            norms = xp.einsum("ij,ij->i", x, x)
        block = x @ (x if same else z).T
        block *= -2
        self._add_norms(block, Side(x, norms), Side(z, norms if same else xp.einsum("ij,ij->i", z, z)), 1.0)
        if same:
            xp.fill_diagonal(block, 0)
        block *= self.weight
        return self.values(block)

    def finish(self, block: Any, scratch: Any | None, x: Side, z: Side) -> None:
        self._add_norms(block, x, z, self.weight)
        self.values(block, scratch)

    def _add_norms(self, block: Any, x: Side, z: Side, weight: float) -> None:
        """Make ``weight`` |x - z|^2 of a block -2 ``weight`` x z'."""
        xp = array_namespace(block)
        block += weight * x.norms[:, None]
        block += weight * z.norms[None, :]
        if self.sees_rounding:
            _recompute_near(block, x, z, weight)
        # Rounding may leave a small number of the other sign for near points.
        (xp.maximum if weight > 0 else xp.minimum)(block, 0, out=block)


def _recompute_near(distances: Any, x: Side, z: Side, scale: float) -> None:
    """Replace entries of ``distances`` = scale |x - z|^2 that are far below scale (|x|^2 + |z|^2), from differences.

    Rounding is a share of the sum, and its root, which a kernel of the distance itself sees, is 1,000 times larger:
    copies of a point would be apart.
    """
    xp = array_namespace(distances)
    if distances.size == 0 or float(distances.min()) >= NEAR * scale * (float(x.norms.max()) + float(z.norms.max())):
        return
    limits = (NEAR * scale) * x.norms[:, None] + (NEAR * scale) * z.norms[None, :]
    rows, columns = xp.nonzero(distances <= limits)
    if xp is np and 8 * len(rows) > distances.size:
        from scipy.spatial.distance import cdist  # half a second that a settings file need not wait for

        distances[...] = scale * cdist(x.x, z.x, metric="sqeuclidean")
        return
    at_once = max(1, 2**22 // int(x.x.shape[1]))
    for start in range(0, int(rows.shape[0]), at_once):
        left, right = rows[start : start + at_once], columns[start : start + at_once]
        difference = x.x[left] - z.x[right]
        distances[left, right] = scale * xp.einsum("ij,ij->i", difference, difference)


@dataclass(frozen=True, eq=False)
class _OfGamma(_Stationary):
    gamma: float

    def __post_init__(self) -> None:
        _floats(self, "gamma")
        if not self.gamma > 0 or not np.isfinite(self.gamma):
            raise InvalidInputError(f"{type(self).__name__}: gamma is {self.gamma}, expected a positive number")


class RBF(_OfGamma, _Radial):
    """exp(-gamma |x - x'|^2)."""

    @property
    def weight(self) -> float:
        return -self.gamma

    def values(self, argument: Any, scratch: Any | None = None) -> Any:  # noqa: ARG002
        return array_namespace(argument).exp(argument, out=argument)


class Laplacian(_OfGamma):
    """exp(-gamma |x - x'|_1): the true L1 distance, whose square is not positive definite for d > 1."""

    def __call__(self, x: Any, z: Any | None = None) -> Any:
        x = as_columns(x)
        z = x if z is None else as_columns(z)
        xp = array_namespace(x, z)
        if xp is np:
            from scipy.spatial.distance import cdist  # half a second that a settings file need not wait for

            block = cdist(x, z, metric="cityblock").astype(np.result_type(x, z), copy=False)
        else:  # on a card one feature after the other
            block = xp.zeros((len(x), len(z)), dtype=x.dtype)
            for left, right in zip(x.T, z.T, strict=True):
                block += xp.abs(left[:, None] - right[None, :])
        block *= -self.gamma
        return xp.exp(block, out=block)


@dataclass(frozen=True, eq=False)
class Matern(_Radial):
    """Matern kernel of smoothness ``nu`` in {1/2, 3/2, 5/2}, at scaled distance t = sqrt(2 nu) |x - x'| / length_scale.

    e^-t times 1, 1 + t or 1 + t + t^2 / 3.
    """

    nu: float
    length_scale: float = 1.0

    def __post_init__(self) -> None:
        _floats(self, "nu", "length_scale")
        if self.nu not in (0.5, 1.5, 2.5):
            raise InvalidInputError(f"Matern: nu is {self.nu}, expected 0.5, 1.5 or 2.5")
        if not self.length_scale > 0 or not np.isfinite(self.length_scale):
            raise InvalidInputError(f"Matern: length_scale is {self.length_scale}, expected a positive number")

    @property
    def weight(self) -> float:
        return 2.0 * self.nu / self.length_scale**2

    @property
    def sees_rounding(self) -> bool:  # type: ignore[override]
        """See _Radial: for nu = 1/2 the slope in t^2 is infinite at 0."""
        return self.nu == 0.5

    def values(self, argument: Any, scratch: Any | None = None) -> Any:
        xp = array_namespace(argument)
        t = xp.sqrt(argument, out=argument)
        decay = xp.negative(t, out=scratch)
        xp.exp(decay, out=decay)
        if self.nu == 0.5:
            t[...] = decay
            return t
        if self.nu == 2.5:
            t += t * t / 3
        t += 1
        t *= decay
        return t


@dataclass(frozen=True, eq=False)
class Polynomial(ProductKernel):
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
        form = self.product_form(x.shape[1])
        block = x @ (x if z is None else as_columns(z)).T
        block *= form.scale
        return form.values(block)

    def product_form(self, dimension: int) -> Polynomial:
        return self if self.gamma is not None else Polynomial(self.degree, 1.0 / dimension, self.coef0)

    @property
    def scale(self) -> float:
        assert self.gamma is not None
        return self.gamma

    def values(self, argument: Any, scratch: Any | None = None) -> Any:
        """See ProductKernel; repeated products, since powers of floats are an order of magnitude slower."""
        xp = array_namespace(argument)
        if self.coef0 != 0.0:
            argument += self.coef0
        if self.degree == 1:
            return argument
        square = xp.multiply(argument, argument, out=scratch)
        if self.degree % 2 == 0:
            argument[...] = square
        for _ in range((self.degree - 1) // 2):
            xp.multiply(argument, square, out=argument)
        return argument

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
