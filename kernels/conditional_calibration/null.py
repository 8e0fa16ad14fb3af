r"""The statistic: quadratic forms of projected scores over many hypotheses, each as evidence against its own null.

.. math::  T_{h, w, J} = \sum_{j \in J} \sum_l w_l c_{lj}^2, \qquad c = U_h' \Phi

for a basis h, weights w and orders J: one order, or all. Under the null c has mean 0 and covariance I, so T has mean
|J| sum w and variance 2 |J| sum w^2 (up to O(1/n)), and s = -log of the tail of the gamma distribution with these
moments (Satterthwaite 1946) puts all on one scale. The statistic of the test is the maximum of s + log prior.

If a model is the truth its PIT values are independent uniform numbers, whatever its family and whatever the inputs: the
same draws V serve every version of a split. They are functions of purpose, seed, draw and row position alone (Philox,
Salmon et al. 2011), so that no cut into blocks and no order of work changes them, and few draws are the first of many.
They go over the rows in turn and leave k numbers per order and draw, so that nothing of size n B is ever held.

A version that states counts, cells or draws has a null of its own, from the same V: the score of the jump that holds
it. Of rows that depend on each other it is their scores times one random sign a block, in the limit of many blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.conditional_calibration.counts import JumpScores
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import ORDERS
from congruence.kernels.rng import positioned_stream

PROJECTED_VALUES = 40_000_000
MANY_ROWS = 50_000
FEW_ROWS = 5_000
_STEPS = (9_999, 1_999, 999)
_OF_MANY_ROWS = 255
RIDGES = (1e-1, 1e-2, 1e-3)
"""lambda of the weights e / (e + n lambda) of directions; the weights e are tried beside them."""

JOINT_PRIOR = 1 / 3
"""Of all four orders together; the rest is shared by the single orders."""


@dataclass(frozen=True)
class CalibrationSettings:
    """The sizes of the test and how often its null is drawn.

    Attributes:
        levels: of the version's own quantiles, the inputs of its own basis; none for no such basis.
        directions: leading eigenvectors of each basis at most.
        own_directions: of the version's own basis.
        draws: B; by default the most of 9,999, 1,999 and 999 with n B <= 40 million, 999 up to 50,000 rows, and 255
            above.

    Raises:
        InvalidInputError: a value that defines no test, by name.
    """

    levels: tuple[float, ...] = (0.1, 0.5, 0.9)
    directions: int = 100
    own_directions: int = 40
    draws: int | None = None

    def __post_init__(self) -> None:
        if not all(0 < level < 1 for level in self.levels):
            raise InvalidInputError(
                f"levels: {self.levels}; give levels of quantiles inside (0, 1), such as (.1, .5, .9)"
            )
        for name, count in (("directions", self.directions), ("own_directions", self.own_directions)):
            if count < 1:
                raise InvalidInputError(f"{name}: {count}; give at least 1")
        if self.draws is not None and self.draws < 1:
            raise InvalidInputError(
                f"draws: {self.draws}; a Monte-Carlo test needs at least 1, and 19 to reject at 5 %"
            )

    def draws_for(self, n: int) -> int:
        """B at n rows: as given, or by the rule of ``draws``."""
        if self.draws is not None:
            return self.draws
        if n > MANY_ROWS:
            return _OF_MANY_ROWS
        return next((draws for draws in _STEPS if n * draws <= PROJECTED_VALUES), _STEPS[-1])

    def draws_of_version(self, n: int) -> int:
        """Returns B of a null that is one version's alone, at n rows: as given, 999 of few rows, 255 of more."""
        return self.draws or (_STEPS[-1] if n <= FEW_ROWS else _OF_MANY_ROWS)


