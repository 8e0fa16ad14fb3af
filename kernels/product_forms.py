"""Elementwise functions of products, each formula once: kernels of x.z' and the squared norms, distances, and waves.

A block [scale x_i.z_j] becomes a block of kernel values in place, by operations of the library that holds it.

Waves are exp(i t v). At equally spaced frequencies a wave is the one before it times exp(i step v): a product takes a
tenth of the time of a sine and a cosine. Every 32 frequencies they are computed afresh, so that rounding stays at
1e-14.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, row_slices


class Side(NamedTuple):
    """Rows of one side of a block, with their squared norms where the form uses them."""

    x: Any
    norms: Any


class ProductForm(ABC):
    """k(x, z) = f(scale x.z', |x|^2, |z|^2): ``finish`` applies f in place."""

    uses_norms: ClassVar[bool]

    @property
    @abstractmethod
    def scale(self) -> float:
        """What inner products are multiplied by."""

    @abstractmethod
    def values(self, argument: Any, scratch: Any | None = None) -> Any:
        """Kernel values from the form's own argument, in its memory; ``scratch``, of its shape, is overwritten."""

    @abstractmethod
    def finish(self, block: Any, scratch: Any | None, x: Side, z: Side) -> None:
        """Turn ``block`` = scale x z' into kernel values."""


@dataclass(frozen=True)
class PolynomialForm(ProductForm):
    """(u + coef0)^degree of u = gamma x.z'."""

    gamma: float
    coef0: float
    degree: int
    uses_norms: ClassVar[bool] = False

    @property
    def scale(self) -> float:
        return self.gamma

    def values(self, argument: Any, scratch: Any | None = None) -> Any:
        """See ProductForm; repeated products, since powers of floats are an order of magnitude slower."""
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

    def finish(self, block: Any, scratch: Any | None, x: Side, z: Side) -> None:  # noqa: ARG002
        self.values(block, scratch)


class DistanceForm(ProductForm):
    """A function of u = weight |x - z|^2 = weight |x|^2 - 2 weight x.z' + weight |z|^2."""

    uses_norms: ClassVar[bool] = True

    @property
    @abstractmethod
    def weight(self) -> float:
        """What squared distances are multiplied by; negative where u is at most 0."""

    @property
    def exact_near(self) -> bool:
        """Whether the function sees the rounding of distances far below the norms."""
        return False

    @property
    def scale(self) -> float:
        return -2.0 * self.weight

    def finish(self, block: Any, scratch: Any | None, x: Side, z: Side) -> None:
        xp = array_namespace(block)
        block += self.weight * x.norms[:, None]
        block += self.weight * z.norms[None, :]
        if self.exact_near:
            recompute_near(block, x.x, z.x, x.norms, z.norms, self.weight)
        # Rounding may leave a small number of the other sign for near points.
        (xp.maximum if self.weight > 0 else xp.minimum)(block, 0, out=block)
        self.values(block, scratch)


@dataclass(frozen=True)
class RBFForm(DistanceForm):
    """exp(u) of u = -gamma |x - z|^2."""

    gamma: float

    @property
    def weight(self) -> float:
        return -self.gamma

    def values(self, argument: Any, scratch: Any | None = None) -> Any:  # noqa: ARG002
        return array_namespace(argument).exp(argument, out=argument)


@dataclass(frozen=True)
class MaternForm(DistanceForm):
    """e^-t times 1, 1 + t or 1 + t + t^2 / 3 for nu = 1/2, 3/2 or 5/2, at u = t^2 = 2 nu |x - z|^2 / length_scale^2."""

    nu: float
    length_scale: float

    @property
    def weight(self) -> float:
        return 2.0 * self.nu / self.length_scale**2

    @property
    def exact_near(self) -> bool:
        """See DistanceForm: for nu = 1/2 the slope in u is infinite at 0."""
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


NEAR = 1e-4  # of |x|^2 + |z|^2: squared distances below it are computed from differences where the kernel needs them


def squared_distances(x: Any, z: Any, *, exact_near: bool = False) -> Any:
    """[|x_i - z_j|^2] for x (n, d) and z (m, d); exactly 0 on the diagonal where z is x.

    ``exact_near``: those far below |x|^2 + |z|^2 are computed from differences, see ``recompute_near``.
    """
    xp = array_namespace(x, z)
    same = z is x
    x_norms = xp.einsum("ij,ij->i", x, x)
    center = x.mean(axis=0) if x.shape[0] else x.sum(axis=0)
    if 2.0 * float(center @ center) * x.shape[0] > float(x_norms.sum()):  # an offset: its digits would be lost
        x, z = x - center, z - center
        x_norms = xp.einsum("ij,ij->i", x, x)
    z_norms = x_norms if same else xp.einsum("ij,ij->i", z, z)
    distances = x @ (x if same else z).T
    distances *= -2
    distances += x_norms[:, None]
    distances += z_norms[None, :]
    if exact_near:
        recompute_near(distances, x, z, x_norms, z_norms)
    # |x|^2 - 2 x.z + |z|^2 cancels for near points: rounding may leave a small negative number there.
    xp.maximum(distances, 0, out=distances)
    if same:
        xp.fill_diagonal(distances, 0)
    return distances


def l1_distances(x: Any, z: Any) -> Any:
    """[|x_i - z_j|_1] for x (n, d) and z (m, d), in their precision; on a card one feature after the other."""
    xp = array_namespace(x, z)
    if xp is np:
        from scipy.spatial.distance import cdist  # half a second that a settings file need not wait for

        return cdist(x, z, metric="cityblock").astype(np.result_type(x, z), copy=False)
    distances = xp.zeros((len(x), len(z)), dtype=x.dtype)
    for left, right in zip(x.T, z.T, strict=True):
        distances += xp.abs(left[:, None] - right[None, :])
    return distances


def recompute_near(distances: Any, x: Any, z: Any, x_norms: Any, z_norms: Any, scale: float = 1.0) -> None:
    """Replace entries of ``distances`` = scale |x - z|^2 that are far below scale (|x|^2 + |z|^2), from differences.

    Rounding is a share of the sum, and its root, which a kernel of the distance itself sees, is 1,000 times larger:
    copies of a point would be apart.
    """
    xp = array_namespace(distances)
    if distances.size == 0 or float(distances.min()) >= NEAR * scale * (float(x_norms.max()) + float(z_norms.max())):
        return
    limits = (NEAR * scale) * x_norms[:, None] + (NEAR * scale) * z_norms[None, :]
    rows, columns = xp.nonzero(distances <= limits)
    if xp is np and 8 * len(rows) > distances.size:
        from scipy.spatial.distance import cdist  # half a second that a settings file need not wait for

        distances[...] = scale * cdist(x, z, metric="sqeuclidean")
        return
    at_once = max(1, 2**22 // int(x.shape[1]))
    for start in range(0, int(rows.shape[0]), at_once):
        left, right = rows[start : start + at_once], columns[start : start + at_once]
        difference = x[left] - z[right]
        distances[left, right] = scale * xp.einsum("ij,ij->i", difference, difference)


_ANEW = 32  # frequencies


_BLOCK_VALUES = 512  # whose waves at 32 frequencies stay in the cache


_BLOCK_TERMS = 8_000  # the same of the terms of averages


_POINT = 1e-290  # half the width of a point, for the ratio sin(x) / x


def waves(values: Array, t: Array) -> Array:
    """exp(i t_j v), shape (..., m), for real values v (...) and frequencies t (m,)."""
    flat, t = np.asarray(values, dtype=np.float64).ravel(), np.asarray(t, dtype=np.float64)
    step = _step(t)
    if step is None:
        return np.asarray(np.exp(1j * np.multiply.outer(values, t)))
    result = np.empty((len(flat), len(t)), dtype=np.complex128)
    for rows in row_slices(len(flat), _BLOCK_VALUES):
        some = flat[rows]
        powers = _powers(np.exp(1j * step * some), min(_ANEW, len(t)))
        for first in range(0, len(t), _ANEW):
            shared = powers[: len(t) - first]
            if t[first] != 0.0:
                shared = shared * np.exp(1j * t[first] * some)
            result[rows, first : first + _ANEW] = shared.T
    return result.reshape(*np.shape(values), len(t))


def average_wave(values: Array, weights: Array, t: Array, *, half_widths: Array | None = None) -> Array:
    """sum_k w_ik exp(i t_j v_ik), shape (n, m), for values (n, k), real or complex, and weights (k,) or (n, k).

    With ``half_widths`` h (n, k) of uniform distributions around the values in their place: each wave times sin(t h) /
    (t h).
    """
    result = np.empty((len(values), len(t)), dtype=np.complex128)
    step = _step(t)
    for rows in row_slices(len(values), _BLOCK_TERMS // max(1, values.shape[1])):  # in the cache over all frequencies
        shares = weights[:, None] if weights.ndim == 1 else weights[rows].T
        of_values = _Turning(1j * np.ascontiguousarray(values[rows].T), step, shares)
        if half_widths is None:
            for j, frequency in enumerate(t):
                result[rows, j] = of_values.at(j, frequency).sum(axis=0)
            continue
        half = np.maximum(np.ascontiguousarray(half_widths[rows].T), _POINT)
        of_widths, inverse = _Turning(1j * half, step, 1.0), 1.0 / half
        for j, frequency in enumerate(t):
            wave, sines = of_values.at(j, frequency), of_widths.at(j, frequency).imag
            if frequency != 0.0:
                wave = wave * (sines * (inverse / frequency))
            result[rows, j] = wave.sum(axis=0)
    return result


def _powers(turn: Array, count: int) -> Array:
    """turn^0, ..., turn^(count - 1), (count, n), by doubling."""
    powers = np.ones((count, len(turn)), dtype=np.complex128)
    done = 1
    while done < count:
        more = min(done, count - done)
        np.multiply(powers[:more], turn, out=powers[done : done + more])
        turn, done = turn * turn, 2 * done
    return powers


def _step(t: Array) -> float | None:
    """The distance of equally spaced frequencies; None of others."""
    steps = np.diff(t)
    equally = len(t) > 2 and bool(np.allclose(steps, steps[0], rtol=1e-12, atol=0.0))
    return float(steps[0]) if equally else None


class _Turning:
    """weight exp(phase t_j), asked for at one frequency after another."""

    def __init__(self, phase: Array, step: float | None, weight: Array | float) -> None:
        self._phase, self._weight = phase, weight
        self._turn = None if step is None else np.exp(phase * step)
        self._wave: Array = np.empty(0)

    def at(self, j: int, frequency: float) -> Array:
        if self._turn is None or j % _ANEW == 0:
            self._wave = np.exp(self._phase * frequency) * self._weight
        else:
            self._wave *= self._turn
        return self._wave
