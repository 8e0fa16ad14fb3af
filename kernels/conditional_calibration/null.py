"""The null: scores of drawn PIT values, projected on the directions of the inputs.

If a model is the truth its PIT values are independent uniform numbers, whatever its family and whatever the inputs: the
same draws V serve every version of a split. They are functions of purpose, seed, draw and row position alone (Philox,
Salmon et al. 2011), so that no cut into blocks and no order of work changes them, and few draws are the first of many.
They go over the rows in turn and leave k numbers per order and draw, so that nothing of size n B is ever held.

For very large n the projections are normal, with the covariance that the directions have among each other: the gaussian
limit, at a cost that does not depend on n. It holds where no row dominates a hypothesis (``dominance``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, array_namespace, row_slices, to_numpy
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.bases import InputBases
from congruence.kernels.conditional_calibration.hypotheses import basis_hypotheses
from congruence.kernels.conditional_calibration.settings import EXACT_ROWS
from congruence.kernels.conditional_calibration.settings import Null as NullKind
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.streams import positioned_stream, stream
from congruence.kernels.threads import map_on_threads

DRAWS_AT_ONCE = 256
FEW_ROWS, FEW_ROWS_DRAWS, MANY_ROWS_DRAWS = 5_000, 999, 255
ROWS_AT_ONCE = 256  # whose draws and their four polynomials, 1.3 MB, a core keeps in its cache
ROWS_AT_ONCE_ON_CARD = 16_384
LARGEST_DOMINANCE = 0.05
"""Of one row in a hypothesis, up to which sums over the rows count as normal: an ordinary row has k / n."""

SCORES_OF_MONOMIALS = np.array(
    [
        [np.sqrt(3.0), 0.0, 0.0, 0.0],
        [0.0, 1.5 * np.sqrt(5.0), 0.0, 0.0],
        [-2.0 / 3.0 * np.sqrt(7.0), 0.0, 2.5 * np.sqrt(7.0), 0.0],
        [0.0, -2.5, 0.0, 13.125],
    ]
)
_DEPENDENT = 1e-5  # of the largest eigenvalue of U'U: directions below it are combinations of others, up to rounding
_WORDS_PER_COUNTER = 8  # numbers of single precision that one step of Philox gives

Null = Callable[[int], Array]
"""Coefficients c = U'Phi of the draws of a block that begins with this one, (k, 4, D); the same at every call."""


def draw_blocks(draws: int) -> list[int]:
    """The first draw of every block of them."""
    return list(range(0, draws, DRAWS_AT_ONCE))


def evidence_of_draws(null: Null, draws: int, evidence: Callable[[Array], Array]) -> Array:
    """``evidence`` (..., D) of the coefficients of every block of draws, (..., B)."""
    parts = map_on_threads(lambda block: evidence(null(block)), draw_blocks(draws))
    return np.concatenate(parts, axis=-1)


def null_pit_values(first: int, rows: int, block: int, seed: int) -> Array:
    """Uniform numbers of rows from position ``first`` on, for the draws of a block, (rows, DRAWS_AT_ONCE)."""
    steps = DRAWS_AT_ONCE // _WORDS_PER_COUNTER
    rng = positioned_stream(seed, "null PIT values", first * steps, block)
    return rng.random((rows, DRAWS_AT_ONCE), dtype=np.float32)


def projected_draws(vectors: Any, first: int, block: int, draws: int, seed: int) -> Array:
    """U'Phi of a block of draws over rows from position ``first`` on, (k, 4, D), for U (rows, k) here or on a card.

    The draws are the host's, so that they are the same everywhere.
    """
    xp = array_namespace(vectors)
    count = min(DRAWS_AT_ONCE, draws - block)

    def scores_at(rows: slice) -> Any:
        drawn = null_pit_values(first + rows.start, rows.stop - rows.start, block, seed)[:, :count]
        return monomials_in_place(xp.asarray(drawn))

    projected = projected_scores(vectors, count, scores_at)
    return np.asarray(np.einsum("js,ksd->kjd", SCORES_OF_MONOMIALS, projected), dtype=np.float32)


def projected_scores(vectors: Any, count: int, scores_at: Callable[[slice], Any]) -> Array:
    """U'Phi, (k, 4, count), where ``scores_at`` draws the scores of some rows, (rows, 4, count), where U is."""
    xp, (n, k) = array_namespace(vectors), vectors.shape
    total = xp.zeros((k, len(ORDERS) * count), dtype=np.float32)
    for rows in row_slices(n, ROWS_AT_ONCE if xp is np else ROWS_AT_ONCE_ON_CARD):
        drawn = scores_at(rows).astype(np.float32, copy=False)
        total += vectors[rows].T @ drawn.reshape(len(drawn), -1)
    return to_numpy(total).reshape(k, len(ORDERS), count)


