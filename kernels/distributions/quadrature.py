"""Expectations without a closed form, by Gauss-Legendre quadrature over the quantile function.

E g(Y) is the integral of g(Q(p)) over p in (0, 1). Panels shrink geometrically towards 0 and 1, where the quantile
function of an unbounded family rises without limit, so a few hundred nodes reach 1e-10 for smooth g.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from congruence.kernels.arrays import Array

if TYPE_CHECKING:
    from congruence.kernels.distributions.base import Distribution
    from congruence.kernels.functions import Kernel


@lru_cache(maxsize=4)
def probability_rule(panels: int = 40, order: int = 10) -> tuple[Array, Array]:
    """Nodes p (k,) and weights (k,) on (0, 1), with ``panels`` panels per side halving towards each end."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    edges = np.concatenate([[0.0], 0.5 ** np.arange(panels, 0, -1)])
    widths, centers = np.diff(edges), (edges[:-1] + edges[1:]) / 2
    p = (centers[:, None] + 0.5 * widths[:, None] * nodes).ravel()
    w = (0.5 * widths[:, None] * weights).ravel()
    return np.concatenate([p, 1.0 - p[::-1]]), np.concatenate([w, w[::-1]])


def kernel_expectation(distribution: Distribution, kernel: Kernel, nodes: Array) -> Array:
    """E k(t_j, Y_i), shape (n, r), row block by row block."""
    p, w = probability_rule()
    result = np.empty((len(distribution), len(nodes)))
    block = max(1, 2_000_000 // (len(p) * max(1, len(nodes))))
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
    block = max(1, 2_000_000 // (len(p) * max(1, len(t))))
    for start in range(0, len(distribution), block):
        values = distribution[start : start + block].quantile(p[None, :])
        result[start : start + block] = np.exp(1j * values[:, :, None] * t) .transpose(0, 2, 1) @ w
    return result
