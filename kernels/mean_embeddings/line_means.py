r"""Kernel means of laws on a line under Laplacian and Matern kernels, to rounding: E k(Y, .) and their products.

Such a kernel of smoothness p + 1/2 is an integral over one-sided features,

.. math::  k(s, t) = \frac{2^{2p + 1} a}{(2p)!} \int_{-\infty}^{\min(s, t)}
           g_p(a (s - u))\, g_p(a (t - u))\, du, \qquad g_q(x) = x^q e^{-x},

and itself a sum of g_q(a |s - t|), q <= p. Both sides of the means, E g_q(a (Y - u))_+ and E g_q(a (u - Y))_+, follow
from the distribution function by parts and from one cell to the next by the binomial theorem, in terms of one sign:
O(n m) for n laws and m nodes. They are as smooth as the law between its breaks, so a cell has Gauss-Legendre nodes,
which give products by their weights and E k(Y, y) at any y by interpolation. Cells are halved until the last Legendre
coefficients are below 1e-11. Cells begin and end where laws break; of laws that break at more places than there can be
cells, each at its own, the breaks lie within cells (``line_cells``), which are halved until what that moves is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions import Distribution
from congruence.kernels.kernel_functions import Kernel, Laplacian, Matern
from congruence.kernels.mean_embeddings.line_cells import BrokenCells, Cells, Rule
from congruence.kernels.streams import stream
from congruence.kernels.threads import map_on_threads

_MOST_CELLS = 1500
_TAIL = 1e-12
_TOLERANCE, _WORST = 1e-11, 1e-9
_MOVED, _MOST_MOVED = 1e-10, 3e-7
"""How far, squared, laws that break within cells may be moved in the mean: wanted, and at most. Only pairs of rows that
share such a cell see it, by either sign: a mean over all pairs moves by some .02 of it."""
_FOR_SMOOTH = 150  # cells, that breaks leave to what bends smoothly
_ROWS = 48  # that cells are made for before all rows are looked at
_ROUNDS, _LOOKS = 80, 8
_BREAKING = 1024  # rows whose breaks are looked at together
_MOST_ENTRIES = 100_000_000  # 800 MB: features of so many rows take as much
_CHUNK_ENTRIES = 2_000_000
_PIECES = np.array([0.0, 2.0, 4.0, 8.0, 16.0, 48.0])  # of exp(-x), beyond which nothing is left


_RULE = Rule(16)


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

    @property
    def smoothness(self) -> tuple[float, float]:
        """2 pi max of w^2 times the spectral density at frequencies w, and of w^4 times it."""
        first, second = ((2.0, np.inf), (1.0, 4.0), (64.0 / 81.0, 64.0 / 81.0))[self.degree]
        return first * self.rate, second * self.rate**3

    def energy(self, widths: Array) -> Array:
        """What k makes of the integral of (F - F~)^2 over cells of these widths, at most.

        See ``smoothness``; the second is of the integral of F - F~, which the polynomials that F - F~ is orthogonal to
        leave 1 / 31 of the width, at most.
        """
        first, second = self.smoothness
        return np.minimum(first, second * (widths / (2.0 * _RULE.order - 1.0)) ** 2)

    def __call__(self, distances: Array) -> Array:
        """k at distances of any shape."""
        x = self.rate * np.abs(distances)
        return np.asarray(np.polynomial.polynomial.polyval(x, self.coefficients) * np.exp(-x))


@dataclass(frozen=True)
class LineMeans:
    """E k(Y_i, .) of n laws.

    Attributes:
        cells: where ``values`` are.
        features: rows whose products are <E k(Y_i, .), E k(Y_j, .)>, (n, r).
        values: E k(u, Y_i) at the nodes u of the cells, (n, m).
        moved: |E k(Y_i, .) - E k(Y~_i, .)|^2, at most, of Y~_i that stand for laws that break within cells, (n,).
    """

    cells: Cells
    features: Array = field(repr=False)
    values: Array = field(repr=False)
    moved: Array = field(repr=False)


def line_means(
    predictive: Distribution, terms: tuple[HalfIntegerKernel, ...], low: float, high: float
) -> LineMeans | None:
    """The means under the sum of ``terms``, with nodes at least from ``low`` to ``high``.

    None where they would take more than 1,500 cells or 800 MB, where a distribution function jumps at places that the
    law does not name, and where laws that break at too many places would be moved too far.
    """
    ends = predictive.interval(_TAIL)
    low, high, n = min(low, ends[0]), max(high, ends[1]), len(predictive)
    if low == high:
        return None
    breaks, times = np.unique(predictive.breaks(), return_counts=True)
    inside = (breaks > low) & (breaks < high)
    edges = np.concatenate([[low], breaks[inside], [high]])
    most = _most_cells(n, terms)
    if len(edges) > max(most - _FOR_SMOOTH, most // 4):
        edges = np.concatenate([[low], breaks[inside & (times > n // _ROWS)], [high]])
    cells = Cells(edges, _RULE)
    rows = np.sort(stream(0, "rows of the line").permutation(n)[:_ROWS])
    for _ in range(_LOOKS):
        refined = _refined(predictive[rows], terms, cells, most)
        if refined is None:
            return None
        cells = refined
        means, wrong = _all_rows(predictive, terms, cells)
        rows = np.flatnonzero(wrong > _TOLERANCE)
        if len(rows) == 0:
            break
        rows = rows[np.argsort(-wrong[rows])][:_ROWS]
    if np.max(wrong) > _WORST:
        return None
    if np.mean(means.moved) > _MOVED:
        means, _ = _all_rows(predictive, terms, _halved_at_breaks(predictive, terms, cells, most))
    return means if np.mean(means.moved) <= _MOST_MOVED else None


def _most_cells(n: int, terms: tuple[HalfIntegerKernel, ...]) -> int:
    return min(_MOST_CELLS, _MOST_ENTRIES // (n * _RULE.order * (len(terms) + 1)))


def _refined(law: Distribution, terms: tuple[HalfIntegerKernel, ...], cells: Cells, most: int) -> Cells | None:
    """Cells in which these few laws and their means are polynomials; None where too many would be needed."""
    for _ in range(_ROUNDS):
        if len(cells.edges) > most:
            return None
        _, _, wrong = _means(law, terms, cells, BrokenCells.of(law, cells))
        bad = cells.wide & (np.max(wrong, axis=0) > _TOLERANCE)
        if not bad.any():
            return cells
        cells = cells.halved(bad)
    return cells


def _halved_at_breaks(law: Distribution, terms: tuple[HalfIntegerKernel, ...], cells: Cells, most: int) -> Cells:
    """Cells within which laws break halved, as far as there is room: those first that move a law the most."""
    for _ in range(_ROUNDS):
        moved = cells.wide * _energy(terms, cells) * _missed(law, cells)
        far = np.flatnonzero(moved > np.max(moved) / 8.0)
        far = far[np.argsort(-moved[far])][: max(0, most - len(cells.edges))]
        if np.sum(moved) <= _MOVED or len(far) == 0:
            break
        cells = cells.halved(far)
    return cells


def _missed(law: Distribution, cells: Cells) -> Array:
    """The mean over rows of the integral of (F - F~)^2, (cells,)."""

    def missed(rows: slice) -> Array:
        return BrokenCells.of(law[rows], cells).by_cell(len(cells.edges) - 1)

    return np.asarray(np.sum(map_on_threads(missed, row_slices(len(law), _BREAKING)), axis=0) / len(law))


def _energy(terms: tuple[HalfIntegerKernel, ...], cells: Cells) -> Array:
    return np.asarray(np.sum([term.energy(np.diff(cells.edges)) for term in terms], axis=0))


def _all_rows(law: Distribution, terms: tuple[HalfIntegerKernel, ...], cells: Cells) -> tuple[LineMeans, Array]:
    """The means, and the largest error of each row."""
    n = len(law)
    features = np.empty((n, sum(cells.count + term.degree + 1 for term in terms)))
    values, (wrong, moved) = np.empty((n, cells.count)), np.empty((2, n))
    energy = _energy(terms, cells)

    def fill(rows: slice) -> None:
        some = law[rows]
        broken = BrokenCells.of(some, cells)
        features[rows], values[rows], found = _means(some, terms, cells, broken)
        wrong[rows] = np.max(found, axis=1, where=cells.wide, initial=0.0)
        moved[rows] = np.bincount(broken.rows, energy[broken.cells] * broken.missed, len(some))

    map_on_threads(fill, row_slices(n, _CHUNK_ENTRIES // cells.count))
    return LineMeans(cells, features, values, moved), wrong


def _means(
    law: Distribution, terms: tuple[HalfIntegerKernel, ...], cells: Cells, broken: BrokenCells
) -> tuple[Array, Array, Array]:
    """Features, values, and of each law the largest last Legendre coefficient in each cell, 0 in broken ones."""
    edges, rule, widths = cells.edges, cells.rule, np.diff(cells.edges)
    nodes = edges[:-1, None] + widths[:, None] * rule.nodes
    at, at_edges = law.cdf(nodes.reshape(1, -1)).reshape(-1, *nodes.shape), law.cdf(edges[None, :])
    at[broken.rows, broken.cells] = broken.values
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
    wrong[broken.rows, broken.cells] = 0.0
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
            x = low + long[some] * _RULE.nodes
            inner = rule.at(starts[:, None] + x / steps[cells[some], None, None])
            for q in range(degree + 1):
                slope = (q * x ** max(q - 1, 0) - x**q) * np.exp(-x) * (long[some] * _RULE.weights)
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