def sign_null(vectors: Array, scores: Array, blocks: DependentBlocks, draws: int, seed: int) -> Null:
    """The null of rows that depend on each other within blocks: their scores times one random sign a block."""

    def null(block: int) -> Array:
        count = min(DRAWS_AT_ONCE, draws - block)
        signs = blocks.signs(count, seed, block).astype(np.float32)
        return projected_scores(
            vectors, count, lambda rows: scores[rows, :, None] * signs[blocks.labels[rows]][:, None, :]
        )

    return null


def own_null_draws(asked: int | None, n: int) -> int:
    """B of a null that is one version's alone, at n rows."""
    return asked or (FEW_ROWS_DRAWS if n <= FEW_ROWS else MANY_ROWS_DRAWS)


def monomials_in_place(u: Any) -> Any:
    """Polynomials of degree 1 to 4 in PIT values (r, D), in their own precision, (r, 4, D); overwrites ``u``.

    ``SCORES_OF_MONOMIALS`` times them are the ``pit_scores``. All have mean 0 under the null, so that sums of them lose
    no digits, and they take half the passes over the draws that the scores take.
    """
    xp = array_namespace(u)
    monomials = xp.empty((len(u), len(ORDERS), u.shape[1]), dtype=u.dtype)
    u *= 2.0
    u -= 1.0
    monomials[:, 0] = u
    square = xp.multiply(u, u, out=monomials[:, 1])
    square -= 1.0 / 3.0
    xp.multiply(square, u, out=monomials[:, 2])
    fourth = xp.multiply(square, square, out=monomials[:, 3])
    fourth -= 4.0 / 45.0
    return monomials


@dataclass(frozen=True)
class GaussianNull:
    """c ~ N(0, U'U) for every order: the limit of many rows, between which no direction is one row's alone.

    Attributes:
        seed: of the draws.
        draws: B.
        root: the symmetric R with R R = U'U, which rounding turns no more than U'U itself.
    """

    seed: int
    draws: int
    root: Array = field(repr=False)

    @classmethod
    def of(cls, moment: Array, draws: int, seed: int) -> GaussianNull:
        """From U'U (k, k)."""
        return cls(seed, draws, _root(moment))

    def __call__(self, block: int) -> Array:
        """See Null."""
        return self._normal("null coefficients", block, self.root)

    def given(self, shared: Array, own: Array) -> Null:
        """The draws of further directions V, in step with these, from V'U (q, k) and V'V (q, q).

        Given the shared coefficients R z, the own ones are A z and an independent rest.
        """
        moment = self.root @ self.root
        ridge = _DEPENDENT * float(np.max(np.diagonal(moment)))  # without a step where directions become dependent
        regression = scipy.linalg.solve(moment + ridge * np.eye(len(moment)), shared.T, assume_a="pos").T @ self.root
        rest = _root(own - regression @ regression.T)
        return lambda block: (
            self._normal("null coefficients", block, regression) + self._normal("own null coefficients", block, rest)
        )

    def _normal(self, purpose: str, block: int, root: Array) -> Array:
        count = min(DRAWS_AT_ONCE, self.draws - block)
        rng = stream(self.seed, purpose, block)
        normal = rng.standard_normal((DRAWS_AT_ONCE, len(ORDERS), root.shape[1]))[:count]
        return np.asarray(np.einsum("kr,djr->kjd", root, normal, optimize=True))


def dominance(bases: InputBases, vectors: Array) -> float:
    """The largest share that a row has in a hypothesis of the shared bases, sum_l w_l u_il^2 with weights up to 1."""
    squares, largest = vectors**2, 0.0
    for basis in bases.bases:
        weights = basis_hypotheses(basis.eigenvalues, bases.plan.settings).weights.astype(vectors.dtype)
        largest = max(largest, float(np.max(squares[:, basis.place] @ weights.T, initial=0.0)))
    return largest


def needs_limit(asked: NullKind | None, n: int) -> bool:
    """Whether the null may be its gaussian limit at n rows."""
    return asked == "gaussian" or (asked is None and n > EXACT_ROWS)


def null_kind(asked: NullKind | None, n: int, largest: float) -> NullKind:
    """Which null is drawn at n rows of which one dominates a hypothesis by ``largest``.

    Raises:
        InvalidInputError: the gaussian limit was asked for, and does not hold.
    """
    if not needs_limit(asked, n):
        return "exact"
    if largest <= LARGEST_DOMINANCE:
        return "gaussian"
    if asked == "gaussian":
        raise InvalidInputError(
            f"null: one of the {n:,} rows makes {largest:.2g} of a hypothesis, more than {LARGEST_DOMINANCE:g}, so "
            "that the gaussian limit does not hold; use null='exact'"
        )
    return "exact"


def summed_null(parts: Sequence[Array]) -> Null:
    """The null from coefficients that were summed over the rows, one array a block of draws."""
    return lambda block: parts[block // DRAWS_AT_ONCE]


def _root(covariance: Array) -> Array:
    """The symmetric R with R R = covariance, without directions that are rounding."""
    values, axes = np.linalg.eigh(covariance)
    usable = values > _DEPENDENT * max(float(values[-1]), _DEPENDENT)
    return np.asarray(axes[:, usable] * np.sqrt(values[usable]) @ axes[:, usable].T)
