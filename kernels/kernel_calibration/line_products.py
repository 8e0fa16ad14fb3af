r"""Exact products of errors under Laplacian and Matern output kernels of one target.

Of mass 0, the measure mu_i = delta(y_i) - P_i has an error D_i with

.. math::  \langle D_i, D_j \rangle = c^2 \int g_i(u) g_j(u) \, du, \qquad
           g_i(u) = \int_{t > u} (t - u)^{p-1} e^{-a (t - u)} \, \mu_i(dt), \quad p = \nu + 1/2,

since exp(-a r) times its polynomial is the correlation of that function with itself. g_i is made of the cdf of mu_i,
1[y_i <= u] - F_i(u), on cells of a line that it is smooth in, and the integrals are Gauss-Legendre's.
"""

from __future__ import annotations

import math

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.features import Density, target_range

ORDER = 12  # nodes of a cell
_TAIL = 1e-13  # of every prediction on each side of the line
_TOLERANCE = 1e-12
_REACH, _WIDEST = 50.0, 2.0  # in units of 1 / a: where a jump is forgotten, and cells that are nearer to one
_FIRST_CELLS, _DEEPEST = 16, 60
_ENTRIES = 8_000_000  # of a temporary array

_ROOTS, _WEIGHTS = np.polynomial.legendre.leggauss(ORDER)
NODES, WEIGHTS = (1.0 + _ROOTS) / 2.0, _WEIGHTS / 2.0


def line_products(y: Array, predictive: Distribution, term: Density) -> Array:
    """Returns [<D_i, D_j>], (n, n), for targets y (n,) under one Laplacian or Matern kernel."""
    edges = line_cells(y, predictive, term.scale)
    power = round(term.nu + 0.5)
    norm = (2.0 * term.scale) ** (2 * power - 1) / math.factorial(2 * power - 2) * math.factorial(power - 1) ** 2
    products, right = np.zeros((len(y), len(y))), np.zeros((len(y), power))
    at_once = max(1, _ENTRIES // (ORDER * len(y)))
    for last in range(len(edges) - 1, 0, -at_once):  # g is an integral from the right
        some = edges[max(last - at_once, 0) : last + 1]
        values = _measures(y, predictive, some)
        widths = np.diff(some)
        solved = np.linalg.inv(np.eye(ORDER) + term.scale * widths[:, None, None] * _FROM_NODE)
        for cell in range(len(widths) - 1, -1, -1):
            values[:, cell] = _passed(values[:, cell], right, widths[cell], solved[cell], term.scale)
        values *= np.sqrt(norm * widths[:, None] * WEIGHTS)
        flat = values.reshape(len(y), -1)
        products += flat @ flat.T
    return products


def _passed(cdf: Array, right: Array, width: float, solved: Array, rate: float) -> Array:
    """Returns g (n, ORDER) at the nodes of a cell; moves its integrals ``right`` (n, p) from the end to the start.

    x(u), the integral of f(t) exp(-a (t - u)) over t > u, has x' = a x - f: collocation, stiff cells too.
    """
    values = cdf
    for stage in range(right.shape[1]):
        found = (right[:, stage, None] + width * values @ _FROM_NODE.T) @ solved.T
        right[:, stage] += width * (values - rate * found) @ WEIGHTS
        values = rate * found - cdf if stage == 0 else found
    return values


def line_cells(y: Array, predictive: Distribution, rate: float) -> Array:
    """Returns edges of cells in which every measure has a smooth cdf, narrow where a jump to the right is near."""
    low, high = target_range(y, predictive, _TAIL)
    breaks = predictive.breaks()
    breaks = np.unique(np.concatenate([y, breaks[np.isfinite(breaks)].ravel()]))
    breaks = breaks[(breaks >= low) & (breaks <= high)]
    start = low - _REACH / rate
    cells = np.union1d(np.linspace(start, high, _FIRST_CELLS + 1), np.append(breaks, low))
    left, right = cells[:-1], cells[1:]
    done = [np.array([start])]
    for _ in range(_DEEPEST):
        following = np.append(breaks, np.inf)[np.searchsorted(breaks, right)]
        wide = (rate * (right - left) > _WIDEST) & (following - right < _REACH / rate)
        middle = (left + right) / 2.0
        halved = (wide | (_roughness(predictive, left, right) * rate > _TOLERANCE)) & (left < middle) & (middle < right)
        done += [right[~halved]]
        left, middle, right = left[halved], middle[halved], right[halved]
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
        if len(left) == 0:
            break
    return np.unique(np.concatenate([*done, right]))


def _roughness(predictive: Distribution, left: Array, right: Array) -> Array:
    """Returns by how much an integral over each cell may be wrong, of any row: the last coefficients of the cdf."""
    rough = np.empty(len(left))
    at_once = max(1, _ENTRIES // (ORDER * len(predictive)))
    for first in range(0, len(left), at_once):
        some = slice(first, first + at_once)
        widths = right[some] - left[some]
        places = left[some, None] + widths[:, None] * NODES
        values = predictive.cdf(places.ravel()[None, :]).reshape(len(predictive), -1, ORDER)
        rough[some] = np.max(np.abs(values @ _LAST_COEFFICIENTS), axis=(0, 2)) * widths
    return rough


def _measures(y: Array, predictive: Distribution, edges: Array) -> Array:
    """Returns the cdf of mu_i at the nodes of cells, (n, cells, ORDER)."""
    places = edges[:-1, None] + np.diff(edges)[:, None] * NODES
    cdf = predictive.cdf(places.ravel()[None, :]).reshape(len(y), *places.shape)
    return np.asarray((y[:, None, None] <= places) - cdf)


def _to_coefficients() -> Array:
    """Returns the matrix from values at the nodes to coefficients of Legendre polynomials, (ORDER, ORDER)."""
    return np.asarray(np.linalg.inv(np.polynomial.legendre.legvander(_ROOTS, ORDER - 1)).T)


def _integrals_from_nodes() -> Array:
    """Returns the integral of each node's polynomial from node k to the end of the unit cell, (ORDER, ORDER)."""
    whole = np.polynomial.legendre.legint(np.eye(ORDER))  # (ORDER + 1, ORDER), a column each
    values = np.polynomial.legendre.legval(np.ones(1), whole).T - np.polynomial.legendre.legval(_ROOTS, whole).T
    return np.asarray(values @ _to_coefficients().T / 2.0)


_FROM_NODE = _integrals_from_nodes()
_LAST_COEFFICIENTS = _to_coefficients()[:, -2:]
