"""The null: scores of drawn PIT values, projected on the directions of the inputs, block by block.

If a model is the truth its PIT values are independent uniform numbers, whatever its family and whatever the inputs: the
same draws V serve every version of a split. A block of draws goes over all rows in turn and leaves k numbers per order
and draw, so nothing of size n B is ever held, and every version can go over the *same* draws again with directions of
its own, because a block is a stream of random numbers of its own.

For very large n the projections are normal, with the covariance that the directions have among each other: the gaussian
limit, at a cost of n k^2 whatever the number of draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, on_card, to_numpy
from congruence.kernels.conditional_calibration.pit_scores import ORDERS
from congruence.kernels.device_kernels import PIT_SCORES
from congruence.kernels.streams import stream
from congruence.kernels.threads import available_threads, map_on_threads

DRAWS_AT_ONCE = 256
ROWS_AT_ONCE = 256  # whose draws and their four polynomials, 1.3 MB, a core keeps in its cache
ROWS_AT_ONCE_ON_CARD = 16_384
GRAM_ROWS = 8192
SCORES_OF_MONOMIALS = np.array(
    [
        [np.sqrt(3.0), 0.0, 0.0, 0.0],
        [0.0, 1.5 * np.sqrt(5.0), 0.0, 0.0],
        [-2.0 / 3.0 * np.sqrt(7.0), 0.0, 2.5 * np.sqrt(7.0), 0.0],
        [0.0, -2.5, 0.0, 13.125],
    ]
)
_DEPENDENT = 1e-6  # of the largest eigenvalue of U'U: directions below it are combinations of others, up to rounding


class Null(Protocol):
    """Draws of coefficients c = U'Phi under the null, the same ones at every call."""

    def blocks(self) -> list[int]:
        """The first draw of every block."""

    def shared(self, block: int) -> Array:
        """c of the shared directions for the draws of a block, (k, 4, D)."""

    def with_own(self, own: Array) -> OwnNull:
        """Draws for a version's own directions U (n, k)."""


class OwnNull(Protocol):
    """Draws of a version's own coefficients, in step with the shared ones."""

    def __call__(self, block: int) -> Array:
        """c of the own directions for the draws of a block, (k, 4, D)."""


@dataclass(frozen=True)
class DrawnNull:
    """Projections of drawn PIT values: exact at every n.

    The draws are the host's, so that they are the same everywhere; ``has_card`` scores and projects them on the card.
    """

    vectors: Array = field(repr=False)
    draws: int
    seed: int
    has_card: bool = False

    def blocks(self) -> list[int]:
        """See Null."""
        return list(range(0, self.draws, DRAWS_AT_ONCE))

    def shared(self, block: int) -> Array:
        """See Null."""
        return self._projected(self._placed, block)

    def with_own(self, own: Array) -> OwnNull:
        """See Null."""
        vectors = on_card(own) if self.has_card else own
        return lambda block: self._projected(vectors, block)

    @cached_property
    def _placed(self) -> Any:
        return on_card(self.vectors) if self.has_card else self.vectors

    def _projected(self, vectors: Any, block: int) -> Array:
        xp = array_namespace(vectors)
        count = min(DRAWS_AT_ONCE, self.draws - block)
        rng = stream(self.seed, "null PIT values", block)
        n, k = vectors.shape
        total = xp.zeros((k, len(ORDERS) * count), dtype=np.float32)
        at_once = ROWS_AT_ONCE if xp is np else ROWS_AT_ONCE_ON_CARD
        for start in range(0, n, at_once):
            rows = vectors[start : start + at_once]
            drawn = xp.asarray(rng.random((len(rows), count), dtype=np.float32))
            values = monomials_in_place(drawn) if xp is np else scores_on_card(drawn)
            total += rows.T @ values.reshape(len(rows), -1)
        projected = to_numpy(total).reshape(k, len(ORDERS), count)
        if xp is not np:
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


