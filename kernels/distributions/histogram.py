"""Distributions given by the probabilities of bins: bar distributions, binned and ordinal regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy.special import erfinv

from congruence.kernels.arrays import Array, row_slices, to_numpy
from congruence.kernels.distributions.base import Stated
from congruence.kernels.distributions.cells import Cells
from congruence.kernels.distributions.piecewise import (
    PiecewiseLinear,
    Tail,
    count_below,
    cumulative,
    join_points,
    require_masses,
    require_points,
)
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel

_PANELS = np.array([0.0, 1.0, 2.0, 3.5, 5.5, 9.0])  # of a half-normal distribution


@dataclass(frozen=True, repr=False)
class Histogram(PiecewiseLinear):
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

    def tempered(self, temperature: float) -> Self:
        """See Distribution: a tail keeps its shape, and its bin's probability is tempered as those of others."""
        shares = self.probabilities / self.probabilities.max(axis=1, keepdims=True)
        shares = shares ** (1.0 / temperature)
        return replace(self, probabilities=shares / shares.sum(axis=1, keepdims=True))

    @property
    def _edges(self) -> Array:
        return np.atleast_2d(self.borders)

    @cached_property
    def _cumulative(self) -> Array:
        return cumulative(self.probabilities)

    @property
    def _inner(self) -> Any:
        """Which of the borders have no tail beyond them, twice where that is one."""
        if self.tail_share == 0.0:
            return slice(None)
        return slice(1, -1) if self.probabilities.shape[1] > 2 else [1, 1]

    @property
    def _points(self) -> Array:
        return self._edges[:, self._inner]

    @property
    def _levels(self) -> Array:
        return self._cumulative[:, self._inner]

    @cached_property
    def _tails(self) -> tuple[Tail, ...]:
        if self.tail_share == 0.0:
            return ()
        scales = np.diff(self._edges, axis=1) / (np.sqrt(2.0) * erfinv(1.0 - self.tail_share))
        masses, points = self.probabilities, self._points
        return (
            Tail("normal", False, masses[:, :1], points[:, :1], scales[:, :1]),
            Tail("normal", True, masses[:, -1:], points[:, -1:], scales[:, -1:]),
        )

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

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution: Gauss-Legendre nodes in each bin, 128 or more in all, and in each tail.

        Kernels with a kink have some three digits so.
        """
        points, masses = self._points, self._masses
        x, w = np.polynomial.legendre.leggauss(max(8, -(-128 // self.probabilities.shape[1])))
        places = points[:, :-1, None] + np.diff(points, axis=1)[:, :, None] * (x + 1.0) / 2.0
        result = np.empty((len(self), len(nodes)))
        blocks = row_slices(len(self), BLOCK_ENTRIES // (places[0].size * max(1, len(nodes))))
        for rows in blocks if len(points) > 1 else [slice(None)]:
            means = _averages(kernel, nodes, places[rows], w / 2.0)
            result[rows] = np.einsum("ib,ibr->ir", masses[rows], means) if len(points) > 1 else masses @ means[0]
        for tail in self._tails:
            distances, weights = _half_normal_rule()
            steps = tail.scale * distances
            places = tail.end + steps if tail.is_upper else tail.end - steps
            result += tail.mass * _averages(kernel, nodes, places, weights)
        return result


def _averages(kernel: Kernel, nodes: Array, places: Array, weights: Array) -> Array:
    """Returns sum_k w_k k(x_k, t_j) over places x (..., K), shape (..., r)."""
    gram = np.asarray(kernel(places.ravel(), nodes)).reshape(*places.shape, len(nodes))
    return np.asarray(np.einsum("...kr,k->...r", gram, weights))


def _half_normal_rule() -> tuple[Array, Array]:
    """Returns nodes and weights (k,) of E g(H) for the half-normal distribution of H."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    half = np.diff(_PANELS)[:, None] / 2.0
    x = (_PANELS[:-1, None] + half * (1.0 + nodes)).ravel()
    w = (half * weights).ravel() * np.exp(-0.5 * x * x)
    return x, w / w.sum()
