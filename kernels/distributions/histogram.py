"""Distributions given by the probabilities of bins: bar distributions, binned and ordinal regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy.special import erfc, erfcinv, erfinv, wofz

from congruence.kernels.arrays import Array, row_slices, to_numpy
from congruence.kernels.distributions.base import ScalarDistribution, Stated
from congruence.kernels.distributions.cells import Cells
from congruence.kernels.distributions.discrete_support import (
    count_below,
    cumulative,
    join_points,
    pick,
    require_masses,
    require_points,
)
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES
from congruence.kernels.distributions.waves import average_wave
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel

_ROOT_2, _ROOT_PI = np.sqrt(2.0), np.sqrt(np.pi)
_FAR = 8.0
"""Scales beyond which no more than 1.3e-15 of the mass lies."""
_PANELS = np.array([0.0, 1.0, 2.0, 3.5, 5.5, 9.0])
_SQUARED_WHOLE = (2.0 - _ROOT_2) / _ROOT_PI  # the integral of erfc^2 from 0 on


@dataclass(frozen=True, repr=False)
class Histogram(ScalarDistribution):
    """Density constant within each of B bins: ``probabilities`` (n, B) between ``borders`` (B + 1,) or (n, B + 1).

    Tails: with ``tail_share`` 0 (the default) all mass lies within the borders, and the log score is infinite outside.
    With 0 < ``tail_share`` < 1 the mass of the first and of the last bin is half-normal from the bin's inner border
    outwards, that share of it beyond the outer border: .5 is the bar distribution of TabPFN and of prior-data fitted
    networks (Mueller et al. 2022). Probabilities must sum to 1 within 1e-4 and are then normalised.
    """

    borders: Array
    probabilities: Array
    tail_share: Array | float = 0.0

    def __post_init__(self) -> None:
        borders = require_points(self.borders, "Histogram.borders")
        probabilities = require_masses(self.probabilities, "Histogram.probabilities")
        n, bins = probabilities.shape
        if borders.shape[-1] != bins + 1 or (borders.ndim == 2 and len(borders) != n):
            raise InvalidInputError(
                f"Histogram.borders: shape {borders.shape} does not fit probabilities of shape {(n, bins)}; expected "
                f"({bins + 1},) or ({n}, {bins + 1}): one more border than bins"
            )
        falling = np.diff(np.atleast_2d(borders), axis=1) <= 0
        if np.any(falling):
            row, column = (int(i) for i in np.argwhere(falling)[0])
            raise InvalidInputError(
                f"Histogram.borders: {'' if borders.ndim == 1 else f'row {row}: '}border {column + 1} is not above "
                f"border {column} ({np.atleast_2d(borders)[row, column]:g}); borders must increase strictly"
            )
        share = float(np.ravel(to_numpy(self.tail_share))[0])
        if not 0.0 <= share < 1.0 or (share > 0.0 and bins < 2):
            raise InvalidInputError(
                f"Histogram.tail_share: is {share:g} with {bins} bins; expected a share in [0, 1) of the mass of the "
                "outermost bins, and 0 where there is one bin only"
            )
        self._hold(borders=borders, probabilities=probabilities, tail_share=np.array(share))

    @property
    def _edges(self) -> Array:
        return np.atleast_2d(self.borders)

    @cached_property
    def _cumulative(self) -> Array:
        return cumulative(self.probabilities)

    @cached_property
    def _tails(self) -> tuple[Array, Array] | None:
        """The scales (1 or n,) of the lower and the upper half-normal tail."""
        share = float(self.tail_share)
        if share == 0.0:
            return None
        widths = np.diff(self._edges, axis=1)
        return _tail_scale(widths[:, 0], share), _tail_scale(widths[:, -1], share)

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Mean and variance within each bin, (1 or n, B)."""
        edges = self._edges
        means, variances = (edges[:, 1:] + edges[:, :-1]) / 2.0, np.diff(edges, axis=1) ** 2 / 12.0
        if self._tails is not None:
            lower, upper = self._tails
            means[:, 0], means[:, -1] = (
                edges[:, 1] - _tail_mean(lower),
                edges[:, -2] + _tail_mean(upper),
            )
            variances[:, 0], variances[:, -1] = ((1.0 - 2.0 / np.pi) * scale**2 for scale in (lower, upper))
        return means, variances

    @property
    def stated(self) -> Stated:
        return "cells"

    def cells(self, y: Array) -> Cells:
        """See Distribution: the bins, with what lies beyond the borders; a value at a border is in the bin below it."""
        place = count_below(self._edges[:, 1:-1], y[:, None], or_equal=False)[:, 0]
        return Cells(self._cumulative[:, 1:], place, self._cumulative[:, :-1])

    def __len__(self) -> int:
        return len(self.probabilities)

    def __getitem__(self, rows: Any) -> Self:
        borders = self.borders if self.borders.ndim == 1 else np.atleast_2d(self.borders[rows])
        return type(self)(borders, np.atleast_2d(self.probabilities[rows]), self.tail_share)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """See Distribution; all parts need the same number of bins and the same tails."""
        if len({float(part.tail_share) for part in parts}) > 1:
            raise InvalidInputError("Histogram.concatenate: the parts have different tails")
        borders = join_points([part.borders for part in parts], [len(part) for part in parts])
        return cls(borders, np.concatenate([part.probabilities for part in parts]), parts[0].tail_share)

    def breaks(self) -> Array:
        """See Distribution: the borders."""
        return np.broadcast_to(self._edges, (len(self), self._edges.shape[1]))

    def _bin(self, y: Array) -> Array:
        return np.asarray(np.clip(count_below(self._edges, y, or_equal=True) - 1, 0, self.probabilities.shape[1] - 1))

    def _in_tails(self, y: Array, k: Array) -> list[tuple[Array, Array, Array, Array, bool]]:
        """For the lower and the upper tail: where y is in it, and there distance, mass and scale; whether upper."""
        if self._tails is None:
            return []
        last = self.probabilities.shape[1] - 1
        found = []
        for upper, scale in enumerate(self._tails):
            inner = self._edges[:, -2 if upper else 1, None]
            distance = np.maximum(y - inner if upper else inner - y, 0.0)
            mass = self.probabilities[:, -1 if upper else 0, None]
            found.append((k == (last if upper else 0), distance, mass, scale[:, None], bool(upper)))
        return found

    def _log_prob(self, y: Array) -> Array:
        """The density of a border is that of the bin above it."""
        k = self._bin(y)
        widths = np.diff(self._edges, axis=1)
        with np.errstate(divide="ignore"):
            inside = np.log(pick(self.probabilities, k)) - np.log(pick(widths, k))
            result = np.where((y >= self._edges[:, :1]) & (y <= self._edges[:, -1:]), inside, -np.inf)
            for here, distance, mass, scale, _ in self._in_tails(y, k):
                result = np.where(here, np.log(mass) + _tail_log_density(distance, scale), result)
        return np.asarray(result)

    def _cdf(self, y: Array) -> Array:
        k = self._bin(y)
        share = np.clip((y - pick(self._edges, k)) / pick(np.diff(self._edges, axis=1), k), 0.0, 1.0)
        low, high = pick(self._cumulative, k), pick(self._cumulative, k + 1)
        result = low + (high - low) * share
        for here, distance, mass, scale, upper in self._in_tails(y, k):
            beyond = mass * erfc(distance / (scale * _ROOT_2))
            result = np.where(here, 1.0 - beyond if upper else beyond, result)
        return np.asarray(result)

    def _quantile(self, q: Array) -> Array:
        last = self.probabilities.shape[1] - 1
        k = np.minimum(count_below(self._cumulative[:, 1:], q, or_equal=False), last)
        low, high, left = pick(self._cumulative, k), pick(self._cumulative, k + 1), pick(self._edges, k)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(high > low, np.clip((q - low) / (high - low), 0.0, 1.0), 0.0)
            result = left + share * (pick(self._edges, k + 1) - left)
            for here, _, mass, scale, upper in self._in_tails(left, k):
                steps = scale * _ROOT_2 * erfcinv(np.minimum((1.0 - q if upper else q) / mass, 1.0))
                inner = self._edges[:, -2 if upper else 1, None]
                result = np.where(here, inner + steps if upper else inner - steps, result)
        return np.asarray(result)

    def mean(self) -> Array:
        return np.asarray(np.sum(self.probabilities * self._moments[0], axis=1))

    def std(self) -> Array:
        means, variances = self._moments
        squared = (means - self.mean()[:, None]) ** 2 + variances
        return np.asarray(np.sqrt(np.sum(self.probabilities * squared, axis=1)))

    @cached_property
    def _squared_integrals(self) -> tuple[Array, Array]:
        """The integrals of F^2 up to each border, and of (1 - F)^2 from each border on, (n, B + 1) both."""
        widths, F = np.diff(self._edges, axis=1), self._cumulative
        below, above = _mean_square(F, widths), _mean_square(1.0 - F, widths)
        if self._tails is not None:
            below[:, 0] = _tail_crps_outside(self.probabilities[:, 0], self._tails[0])
            above[:, -1] = _tail_crps_outside(self.probabilities[:, -1], self._tails[1])
        start = np.zeros((len(self), 1))
        rising = np.concatenate([start, np.cumsum(below, axis=1)], axis=1)
        return rising, np.concatenate([np.cumsum(above[:, ::-1], axis=1)[:, ::-1], start], axis=1)

    def _crps(self, y: Array) -> Array:
        """Exact: F^2 below y and (1 - F)^2 above it, bin by bin, so nothing cancels."""
        k = self._bin(y)
        rising, falling = self._squared_integrals
        left, right = pick(self._edges, k), pick(self._edges, k + 1)
        low, high, inside = pick(self._cumulative, k), pick(self._cumulative, k + 1), np.clip(y, left, right)
        F = low + (high - low) * (inside - left) / (right - left)
        G = 1.0 - F
        within = (inside - left) * (low**2 + low * F + F**2) / 3.0
        within += (right - inside) * (G**2 + G * (1.0 - high) + (1.0 - high) ** 2) / 3.0
        below, above = pick(rising, k), pick(falling, k + 1)
        result = below + within + above + np.abs(y - inside)
        for here, distance, mass, scale, upper in self._in_tails(y, k):
            tail = _tail_crps_inside(distance, mass, scale) + (below if upper else above)
            result = np.where(here, tail, result)
        return np.asarray(result)

    def knots(self) -> Array:
        """See Distribution: the borders, and points of the tails."""
        edges = self._edges
        if self._tails is not None:
            steps = np.array([_FAR, 6.0, 4.0, 2.0, 1.0])
            lower, upper = self._tails
            first, last = edges[:, 1:2] - steps * lower[:, None], edges[:, -2:-1] + steps[::-1] * upper[:, None]
            edges = np.concatenate([first, edges[:, 1:-1], last], axis=1)
        return np.broadcast_to(edges, (len(self), edges.shape[1]))

    def characteristic_function(self, t: Array) -> Array:
        """See Distribution: each bin is a uniform distribution, each tail a half-normal one."""
        t = np.asarray(t, dtype=np.float64)
        edges, masses = self._edges, self.probabilities
        centers, half = (edges[:, 1:] + edges[:, :-1]) / 2.0, np.diff(edges, axis=1) / 2.0
        inner = slice(None) if self._tails is None else slice(1, -1)
        if len(edges) == 1:
            waves = np.exp(1j * np.multiply.outer(centers[0], t)) * np.sinc(np.multiply.outer(half[0], t) / np.pi)
            result = masses[:, inner] @ waves[inner]
        else:
            result = average_wave(centers[:, inner], masses[:, inner], t, half_widths=half[:, inner])
        if self._tails is not None:
            lower, upper = (_tail_characteristic_function(t, scale) for scale in self._tails)
            result = result + masses[:, :1] * np.exp(1j * np.multiply.outer(edges[:, 1], t)) * np.conj(lower)
            result = result + masses[:, -1:] * np.exp(1j * np.multiply.outer(edges[:, -2], t)) * upper
        return np.asarray(result)

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution: Gauss-Legendre nodes in each bin, 128 or more in all, and in each tail.

        Kernels with a kink have some three digits so.
        """
        points, weights = self._rule
        if len(points) == 1:
            gram = np.asarray(kernel(points[0], nodes)) * weights[:, None]
            return np.asarray(self.probabilities @ np.add.reduceat(gram, self._starts, axis=0))
        result = np.empty((len(self), len(nodes)))
        for rows in row_slices(len(self), BLOCK_ENTRIES // (len(weights) * max(1, len(nodes)))):
            chosen = points[rows]
            gram = np.asarray(kernel(chosen.ravel(), nodes)).reshape(*chosen.shape, -1) * weights[:, None]
            bins = np.add.reduceat(gram, self._starts, axis=1)
            result[rows] = np.einsum("ib,ibr->ir", self.probabilities[rows], bins)
        return result

    @property
    def _order(self) -> int:
        return max(8, -(-128 // len(self.probabilities[0])))

    @property
    def _starts(self) -> Array:
        """The place of each bin's first node."""
        bins, order = self.probabilities.shape[1], self._order
        starts = np.arange(bins) * order
        if self._tails is not None:
            starts[1:] += len(_tail_rule()[0]) - order
        return starts

    @property
    def _rule(self) -> tuple[Array, Array]:
        """Nodes (1 or n, K), bin by bin, and weights (K,), which sum to 1 within each bin."""
        points, weights = np.polynomial.legendre.leggauss(self._order)
        edges, bins = self._edges, self.probabilities.shape[1]
        nodes = edges[:, :-1, None] + np.diff(edges, axis=1)[:, :, None] * (points + 1.0) / 2.0
        if self._tails is None:
            return nodes.reshape(len(edges), -1), np.tile(weights / 2.0, bins)
        x, w = _tail_rule()
        lower, upper = (scale[:, None] * x for scale in self._tails)
        inner = nodes[:, 1:-1].reshape(len(edges), -1)
        chosen = [edges[:, 1:2] - lower, inner, edges[:, -2:-1] + upper]
        return np.concatenate(chosen, axis=1), np.concatenate([w, np.tile(weights / 2.0, bins - 2), w])


