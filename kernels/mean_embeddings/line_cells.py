r"""Cells on a line with Gauss-Legendre nodes in each, and laws whose distribution functions break within a cell.

Where a law breaks within a cell (a Laplace law at its location, a uniform one at its ends, quantiles at each) its
distribution function F is taken for its projection F~ on the polynomials that the nodes hold. What that moves,

.. math::  E k(Y, .) - E k(Y~, .) = \int k'(., y) (F - F~)(y) dy,

is orthogonal to whatever is smooth in the cell: only laws that break there too, and targets there, see anything of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution


@dataclass(frozen=True)
class Rule:
    """Gauss-Legendre nodes and weights on (0, 1)."""

    order: int

    @cached_property
    def nodes(self) -> Array:
        """(m,)"""
        return np.asarray((np.polynomial.legendre.leggauss(self.order)[0] + 1.0) / 2.0)

    @cached_property
    def weights(self) -> Array:
        """(m,)"""
        return np.asarray(np.polynomial.legendre.leggauss(self.order)[1] / 2.0)

    @cached_property
    def _at_nodes(self) -> Array:
        return self.polynomials(self.nodes)

    def polynomials(self, places: Array) -> Array:
        """Orthonormal polynomials at places in [0, 1], (..., m)."""
        return np.asarray(
            np.polynomial.legendre.legvander(2.0 * places - 1.0, self.order - 1)
            * np.sqrt(2.0 * np.arange(self.order) + 1.0)
        )

    def of_coefficients(self, coefficients: Array) -> Array:
        """The values at the nodes of a sum of these polynomials."""
        return np.asarray(coefficients @ self._at_nodes.T)

    def last(self, values: Array) -> Array:
        """The larger of the last two Legendre coefficients of values at the nodes, (..., m) to (...)."""
        rows = self._at_nodes[:, -2:] * np.sqrt(2.0 * np.arange(self.order - 2, self.order) + 1.0)
        return np.asarray(np.max(np.abs(values @ (rows * self.weights[:, None])), axis=-1))

    def at(self, places: Array) -> Array:
        """The weights of the values at the nodes for the value at places in [0, 1], (..., m): barycentric."""
        t = self.nodes
        apart = places[..., None] - t
        at_node = np.abs(apart) < 1e-15
        terms = (-1.0) ** np.arange(self.order) * np.sqrt(t * (1.0 - t) * self.weights)
        terms = terms / np.where(at_node, 1.0, apart)
        terms = np.where(at_node.any(axis=-1, keepdims=True), at_node, terms)
        return np.asarray(terms / terms.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class Cells:
    """Cells between increasing edges, with the nodes of a rule in each."""

    edges: Array
    rule: Rule

    @property
    def count(self) -> int:
        """Number of nodes."""
        return (len(self.edges) - 1) * self.rule.order

    @property
    def wide(self) -> Array:
        """Whether there is room to halve a cell."""
        return np.asarray(np.diff(self.edges) > 1e-15 * (np.abs(self.edges[1:]) + np.abs(self.edges[:-1])))

    def halved(self, which: Array) -> Cells:
        """With some cells, (cells,), cut in two."""
        middle = (self.edges[:-1][which] + self.edges[1:][which]) / 2.0
        return replace(self, edges=np.union1d(self.edges, middle))

    def weights_at(self, y: Array) -> tuple[Array, Array]:
        """Which nodes give the value of a function at y (n,), and with what weights, (n, m) each."""
        cell = np.clip(np.searchsorted(self.edges, y, side="right") - 1, 0, len(self.edges) - 2)
        place = np.clip((y - self.edges[cell]) / (self.edges[cell + 1] - self.edges[cell]), 0.0, 1.0)
        return cell[:, None] * self.rule.order + np.arange(self.rule.order), self.rule.at(place)


@dataclass(frozen=True)
class BrokenCells:
    """The cells within which a law breaks.

    Attributes:
        rows, cells: which, (p,) each.
        values: F~ at the nodes, (p, m).
        missed: the integral of (F - F~)^2 over the cell, (p,).
    """

    rows: Array = field(repr=False)
    cells: Array = field(repr=False)
    values: Array = field(repr=False)
    missed: Array = field(repr=False)

    @classmethod
    def of(cls, law: Distribution, cells: Cells) -> BrokenCells:
        """Of n laws, by Gauss-Legendre between their breaks."""
        edges, rule = cells.edges, cells.rule
        breaks = law.breaks()
        inside = (breaks > edges[0]) & (breaks < edges[-1])
        of_row, places = np.nonzero(inside)[0], breaks[inside]
        cell = np.searchsorted(edges, places, side="right") - 1
        within = places > edges[cell]
        of_row, places, cell = of_row[within], places[within], cell[within]
        pairs, which = np.unique(of_row * len(edges) + cell, return_inverse=True)
        rows, cell = np.divmod(pairs, len(edges))
        if len(pairs) == 0:
            return cls(rows, cell, np.empty((0, rule.order)), np.empty(0))
        left, widths = edges[cell], edges[cell + 1] - edges[cell]
        # Pieces of each cell, from its start by its breaks to its end.
        owner = np.concatenate([which, np.arange(len(pairs)), np.arange(len(pairs))])
        ends = np.concatenate([places, left, edges[cell + 1]])
        order = np.lexsort((ends, owner))
        owner, ends = owner[order], ends[order]
        piece = np.flatnonzero(owner[1:] == owner[:-1])
        owner, lengths = owner[piece], np.diff(ends)[piece]
        nodes = ends[piece, None] + lengths[:, None] * rule.nodes
        weights = (lengths / widths[owner])[:, None] * rule.weights
        first = np.searchsorted(owner, np.arange(len(pairs)))
        values = law[rows[owner]].cdf(nodes)
        basis = rule.polynomials((nodes - left[owner, None]) / widths[owner, None])
        projected = np.einsum("ij,ijk->ik", values * weights, basis)
        coefficients = np.add.reduceat(projected, first)
        apart = values - np.einsum("ijk,ik->ij", basis, coefficients[owner])
        missed = np.bincount(owner, np.einsum("ij,ij,ij->i", apart, apart, weights), len(pairs)) * widths
        return cls(rows, cell, rule.of_coefficients(coefficients), missed)

    def by_cell(self, cells: int) -> Array:
        """What all laws missed in each cell, (cells,)."""
        return np.bincount(self.cells, self.missed, cells)
