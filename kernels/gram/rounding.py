"""How far a product with the Gram matrix is from the exact one: what no residual of the computed matrix can see.

A solver knows B - A Z for K as its arithmetic made it. In double precision the sums and inner products of that K are
bounded to first order (Higham 2002, section 3.1), for a kernel that is smooth in x.x'. In single precision far less is
lost than can be proven: there products are compared with float64 ones at some of the points, made from the inputs as
they were given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, to_numpy
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.streams import stream

CHECKED_POINTS = 64
CHECKED_BYTES = 2**28
LONGEST = 8  # of the checked points: those with the largest inputs, where rounding is largest
SAFETY = 4.0  # between the largest of 64 points and that of all
UNIT = float(np.finfo(np.float64).eps) / 2.0


@dataclass(frozen=True)
class CheckedPoints:
    """Points at which k(x)'Z is known in float64.

    Attributes:
        rows: their numbers, (s,).
        gram: [k(point_j, x_i)] in float64, (s, n).
        roots: sqrt(k(x, x)) at the points, (s,).
        complete: whether there are no others.
    """

    rows: Array = field(repr=False)
    gram: Array = field(repr=False)
    roots: Array = field(repr=False)
    complete: bool

    @classmethod
    def of_reference(cls, operator: RegularizedGram) -> CheckedPoints:
        """Of the reference points, all if they are at most four times as many as would be drawn."""
        diagonal = operator.gram_diagonal()
        rows = _chosen(diagonal, operator.n, operator.row_norms())
        return cls._of(rows, operator.exact_rows(rows), diagonal)

    @classmethod
    def of_query(cls, operator: RegularizedGram, query: Any) -> CheckedPoints:
        """Of query points (m, d)."""
        diagonal = to_numpy(operator.kernel.diagonal(query))
        norms = to_numpy((query * query).sum(axis=1))
        rows = _chosen(diagonal, operator.n, norms)
        return cls._of(rows, operator.exact_gram(query[rows]), diagonal)

    @classmethod
    def _of(cls, rows: Array, gram: Array, diagonal: Array) -> CheckedPoints:
        roots = np.sqrt(np.asarray(diagonal, dtype=np.float64)[rows])
        return cls(rows, gram, roots, len(rows) == len(diagonal))

    def largest(self, errors: Array) -> float:
        """|error at x| <= this times sqrt(k(x, x)) at every point, from the errors at the checked ones, (s, r)."""
        return largest_share(errors, self.roots, complete=self.complete)


def largest_share(errors: Array, roots: Array, *, complete: bool) -> float:
    """|error at x| <= this times sqrt(k(x, x)), from the errors (s, r) at points of such roots (s,), all or some."""
    norms, positive = np.linalg.norm(errors, axis=1), roots > 0.0
    share = float(np.max(norms[positive] / roots[positive], initial=0.0))
    return share if complete else SAFETY * share


def _chosen(diagonal: Array, n: int, norms: Array) -> Array:
    """The points that are longest, half by |x| and half by k(x, x), and random ones; in order."""
    count = max(LONGEST, min(CHECKED_POINTS, CHECKED_BYTES // (8 * n)))
    if len(diagonal) <= 4 * count:
        return np.arange(len(diagonal))
    half = LONGEST // 2
    longest = np.union1d(np.argpartition(norms, -half)[-half:], np.argpartition(diagonal, -half)[-half:])
    rng = stream(0, "checked points", n, len(diagonal))
    return np.union1d(longest, rng.choice(len(diagonal), count - len(longest), replace=False))


def float64_rounding(n: int, dimension: int, weighted: float) -> float:
    """|computed - exact| k(x)'Z <= this times sqrt(k(x, x)), for products in float64 with Z (n, r).

    Args:
        n: terms of a sum.
        dimension: of the inputs, whose inner products have so many.
        weighted: sum of sqrt(k(x_i, x_i)) |Z_i|.
    """
    return UNIT * (n + 8.0 * (dimension + 8.0) + 8.0) * weighted