def scores_on_card(u: Any) -> Any:
    """``pit_scores`` of PIT values (r, D) on a card in their own precision, (r, 4, D)."""
    scores = array_namespace(u).empty((len(u), len(ORDERS), u.shape[1]), dtype=u.dtype)
    roots = [u.dtype.type(np.sqrt(2 * j + 1)) for j in range(1, len(ORDERS) + 1)]
    PIT_SCORES.compiled()(u, *roots, *(scores[:, order] for order in range(len(ORDERS))))
    return scores


def projected_scores(vectors: Array, scores: Array) -> Array:
    """c = U'Phi of observed scores (n, 4) as the drawn ones are projected, (k, 4)."""
    total = np.zeros((vectors.shape[1], scores.shape[1]), dtype=np.float64)
    for rows in row_blocks(len(vectors)):
        total += vectors[rows].T @ scores[rows].astype(np.float32)
    return total


@dataclass(frozen=True)
class GaussianNull:
    """c ~ N(0, U'U) for every order: the limit of many rows, between which no direction is one row's alone.

    Attributes:
        root: R with R R' = U'U of the shared directions, (k, r).
    """

    vectors: Array = field(repr=False)
    draws: int
    seed: int
    root: Array = field(repr=False)

    @classmethod
    def of(cls, vectors: Array, draws: int, seed: int) -> GaussianNull:
        """The limit for directions U (n, k)."""
        return cls(vectors, draws, seed, _root(inner_products(vectors, vectors)))

    @classmethod
    def of_products(cls, products: Array, draws: int, seed: int) -> GaussianNull:
        """The limit where U'U (k, k) alone is known: a version's own directions are then ``given``."""
        return cls(np.empty((0, len(products)), dtype=np.float32), draws, seed, _root(products))

    def blocks(self) -> list[int]:
        """See Null."""
        return list(range(0, self.draws, DRAWS_AT_ONCE))

    def shared(self, block: int) -> Array:
        """See Null."""
        return self._normal("null coefficients", block, self.root)

    def with_own(self, own: Array) -> OwnNull:
        """See Null."""
        return self.given(inner_products(own, self.vectors), inner_products(own, own))

    def given(self, shared: Array, own: Array) -> OwnNull:
        """Of own directions V by V'U (q, k) and V'V (q, q).

        Given the shared coefficients R z, the own ones are A z and an independent rest.
        """
        lengths = np.sum(self.root**2, axis=0)
        regression = shared @ self.root / lengths
        rest = _root(own - regression @ regression.T)
        return lambda block: (
            self._normal("null coefficients", block, regression) + self._normal("own null coefficients", block, rest)
        )

    def _normal(self, purpose: str, block: int, root: Array) -> Array:
        count = min(DRAWS_AT_ONCE, self.draws - block)
        normal = stream(self.seed, purpose, block).standard_normal((root.shape[1], len(ORDERS) * count))
        return np.asarray((root @ normal).reshape(len(root), len(ORDERS), count))


def inner_products(left: Array, right: Array, weights: Array | None = None) -> Array:
    """left' diag(weights) right, summed over blocks of rows in double precision."""

    def of_block(rows: slice) -> Array:
        weighted = left[rows] if weights is None else left[rows] * weights[rows, None].astype(left.dtype)
        return np.asarray(weighted.T @ right[rows], dtype=np.float64)

    total = np.zeros((left.shape[1], right.shape[1]))
    for part in map_on_threads(of_block, row_blocks(len(left)), available_threads()):
        total += part
    return total


def row_blocks(n: int, size: int = GRAM_ROWS) -> Iterator[slice]:
    """Slices that cover n rows."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def _root(covariance: Array) -> Array:
    """R with orthogonal columns and R R' = covariance, without directions that are rounding."""
    values, axes = np.linalg.eigh(covariance)
    usable = values > _DEPENDENT * max(float(values[-1]), _DEPENDENT)
    return np.asarray(axes[:, usable] * np.sqrt(values[usable]))
