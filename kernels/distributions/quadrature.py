"""Expectations without a closed form, by Gauss-Legendre quadrature over the quantile function.

E g(Y) is the integral of g(Q(p)) over p in (0, 1). Panels shrink geometrically towards 0 and 1, where the quantile
function of an unbounded family rises without limit, so a few hundred nodes reach 1e-10 for smooth g.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.waves import average_wave
from congruence.kernels.kernel_functions import Kernel

if TYPE_CHECKING:
    from congruence.kernels.distributions.base import Distribution


BLOCK_ENTRIES = 2_000_000  # numbers per temporary array: 16 MB in float64


@lru_cache(maxsize=4)
def probability_rule(panels: int = 30, order: int = 8) -> tuple[Array, Array]:
    """Nodes p (k,) and weights (k,) on (0, 1), with ``panels`` panels per side halving towards each end."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    edges = np.concatenate([[0.0], 0.5 ** np.arange(panels, 0, -1)])
    widths, centers = np.diff(edges), (edges[:-1] + edges[1:]) / 2
    p = (centers[:, None] + 0.5 * widths[:, None] * nodes).ravel()
    w = (0.5 * widths[:, None] * weights).ravel()
    return np.concatenate([p, 1.0 - p[::-1]]), np.concatenate([w, w[::-1]])


def kernel_expectation(distribution: Distribution, kernel: Kernel, nodes: Array) -> Array:
    """E k(t_j, Y_i), shape (n, r), row block by row block; a sum of kernels part by part."""
    if len(kernel.terms) > 1:
        return np.asarray(sum(distribution.kernel_expectation(term, nodes) for term in kernel.terms))
    p, w = probability_rule()
    result = np.empty((len(distribution), len(nodes)))
    block = max(1, BLOCK_ENTRIES // (len(p) * max(1, len(nodes))))
    for start in range(0, len(distribution), block):
        rows = distribution[start : start + block]
        values = rows.quantile(p[None, :])
        gram = np.asarray(kernel(values.ravel(), nodes)).reshape(len(rows), len(p), len(nodes))
        result[start : start + block] = np.einsum("ikr,k->ir", gram, w)
    return result


def characteristic_function(distribution: Distribution, t: Array) -> Array:
    """E exp(i t_j Y_i), shape (n, m)."""
    p, w = probability_rule()
    result = np.empty((len(distribution), len(t)), dtype=np.complex128)
    block = max(1, BLOCK_ENTRIES // len(p))
    for start in range(0, len(distribution), block):
        values = distribution[start : start + block].quantile(p[None, :])
        result[start : start + block] = average_wave(values, w, t)
    return result


def crps(distribution: Distribution, y: Array) -> Array:
    """Integral of (F(s) - 1[y <= s])^2 over s, for y (n, k): Gauss-Legendre between the knots of the cdf and y."""
    order = 1 if distribution.is_discrete else 8  # the cdf of counts is constant between its knots
    nodes, weights = np.polynomial.legendre.leggauss(order)
    columns = []
    knots = distribution.knots()
    block = max(1, BLOCK_ENTRIES // (order * (knots.shape[1] + 1)))
    for column in y.T:
        scores = np.empty(len(y))
        for start in range(0, len(y), block):
            rows = slice(start, start + block)
            edges = np.sort(np.concatenate([knots[rows], column[rows, None]], axis=1), axis=1)
            half = np.diff(edges, axis=1) / 2
            s = ((edges[:, 1:] + edges[:, :-1]) / 2)[:, :, None] + half[:, :, None] * nodes
            flat = s.reshape(len(s), -1)
            error = distribution[rows].cdf(flat) - (column[rows, None] <= flat)
            scores[rows] = np.einsum("iab,b,ia->i", (error**2).reshape(s.shape), weights, half)
        columns.append(scores)
    return np.stack(columns, axis=1)