_SMALLEST = 1e-280
_STEPPED = 1.1
_FRACTIONS = 60
DRAWS_AT_ONCE = 256
ROWS_AT_ONCE = 256  # whose draws and their four polynomials, 1.3 MB, a core keeps in its cache
SCORES_OF_MONOMIALS = np.array(
    [
        [np.sqrt(3.0), 0.0, 0.0, 0.0],
        [0.0, 1.5 * np.sqrt(5.0), 0.0, 0.0],
        [-2.0 / 3.0 * np.sqrt(7.0), 0.0, 2.5 * np.sqrt(7.0), 0.0],
        [0.0, -2.5, 0.0, 13.125],
    ]
)
_WORDS_PER_COUNTER = 8  # numbers of single precision that one step of Philox gives


def weights_of(eigenvalues: Array) -> Array:
    """w of a basis whose kernel matrix has ``eigenvalues`` n e, (k,): a row for each choice, its largest 1, (c, k)."""
    if len(eigenvalues) == 1:
        return np.ones((1, 1))  # of one direction, every weight says the same
    weights = np.stack([*(eigenvalues / (eigenvalues + ridge) for ridge in RIDGES), eigenvalues])
    return np.asarray(weights / weights[:, :1])


def forms(weights: Array, coefficients: Array) -> Array:
    """T of every choice, each order alone and all together, (c, 5, D), for coefficients (k, 4, D)."""
    squares = np.square(coefficients, dtype=np.float64)
    k, orders, draws = squares.shape
    found = np.empty((len(weights), orders + 1, draws))
    found[:, :orders] = (weights @ squares.reshape(k, -1)).reshape(-1, orders, draws)
    found[:, orders] = np.sum(found[:, :orders], axis=1)
    return found


def evidence_of(weights: Array, coefficients: Array) -> Array:
    """``most`` of coefficients (k, 4, D) whose covariance is I, by the moments that their forms then have."""
    total, square = np.sum(weights, axis=1)[:, None, None], np.sum(weights**2, axis=1)[:, None, None]
    scale = square / total  # of the gamma distribution: variance / mean / 2, so that forms / scale is chi-squared
    count = np.array([1] * len(ORDERS) + [len(ORDERS)])[:, None]
    return most(-log_gamma_tail(0.5 * count * (total**2 / square), 0.5 * forms(weights, coefficients) / scale))


def most(evidence: Array) -> Array:
    """max over w of s + log prior, (5, D), of the evidence s (c, 5, D) of a basis; every basis has the same prior."""
    single = (1.0 - JOINT_PRIOR) / len(ORDERS)
    prior = np.array([single] * len(ORDERS) + [JOINT_PRIOR]) / len(evidence)
    return np.asarray(np.max(evidence + np.log(prior)[:, None], axis=0))


def evidence_by_others(forms: Array) -> Array:
    """-log of the tail of the gamma distribution with the moments of all others, of observed and drawn forms (..., D).

    So the observation is exchangeable with the draws, and does not widen the scale that it is measured on.
    """
    others = forms.shape[-1] - 1
    total = np.sum(forms, axis=-1, keepdims=True)
    apart = forms - total / (others + 1)  # squares of these lose no digits
    mean = (total - forms) / others
    variance = (np.sum(apart**2, axis=-1, keepdims=True) - apart**2) / others - (apart / others) ** 2
    found = np.zeros_like(forms)
    varies = np.min(variance, axis=-1) > 0.0
    m, v = mean[varies], variance[varies]
    found[varies] = -log_gamma_tail(m**2 / v, forms[varies] * m / v)
    return found


def log_gamma_tail(shape: float | Array, z: Array) -> Array:
    """log Q(shape, z) of the regularised upper incomplete gamma function, also where Q underflows.

    ``shape`` is of the shape of z, or broadcast to it.
    """
    tail = _gamma_tail(shape, z)
    far = tail < _SMALLEST
    result = np.log(np.where(far, 1.0, tail))
    if np.any(far):  # far above a: Legendre's continued fraction (DLMF 8.9.2), from its end
        a, beyond = np.broadcast_to(shape, z.shape)[far], z[far]
        fraction = beyond + (2 * _FRACTIONS + 1) - a
        for step in range(_FRACTIONS, 0, -1):
            fraction = beyond + (2 * step - 1) - a - step * (step - a) / fraction
        result[far] = a * np.log(beyond) - beyond - scipy.special.gammaln(a) - np.log(fraction)
    return np.asarray(result)


