r"""Kernel means of laws on a line under Laplacian and Matern kernels, to rounding: E k(Y, .) and their products.

Such a kernel of smoothness p + 1/2 is an integral over one-sided features,

.. math::  k(s, t) = \frac{2^{2p + 1} a}{(2p)!} \int_{-\infty}^{\min(s, t)}
           g_p(a (s - u))\, g_p(a (t - u))\, du, \qquad g_q(x) = x^q e^{-x},

and itself a sum of g_q(a |s - t|), q <= p. Both sides of the means, E g_q(a (Y - u))_+ and E g_q(a (u - Y))_+, follow
from the distribution function by parts and from one cell to the next by the binomial theorem, in terms of one sign:
O(n m) for n laws and m nodes. They are as smooth as the law between its breaks, so a cell has Gauss-Legendre nodes,
which give products by their weights and E k(Y, y) at any y by interpolation. Cells are halved until the last Legendre
coefficients are below 1e-11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.kernel_functions import Kernel, Laplacian, Matern
from congruence.kernels.streams import stream
from congruence.kernels.threads import available_threads, map_on_threads

_ORDER, _MOST_CELLS = 16, 1500
_TAIL = 1e-12
_TOLERANCE, _WORST = 1e-11, 1e-9
_ROWS = 48  # that cells are made for before all rows are looked at
_ROUNDS, _LOOKS = 80, 8
_MOST_ENTRIES = 50_000_000  # 400 MB
_CHUNK_ENTRIES = 2_000_000
_PIECES = np.array([0.0, 2.0, 4.0, 8.0, 16.0, 48.0])  # of exp(-x), beyond which nothing is left


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

    def last(self, values: Array) -> Array:
        """The larger of the last two Legendre coefficients of values at the nodes, (..., m) to (...)."""
        powers = np.arange(self.order - 2, self.order)
        rows = np.polynomial.legendre.legvander(2.0 * self.nodes - 1.0, self.order - 1)[:, -2:] * (2.0 * powers + 1.0)
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


_PIECE = Rule(16)


@dataclass(frozen=True)
class HalfIntegerKernel:
    """sum over q of coefficients[q] x^q exp(-x) at x = rate |s - t|."""

    rate: float
    coefficients: tuple[float, ...]

    @classmethod
    def of(cls, term: Kernel) -> HalfIntegerKernel | None:
        """A Laplacian or Matern kernel as one; None for other kernels."""
        if isinstance(term, Laplacian):
            return cls(term.gamma, (1.0,))
        if isinstance(term, Matern):
            known = {0.5: (1.0,), 1.5: (1.0, 1.0), 2.5: (1.0, 1.0, 1.0 / 3.0)}
            return cls(math.sqrt(2.0 * term.nu) / term.length_scale, known[term.nu])
        return None

    @property
    def degree(self) -> int:
        """p."""
        return len(self.coefficients) - 1

    def __call__(self, distances: Array) -> Array:
        """k at distances of any shape."""
        x = self.rate * np.abs(distances)
        return np.asarray(np.polynomial.polynomial.polyval(x, self.coefficients) * np.exp(-x))


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

    def weights_at(self, y: Array) -> tuple[Array, Array]:
        """Which nodes give the value of a function at y (n,), and with what weights, (n, m) each."""
        cell = np.clip(np.searchsorted(self.edges, y, side="right") - 1, 0, len(self.edges) - 2)
        place = np.clip((y - self.edges[cell]) / (self.edges[cell + 1] - self.edges[cell]), 0.0, 1.0)
        return cell[:, None] * self.rule.order + np.arange(self.rule.order), self.rule.at(place)


@dataclass(frozen=True)
class LineMeans:
    """E k(Y_i, .) of n laws.

    Attributes:
        cells: where ``values`` are.
        features: rows whose products are <E k(Y_i, .), E k(Y_j, .)>, (n, r).
        values: E k(u, Y_i) at the nodes u of the cells, (n, m).
    """

    cells: Cells
    features: Array = field(repr=False)
    values: Array = field(repr=False)


def line_means(
    predictive: Distribution, terms: tuple[HalfIntegerKernel, ...], low: float, high: float
) -> LineMeans | None:
    """The means under the sum of ``terms``, with nodes at least from ``low`` to ``high``.

    None where they would take more than 1,500 cells or 400 MB (laws that bend at more than a thousand places of their
    own), and where a distribution function jumps at places that the law does not name.
    """
    ends = predictive.interval(_TAIL)
    low, high = min(low, ends[0]), max(high, ends[1])
    breaks = predictive.breaks()
    edges = np.unique(np.concatenate([[low, high], breaks[(breaks > low) & (breaks < high)]]))
    cells, n = Cells(edges, Rule(_ORDER)), len(predictive)
    if low == high or _is_too_much(cells, n, terms):
        return None
    rows = np.sort(stream(0, "rows of the line").permutation(n)[:_ROWS])
    for _ in range(_LOOKS):
        refined = _refined(predictive[rows], terms, cells, n)
        if refined is None:
            return None
        cells = refined
        means, wrong = _all_rows(predictive, terms, cells)
        rows = np.flatnonzero(wrong > _TOLERANCE)
        if len(rows) == 0:
            break
        rows = rows[np.argsort(-wrong[rows])][:_ROWS]
    return means if np.max(wrong) <= _WORST else None


def _is_too_much(cells: Cells, n: int, terms: tuple[HalfIntegerKernel, ...]) -> bool:
    return len(cells.edges) > _MOST_CELLS or n * cells.count * (len(terms) + 1) > _MOST_ENTRIES


def _refined(law: Distribution, terms: tuple[HalfIntegerKernel, ...], cells: Cells, n: int) -> Cells | None:
    """Cells in which these few laws and their means are polynomials; None where too many would be needed."""
    for _ in range(_ROUNDS):
        _, _, wrong = _means(law, terms, cells)
        bad = cells.wide & (np.max(wrong, axis=0) > _TOLERANCE)
        if not bad.any():
            return cells
        middle = (cells.edges[:-1][bad] + cells.edges[1:][bad]) / 2.0
        cells = replace(cells, edges=np.union1d(cells.edges, middle))
        if _is_too_much(cells, n, terms):
            return None
    return cells


def _all_rows(law: Distribution, terms: tuple[HalfIntegerKernel, ...], cells: Cells) -> tuple[LineMeans, Array]:
    """The means, and the largest error of each row."""
    n = len(law)
    features = np.empty((n, sum(cells.count + term.degree + 1 for term in terms)))
    values, wrong = np.empty((n, cells.count)), np.empty(n)
    chunk = max(1, _CHUNK_ENTRIES // cells.count)

    def fill(start: int) -> None:
        rows = slice(start, start + chunk)
        features[rows], values[rows], found = _means(law[rows], terms, cells)
        wrong[rows] = np.max(found, axis=1, where=cells.wide, initial=0.0)

    starts = range(0, n, chunk)
    map_on_threads(fill, starts, min(len(starts), available_threads()))
    return LineMeans(cells, features, values), wrong


def _means(law: Distribution, terms: tuple[HalfIntegerKernel, ...], cells: Cells) -> tuple[Array, Array, Array]:
    """Features, values, and of each law in each cell the largest of the last Legendre coefficients."""
    edges, rule, widths = cells.edges, cells.rule, np.diff(cells.edges)
    nodes = edges[:-1, None] + widths[:, None] * rule.nodes
    at, at_edges = law.cdf(nodes.reshape(1, -1)).reshape(-1, *nodes.shape), law.cdf(edges[None, :])
    before = law.cdf_left(edges[None, :])
    atoms = at_edges - before
    atoms[:, 0], atoms[:, -1] = at_edges[:, 0], 1.0 - before[:, -1]
    # Mass from a place to the end of its cell, and from the start of its cell, with that of the whole cell first.
    whole = (before[:, 1:] - at_edges[:, :-1])[:, :, None]
    above = np.concatenate([whole, before[:, 1:, None] - at], axis=2)
    below = np.concatenate([whole, (at - at_edges[:, :-1, None])[:, :, ::-1]], axis=2)
    wrong = rule.last(above[:, :, 1:]) * np.minimum(1.0, max(term.rate for term in terms) * widths)
    values, parts = np.zeros(at.shape), []
    for term in terms:
        steps = term.rate * widths
        slopes = _slopes(steps, term.degree, rule)
        first, right = _one_side(above, atoms, steps, slopes, rule)
        _, left = _one_side(below[:, ::-1], atoms[:, ::-1], steps[::-1], slopes[:, ::-1], rule)
        mean = np.tensordot(term.coefficients, right + left[:, :, ::-1, ::-1], axes=1)
        constant = 2.0 ** (2 * term.degree + 1) / math.factorial(2 * term.degree)
        weights = np.sqrt(constant * steps[:, None] * rule.weights)
        parts += [(right[-1] * weights).reshape(len(values), -1), first.T @ _beyond(term.degree)]
        wrong = np.maximum(wrong, rule.last(mean) * np.minimum(1.0, steps))
        wrong = np.maximum(wrong, rule.last(right[-1]) * np.sqrt(np.minimum(1.0, steps)))
        values += mean
    return np.concatenate(parts, axis=1), values.reshape(len(values), -1), wrong


def _one_side(mass: Array, atoms: Array, steps: Array, slopes: Array, rule: Rule) -> tuple[Array, Array]:
    """E g_q(a (Y - u))_+ at the first edge, (p + 1, n), and at the nodes of all cells, (p + 1, n, cells, m)."""
    degree = len(slopes) - 1
    inside = np.matmul(slopes, np.ascontiguousarray(mass[:, :, 1:].transpose(1, 2, 0))[None])
    inside[0] += mass.transpose(1, 2, 0)  # (p + 1, cells, 1 + m, n): at the start of the cell, and at its nodes
    x = steps[:, None] * np.concatenate([[1.0], 1.0 - rule.nodes])
    decay = np.exp(-x)
    carried = np.zeros((degree + 1, len(mass)))
    for cell in range(len(steps) - 1, -1, -1):
        carried[0] += atoms[:, cell + 1]
        for q in range(degree + 1):
            for j in range(q + 1):
                shift = math.comb(q, j) * x[cell] ** (q - j) * decay[cell]
                inside[q, cell] += shift[:, None] * carried[j]
        carried = inside[:, cell, 0].copy()
    carried[0] += atoms[:, 0]
    return carried, inside[:, :, 1:].transpose(0, 3, 1, 2)


def _slopes(steps: Array, degree: int, rule: Rule) -> Array:
    """The integrals of g_q'(x) times the mass above x, from the start and the nodes of each cell to its end.

    Of values at the nodes, (p + 1, cells, 1 + m, m), by Gauss-Legendre on pieces of the exponential.
    """
    starts = np.concatenate([[0.0], rule.nodes])
    lengths = steps[:, None] * (1.0 - starts)
    result = np.zeros((degree + 1, len(steps), len(starts), rule.order))
    for low, high in pairwise(_PIECES):
        cells = np.flatnonzero(lengths[:, 0] > low)
        long = np.clip(np.minimum(lengths[cells], high) - low, 0.0, None)[:, :, None]
        for some in np.array_split(np.arange(len(cells)), 1 + len(cells) // 512):
            x = low + long[some] * _PIECE.nodes
            inner = rule.at(starts[:, None] + x / steps[cells[some], None, None])
            for q in range(degree + 1):
                slope = (q * x ** max(q - 1, 0) - x**q) * np.exp(-x) * (long[some] * _PIECE.weights)
                result[q, cells[some]] += np.matmul(slope[:, :, None, :], inner)[:, :, 0]
    return result


@lru_cache(maxsize=4)
def _beyond(degree: int) -> Array:
    """The factor of the products of E g_p before the first edge, of E g_q there, (p + 1, p + 1)."""
    powers = range(degree + 1)
    gram = [
        [
            math.comb(degree, j) * math.comb(degree, k) * math.factorial(2 * degree - j - k)
            / (math.factorial(2 * degree) * 2.0 ** (-j - k))
            for k in powers
        ]
        for j in powers
    ]  # fmt: skip
    return np.linalg.cholesky(np.array(gram))
