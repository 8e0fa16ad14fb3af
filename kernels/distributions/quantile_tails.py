"""What lies beyond the outer quantiles of a row: a normal or an exponential tail through the outer two.

Everything is written for the lower tail, Y < v with P(Y < v) = a; the upper one is that of -Y.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.truncated_normal import TruncatedNormal

Tails = Literal["normal", "exponential", "none"]
TAILS: tuple[Tails, ...] = get_args(Tails)


@dataclass(frozen=True)
class QuantileTail:
    """The law of side * -Y below its quantile ``end`` at level ``mass``.

    Attributes:
        kind: ``normal``: Q(p) = end + scale (Phi^-1(p) - Phi^-1(mass)); ``exponential``: end + scale log(p / mass).
        side: -1 for the lower tail of Y, 1 for the upper one.
        mass: a, of this tail.
        end: v, (n,), of side * -Y.
        scale: (n,); 0 is all mass at the end.
    """

    kind: Tails
    side: float
    mass: float
    end: Array
    scale: Array

    @classmethod
    def of(cls, kind: Tails, side: float, levels: Array, values: Array) -> QuantileTail:
        """Through two points: levels (2,), increasing, and values (n, 2) of side * -Y."""
        places = ndtri(levels) if kind == "normal" else np.log(levels)
        return cls(kind, side, float(levels[0]), values[:, 0], np.diff(values, axis=1)[:, 0] / np.diff(places)[0])

    @property
    def _score(self) -> float:
        return float(ndtri(self.mass))

    def _mirrored(self, y: Array) -> Array:
        return -self.side * y

    def _offset(self, y: Array) -> Array:
        """(side * -y - end) / scale, of values (n, k); -inf or inf where all mass is at the end."""
        with np.errstate(divide="ignore", invalid="ignore"):
            offset = (self._mirrored(y) - self.end[:, None]) / self.scale[:, None]
        return np.where(np.isnan(offset), 0.0, offset)

    def holds(self, y: Array) -> Array:
        """Whether values y (n, k) lie in the tail."""
        return self._mirrored(y) < self.end[:, None]

    def reaches(self, q: Array) -> Array:
        """Whether levels q (n, k) of Y do."""
        return q < self.mass if self.side < 0 else q > 1.0 - self.mass

    def quantile(self, q: Array) -> Array:
        """Quantiles of Y at levels q (n, k) of the tail."""
        level = np.minimum(q if self.side < 0 else 1.0 - q, self.mass)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = ndtri(level) - self._score if self.kind == "normal" else np.log(level / self.mass)
            value = self.end[:, None] + np.where(self.scale[:, None] > 0, self.scale[:, None] * steps, 0.0)
        return np.asarray(self._mirrored(value))

    def _below(self, y: Array) -> Array:
        """P(side * -Y < y) up to the end, for y mirrored and below it."""
        offset = np.minimum(self._offset(y), 0.0)
        return ndtr(self._score + offset) if self.kind == "normal" else self.mass * np.exp(offset)

    def below(self, y: Array, passed: np.ufunc) -> Array:
        """The tail's part of P(Y <= y), or of P(Y < y) where ``passed`` is strict, at values (n, k)."""
        end = self._mirrored(self.end)[:, None]
        inside = self._below(y) if self.side < 0 else self.mass - self._below(y)
        everything = self.mass if self.side < 0 else 0.0
        inside = np.where(self.holds(y), inside, everything)
        return np.asarray(np.where(self.scale[:, None] > 0, inside, self.mass * passed(y, end)))

    def log_density(self, y: Array) -> Array:
        """log density at values (n, k) of the tail; all rows have a scale above 0."""
        offset, log_scale = np.minimum(self._offset(y), 0.0), np.log(self.scale)[:, None]
        if self.kind == "exponential":
            return np.asarray(np.log(self.mass) + offset - log_scale)
        return np.asarray(-0.5 * (self._score + offset) ** 2 - 0.5 * np.log(2.0 * np.pi) - log_scale)

    @cached_property
    def moments(self) -> tuple[Array, Array]:
        """E[Y; tail] and E[Y^2; tail], (n,)."""
        a, v, s = self.mass, self.end, self.scale
        if self.kind == "exponential":
            first, second = -a, 2.0 * a
        else:
            z, density = self._score, float(_density(self._score))
            first, second = -density - z * a, a + z * density + z * z * a
        # Of steps e in Q = v + s e.
        return -self.side * (v * a + s * first), v * v * a + 2.0 * v * s * first + s * s * second

    def score(self, y: Array) -> Array:
        """2 int (1[y < Q(p)] - p) (Q(p) - y) dp over the levels of the tail, for y (n, k)."""
        a, s, start = self.mass, self.scale[:, None], self.end[:, None] - self._mirrored(y)
        low = np.where(self.holds(y), self._below(y), a)
        low = np.where(s > 0.0, low, np.where(start > 0.0, 0.0, a))
        first, product = self._integral(low), self._product
        return np.asarray(2.0 * (start * (a - low) + s * first - start * a * a / 2.0 - s * product))

    def _integral(self, low: Array) -> Array:
        """int e(p) dp from ``low`` to a for the steps e in Q = v + s e."""
        a = self.mass
        if self.kind == "exponential":
            safe = np.maximum(low, np.finfo(np.float64).tiny)
            return np.asarray(-a - low * (np.log(safe / a) - 1.0))
        return np.asarray(_density(ndtri(low)) - _density(self._score) - self._score * (a - low))

    @property
    def _product(self) -> float:
        """int p e(p) dp up to a."""
        a, z = self.mass, self._score
        if self.kind == "exponential":
            return -a * a / 4.0
        return float(ndtr(np.sqrt(2.0) * z) / (2.0 * np.sqrt(np.pi)) - a * _density(z) - z * a * a / 2.0)

    def wave(self, t: Array) -> Array:
        """E[exp(i t Y); tail], (n, m)."""
        turned = -self.side * t
        if self.kind == "exponential":
            wave = np.exp(1j * np.multiply.outer(self.end, turned)) / (1.0 + 1j * np.multiply.outer(self.scale, turned))
            return np.asarray(self.mass * wave)
        positive = self.scale > 0.0
        scale = np.where(positive, self.scale, 1.0)
        law = TruncatedNormal(self.end - scale * self._score, scale, np.full(len(scale), -np.inf), self.end)
        point = np.exp(1j * np.multiply.outer(self.end, turned))
        return np.asarray(self.mass * np.where(positive[:, None], law.characteristic_function(turned), point))


def _density(z: Array | float) -> Array:
    return np.asarray(np.exp(-0.5 * np.asarray(z) ** 2) / np.sqrt(2.0 * np.pi))