def _gamma_tail(shape: float | Array, z: Array) -> Array:
    """Q(shape, z); where SciPy's series needs a hundred terms, by a step of the recurrence (DLMF 8.8.6), without loss.

    Q(a, z) = Q(a + 1, z) - z^a exp(-z) / Gamma(a + 1), for a < 1 and z up to 1.1: Q is .1 and more there.
    """
    stepped = (np.asarray(shape) < 1.0) & (z < _STEPPED)
    if not np.any(stepped):
        return np.asarray(scipy.special.gammaincc(shape, z))
    tail = np.asarray(scipy.special.gammaincc(np.where(stepped, np.add(shape, 1.0), shape), z))
    a, below = np.broadcast_to(shape, z.shape)[stepped], z[stepped]
    tail[stepped] -= below**a * np.exp(-below) / scipy.special.gamma(a + 1.0)
    return tail


def draw_blocks(draws: int) -> list[int]:
    """The first draw of every block of them."""
    return list(range(0, draws, DRAWS_AT_ONCE))


def null_pit_values(first: int, rows: int, block: int, seed: int) -> Array:
    """Uniform numbers of rows from position ``first`` on, for the draws of a block, (rows, DRAWS_AT_ONCE)."""
    steps = DRAWS_AT_ONCE // _WORDS_PER_COUNTER
    rng = positioned_stream(seed, "null PIT values", first * steps, block)
    return rng.random((rows, DRAWS_AT_ONCE), dtype=np.float32)


def projected_draws(
    vectors: Array,
    first: int,
    block: int,
    draws: int,
    seed: int,
    jumps: JumpScores | None = None,
    apart: Sequence[int] = (),
) -> Array:
    """U'Phi of a block of draws over rows from position ``first`` on, (k, 4, D), for U (rows, k).

    Of a version whose scores have ``jumps`` they are those of the jumps that hold the same PIT values. Directions from
    each of the numbers ``apart`` on are multiplied by themselves: their last digits do not depend on those before.
    """
    count, (n, k) = min(DRAWS_AT_ONCE, draws - block), vectors.shape
    total = np.zeros((k, len(ORDERS) * count), dtype=np.float32)
    parts = repeat(None) if jumps is None else jumps.parts(ROWS_AT_ONCE)
    for rows, part in zip(row_slices(n, ROWS_AT_ONCE), parts, strict=False):
        u = null_pit_values(first + rows.start, rows.stop - rows.start, block, seed)[:, :count]
        drawn = monomials_in_place(u) if part is None else part.drawn(u)
        for start, stop in pairwise((0, *apart, k)):
            total[start:stop] += vectors[rows, start:stop].T @ drawn.reshape(len(drawn), -1)
    projected = total.reshape(k, len(ORDERS), count)
    if jumps is not None:
        return projected
    return np.asarray(np.einsum("js,ksd->kjd", SCORES_OF_MONOMIALS, projected), dtype=np.float32)


def monomials_in_place(u: Array) -> Array:
    """Polynomials of degree 1 to 4 in PIT values (r, D), in their own precision, (r, 4, D); overwrites ``u``.

    ``SCORES_OF_MONOMIALS`` times them are the ``pit_scores``. All have mean 0 under the null, so that sums of them lose
    no digits, and they take half the passes over the draws that the scores take.
    """
    monomials = np.empty((len(u), len(ORDERS), u.shape[1]), dtype=u.dtype)
    u *= 2.0
    u -= 1.0
    monomials[:, 0] = u
    square = np.multiply(u, u, out=monomials[:, 1])
    square -= 1.0 / 3.0
    np.multiply(square, u, out=monomials[:, 2])
    fourth = np.multiply(square, square, out=monomials[:, 3])
    fourth -= 4.0 / 45.0
    return monomials