def _mean_square(F: Array, widths: Array) -> Array:
    """The integral of the square of a function that is linear between its values F (n, B + 1), bin by bin."""
    low, high = F[:, :-1], F[:, 1:]
    return np.asarray(widths * (low**2 + low * high + high**2) / 3.0)


# A tail is a half-normal variable H of scale s beyond the inner border of a bin: P(H > x) = erfc(x / (s 2^(1/2))).


def _tail_scale(width: Array, share_beyond: float) -> Array:
    """The scale whose tail has ``share_beyond`` of its mass beyond ``width``."""
    return np.asarray(width / (_ROOT_2 * erfinv(1.0 - share_beyond)))


def _tail_mean(scale: Array) -> Array:
    """E H."""
    return np.asarray(scale * np.sqrt(2.0 / np.pi))


def _tail_log_density(x: Array, scale: Array) -> Array:
    """The logarithm of the density at distances x >= 0."""
    return np.asarray(0.5 * np.log(2.0 / np.pi) - np.log(scale) - 0.5 * (x / scale) ** 2)


def _tail_crps_inside(x: Array, mass: Array, scale: Array) -> Array:
    """The part of the CRPS beyond the inner border, for a target at distance x >= 0 from it within the tail.

    The integral of (1 - p S)^2 from 0 to x and of p^2 S^2 from there on, p the mass of the tail.
    """
    a = scale * _ROOT_2
    u = x / a
    first = mass * a * (1.0 / _ROOT_PI - _erfc_beyond(u))
    squared = mass**2 * a
    return np.asarray(x - 2.0 * first + squared * _SQUARED_WHOLE)


def _tail_crps_outside(mass: Array, scale: Array) -> Array:
    """The same for a target on the other side of the inner border: the integral of p^2 S^2."""
    return np.asarray(mass**2 * scale * _ROOT_2 * _SQUARED_WHOLE)


def _tail_characteristic_function(t: Array, scale: Array) -> Array:
    """E exp(i t H) for scales (n,) and frequencies (m,), (n, m): w(s t / 2^(1/2)) of Faddeeva."""
    return np.asarray(wofz(np.multiply.outer(scale / _ROOT_2, t)))


def _tail_rule() -> tuple[Array, Array]:
    """Nodes, in scales, and weights (k,) of E g(H)."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    half = np.diff(_PANELS)[:, None] / 2.0
    x = (_PANELS[:-1, None] + half * (1.0 + nodes)).ravel()
    w = (half * weights).ravel() * np.exp(_tail_log_density(x, np.ones(1)))
    return x, w / w.sum()


def _erfc_beyond(u: Array) -> Array:
    """The integral of erfc from u on."""
    return np.asarray(np.exp(-u * u) / _ROOT_PI - u * erfc(u))
