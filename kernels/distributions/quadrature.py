"""What a cdf and its inverse alone say: expectations by quadrature over the quantile function, and quantiles.

E g(Y) is the integral of g(Q(p)) over p in (0, 1). In normal scores z, p = Phi(z), the quantile function of most
families is smooth up to its ends, but where their cdf jumps or bends: there panels end. Those that do not agree with
their halves are halved (``expectation``); for many smooth g at once one ``rule`` serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from congruence.kernels.arrays import Array, average_wave, row_slices
from congruence.kernels.distributions.expectations import BLOCK_ENTRIES, polynomial_expectation
from congruence.kernels.kernel_functions import RBF, Kernel, Polynomial

_ROOT_2_PI = float(np.sqrt(2.0 * np.pi))
_SCORES, _PANELS = 8.25, 16  # 1e-16 of the mass lie beyond
_TOLERANCE, _LEAST_EXPECTATION = 1e-11, 0.1
_CANCELS = 1e-6  # of the larger of two values of a cdf, below which their difference has lost digits
_DEEPEST = 40  # halvings
_INTERVALS = 50_000  # at once
_NODES, _FINE = np.polynomial.legendre.leggauss(15)
# By a polynomial through all nodes but the middle one: of two rules on the same nodes the difference is the error's.
_POWERS = np.polynomial.legendre.legvander(np.delete(_NODES, 7), 13)
_COARSE = np.insert(np.linalg.solve(_POWERS.T, 2.0 * np.eye(14)[0]), 7, 0.0)
# The cdf of the elements with these numbers: a function of one value for each.
CdfOf: TypeAlias = Callable[[Array], Callable[[Array], Array]]
# g_1, ..., g_r: all at values (...), shape (..., r), or those of columns (m,) at values (m, k), shape (m, k).
Integrand: TypeAlias = Callable[[Array, Array | None], Array]

_EVEN, _MANY = 32, 256  # panels of a rule, and the bends beyond which it has four times as many without these
_TEN = np.polynomial.legendre.leggauss(10)
_TINY = np.finfo(float).tiny


class _Law(Protocol):
    """What quadrature asks of a ``Distribution``."""

    @property
    def is_discrete(self) -> bool: ...

    @property
    def _weighted_values(self) -> tuple[Array, Array]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> Self: ...

    def has_density(self) -> bool: ...

    def log_prob(self, y: Any) -> Array: ...

    def cdf(self, y: Any) -> Array: ...

    def cdf_left(self, y: Any) -> Array: ...

    def quantile(self, q: Any) -> Array: ...

    def raw_moments(self, order: int) -> Array: ...

    def breaks(self) -> Array: ...

    def knots(self) -> Array: ...


@lru_cache(maxsize=1)
def probability_rule() -> tuple[Array, Array]:
    """Nodes p (k,) and weights (k,) on (0, 1), in 30 panels per side that halve towards each end.

    Gauss-Legendre with eight nodes a panel, fewer the less a panel weighs: 5 below 2^-12, 3 below 2^-20.
    """
    p, w = [], []
    for number in range(30, 0, -1):
        low, high = 0.0 if number == 30 else 0.5 ** (number + 1), 0.5**number
        nodes, weights = np.polynomial.legendre.leggauss(8 if number <= 12 else 5 if number <= 20 else 3)
        half = (high - low) / 2.0
        p.append(low + half * (1.0 + nodes))
        w.append(half * weights)
    below, share = np.concatenate(p), np.concatenate(w)
    return np.concatenate([below, 1.0 - below[::-1]]), np.concatenate([share, share[::-1]])


def kernel_expectation(distribution: _Law, kernel: Kernel, nodes: Array) -> Array:
    """E k(t_j, Y_i), shape (n, r): each term of a sum by itself, polynomials by moments, the others by ``expectation``.

    The integral is cut at the node, where the kernel may have a kink.
    """
    nodes = np.asarray(nodes, dtype=np.float64)
    total = np.zeros((len(distribution), len(nodes)))
    for term in kernel.terms:
        if isinstance(term, Polynomial):
            total += polynomial_expectation(term, distribution.raw_moments(term.degree), nodes)
        else:
            function, cuts = _kernel_at(term, nodes), None if isinstance(term, RBF) else nodes
            total += expectation(distribution, function, len(nodes), cuts=cuts, least=_LEAST_EXPECTATION)
    return total


def _kernel_at(kernel: Kernel, nodes: Array) -> Integrand:
    """k(t_j, .)"""

    def values_of(values: Array, columns: Array | None) -> Array:
        if kernel.is_stationary:
            distances = np.subtract.outer(values, nodes) if columns is None else values - nodes[columns, None]
            return np.asarray(kernel(distances.ravel(), np.zeros(1))).reshape(distances.shape)
        every = np.asarray(kernel(values.ravel(), nodes)).reshape(*values.shape, len(nodes))
        return every if columns is None else np.take_along_axis(every, columns[:, None, None], axis=2)[..., 0]

    return values_of


def raw_moments(distribution: _Law, order: int) -> Array:
    """E Y_i^k for k = 0, ..., order, (n, order + 1)."""

    def powers(values: Array, columns: Array | None) -> Array:
        return values[..., None] ** np.arange(order + 1) if columns is None else values ** columns[:, None]

    return expectation(distribution, powers, order + 1)


def kernel_diagonal(distribution: _Law, kernel: Kernel) -> Array:
    """E k(Y_i, Y_i), (n,)."""

    def diagonal(values: Array, columns: Array | None) -> Array:
        found = np.asarray(kernel.diagonal(values.ravel())).reshape(values.shape)
        return found[..., None] if columns is None else found

    return expectation(distribution, diagonal, 1)[:, 0]


def mean_and_std(distribution: _Law) -> tuple[Array, Array]:
    """Mean and standard deviation, (n,) both."""
    mean, std = np.empty((2, len(distribution)))
    for rows, values, weights in _weighted_blocks(distribution):
        mean[rows] = np.sum(values * weights, axis=1)
        std[rows] = np.sqrt(np.sum((values - mean[rows, None]) ** 2 * weights, axis=1))
    return mean, std


def rule(law: _Law) -> tuple[Array, Array]:
    """Values and weights (n, k) of E g(Y) for smooth g, by ten Gauss-Legendre nodes a panel.

    Bends by the hundred are small ones each, and many panels do without them.
    """
    many = law[:1].breaks().shape[1] > _MANY
    edges = np.linspace(-_SCORES, _SCORES, 4 * _EVEN + 1)[None, :] if many else _edges(law, _EVEN)
    half = np.diff(edges, axis=1)[:, :, None] / 2.0
    z = (edges[:, 1:] + edges[:, :-1])[:, :, None] / 2.0 + half * _TEN[0]
    shares = half * _TEN[1] * (np.exp(-0.5 * z * z) / _ROOT_2_PI)
    levels, weights = (each.reshape(len(edges), -1) for each in (ndtr(z), shares))
    return law.quantile(levels), np.broadcast_to(weights, (len(law), weights.shape[1]))


def rule_width(law: _Law) -> int:
    """About how many values a row has in ``rule``."""
    bends = int(law[:1].breaks().shape[1])
    return len(_TEN[0]) * (4 * _EVEN if bends > _MANY else _EVEN + bends)


def _weighted_blocks(distribution: _Law) -> Iterator[tuple[slice, Array, Array]]:
    """Blocks of rows with their ``rule``; of few rows it is kept."""
    blocks = row_slices(len(distribution), BLOCK_ENTRIES // rule_width(distribution))
    for rows in blocks:
        yield rows, *(distribution._weighted_values if len(blocks) == 1 else rule(distribution[rows]))


def expectation(
    distribution: _Law, function: Integrand, count: int, *, cuts: Array | None = None, least: float = 0.0
) -> Array:
    """E g_j(Y_i), shape (n, r), by adaptive Gauss quadrature of g(Q(Phi(z))) phi(z) over normal scores z.

    Panels on which two rules on 15 nodes differ by more than 1e-11 of the sum of all panels are halved.

    Args:
        distribution: n distributions of one target.
        function: g.
        count: r.
        cuts: values (r,) at which g_j may have a kink.
        least: the sum of panels that tolerances refer to, at least.
    """
    result, bends = np.empty((len(distribution), count)), 2 * distribution[:1].breaks().shape[1]
    for rows in row_slices(len(distribution), BLOCK_ENTRIES // ((_PANELS + bends) * len(_NODES) * max(1, count))):
        law = distribution[rows]
        edges = _edges(law, _PANELS)
        half, middle = np.diff(edges, axis=1)[:, :, None] / 2.0, ((edges[:, 1:] + edges[:, :-1]) / 2.0)[:, :, None]
        z = middle + half * _NODES
        weights = half * np.exp(-0.5 * z * z) / _ROOT_2_PI
        found = function(law.quantile(ndtr(z).reshape(len(law), -1)).reshape(z.shape), None)
        fine = np.einsum("ipkr,ipk->ipr", found, weights * _FINE)
        wrong = np.abs(fine - np.einsum("ipkr,ipk->ipr", found, weights * _COARSE))
        tolerance = _TOLERANCE * np.maximum(np.abs(fine).sum(axis=1), least)
        refined = ~(wrong <= tolerance[:, None, :])
        at = np.repeat(middle, count, axis=2)
        if cuts is not None:
            score = np.clip(ndtri(law.cdf(cuts[None, :])), -_SCORES, _SCORES)[:, None, :]
            inside = (edges[:, :-1, None] < score) & (score < edges[:, 1:, None])
            refined |= inside
            at = np.where(inside, score, at)
        total = np.where(refined, 0.0, fine).sum(axis=1)
        row, panel, column = np.nonzero(refined)
        cut = at[refined]
        ends = (np.concatenate([edges[row, panel], cut]), np.concatenate([cut, edges[row, panel + 1]]))
        _refine(total, law, function, (np.tile(row, 2), np.tile(column, 2)), ends, tolerance)
        result[rows] = total
    return result


def _edges(law: _Law, panels: int) -> Array:
    """Normal scores between which the quantile function of each row is smooth, increasing, (n, p)."""
    at = law.breaks()
    left, right = (np.where(np.isfinite(at), ndtri(of(at)), _SCORES) for of in (law.cdf_left, law.cdf))
    even = np.broadcast_to(np.linspace(-_SCORES, _SCORES, panels + 1), (len(at), panels + 1))
    scores = np.concatenate([left] if np.array_equal(left, right) else [left, right], axis=1)
    return np.sort(np.concatenate([even, np.clip(scores, -_SCORES, _SCORES)], axis=1), axis=1)


def _refine(
    total: Array,
    law: _Law,
    function: Integrand,
    entries: tuple[Array, Array],
    ends: tuple[Array, Array],
    tolerance: Array,
) -> None:
    """Add the integrals between ``ends`` of given rows and columns to ``total``."""
    (row, column), (left, right) = entries, ends
    for depth in range(_DEEPEST):
        again: list[Array] = []
        for some in row_slices(len(row), _INTERVALS):
            half, middle = (right[some] - left[some]) / 2.0, (right[some] + left[some]) / 2.0
            z = middle[:, None] + half[:, None] * _NODES
            found = function(law[row[some]].quantile(ndtr(z)), column[some])
            weighted = found * (half[:, None] * np.exp(-0.5 * z * z) / _ROOT_2_PI)
            fine = weighted @ _FINE
            done = np.abs(fine - weighted @ _COARSE) <= tolerance[row[some], column[some]]
            done |= depth == _DEEPEST - 1
            np.add.at(total, (row[some][done], column[some][done]), fine[done])
            again.append(some.start + np.flatnonzero(~done))
        left_over = np.concatenate(again) if again else np.empty(0, dtype=np.intp)
        if len(left_over) == 0:
            return
        row, column, left, right = (np.tile(values[left_over], 2) for values in (row, column, left, right))
        middle = (left + right) / 2.0
        first = np.arange(len(row)) < len(left_over)
        left, right = np.where(first, left, middle), np.where(first, middle, right)


def characteristic_function(distribution: _Law, t: Array) -> Array:
    """E exp(i t_j Y_i), shape (n, m)."""
    result = np.empty((len(distribution), len(t)), dtype=np.complex128)
    for rows, values, weights in _weighted_blocks(distribution):
        result[rows] = average_wave(values, weights, t)
    return result


def crps(distribution: _Law, y: Array) -> Array:
    """Integral of (F(s) - 1[y <= s])^2 over s, for y (n, k): Gauss-Legendre between the knots of the cdf and y."""
    order = 8
    nodes, weights = np.polynomial.legendre.leggauss(order)
    columns = []
    knots = distribution.knots()
    for column in y.T:
        scores = np.empty(len(y))
        for rows in row_slices(len(y), BLOCK_ENTRIES // (order * (knots.shape[1] + 1))):
            edges = np.sort(np.concatenate([knots[rows], column[rows, None]], axis=1), axis=1)
            half = np.diff(edges, axis=1) / 2
            s = ((edges[:, 1:] + edges[:, :-1]) / 2)[:, :, None] + half[:, :, None] * nodes
            flat = s.reshape(len(s), -1)
            error = distribution[rows].cdf(flat) - (column[rows, None] <= flat)
            scores[rows] = np.einsum("iab,b,ia->i", (error**2).reshape(s.shape), weights, half)
        columns.append(scores)
    return np.stack(columns, axis=1)


def log_mass(law: _Law, low: Array, high: Array, cdf: Callable[[Array], Array] | None = None) -> Array:
    """log P(low_i < Y <= high_i), (n,): a difference of the cdf, or a sum over the density where digits cancel.

    ``cdf`` is that of the density, (n,) to (n,), where that is not the distribution's own.
    """
    below, above = ((cdf or law.cdf)(end) for end in (low, high))
    mass = np.maximum(above - below, 0.0)
    with np.errstate(divide="ignore"):
        found = np.log(mass)
        lost = np.flatnonzero(mass <= _CANCELS * above)
        if len(lost) and law.has_density():
            inside, low, high = law[lost], low[lost, None], high[lost, None]
            if law.is_discrete:
                at = np.floor(low) + 1.0 + np.arange(int(np.ceil(np.max(high - low))))
                terms = np.where(at <= high, inside.log_prob(at), -np.inf)
            else:
                nodes, weights = probability_rule()
                terms = inside.log_prob(low + (high - low) * nodes) + np.log(weights * (high - low))
            found[lost] = logsumexp(terms, axis=1)
    return np.asarray(found)


def smallest_reaching(cdf_of: CdfOf, q: Array, lower: Array, upper: Array, *, whole: bool) -> Array:
    """Smallest s in [lower, upper] with cdf(s) >= q for vectors of elements; among whole numbers only if ``whole``.

    A cdf must rise along s and reach q at ``upper``, rounding apart. Where an end is infinite, upper.
    """
    finite = np.flatnonzero(np.isfinite(lower) & np.isfinite(upper))
    search = _bisected if whole else _bracketed
    found = np.array(upper)
    if len(finite):
        found[finite] = search(lambda chosen: cdf_of(finite[chosen]), q[finite], lower[finite], upper[finite])
    return found


def _bisected(cdf_of: CdfOf, q: Array, low: Array, high: Array) -> Array:
    cdf = cdf_of(np.arange(len(q)))
    while np.any(low < high):
        middle = np.floor((low + high) / 2)
        reached = cdf(middle) >= q
        high, low = np.where(reached, middle, high), np.where(reached, low, np.minimum(middle + 1, high))
    return high


def _bracketed(cdf_of: CdfOf, q: Array, low: Array, high: Array) -> Array:
    """The upper end of scipy's bracket, which finds atoms, and the left end of a stretch on which the cdf is q."""
    from scipy.optimize.elementwise import find_root  # not at the start: every family would load it

    held: list[Any] = [np.empty(0), None]  # the elements that are left, and their cdf: a selection of rows is dear

    def surplus(share: Array, /, *given: Any) -> Array:
        level, scale, element = given
        if not np.array_equal(held[0], element):
            held[:] = element, cdf_of(element.astype(np.intp))
        return np.asarray(held[1](share * scale) - level)

    scale = np.maximum(np.maximum(np.abs(low), np.abs(high)), _TINY)
    found = find_root(
        surplus,
        (low / scale, high / scale),
        args=(np.nextafter(q, 0.0), scale, np.arange(float(len(q)))),
        tolerances={"xatol": 1e-15, "xrtol": 0.0, "fatol": 0.0, "frtol": 0.0},
    )
    (left, right), reached = found.bracket, found.f_bracket[0] >= 0.0
    # Without a change of sign: an atom of every component at ``low``, or ``high`` is a rounding away from q.
    outside = np.where(reached, low, high)
    return np.asarray(np.where(found.status == -1, outside, scale * np.where(reached, left, right)))
