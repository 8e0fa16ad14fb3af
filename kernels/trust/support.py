r"""How usual an input is: a conformal p-value of its distance to the k-th nearest row; and how many rows speak there.

Features that go together (temperature and felt temperature, the units of an encoder) leave a combination that no row
has close to rows in plain distance. In units of the rows' own covariance it is far: directions in which rows vary
little count as much as others. Neighbours are found by a tree where inputs have few features, among all pairs
elsewhere, and in long splits among a sample.

How many labelled rows speak at an input is the effective number of the smoother's weights there. With a(x) = A^-1 k(x),
a local mean :math:`\sum a_i \phi_i / \sum a_i` of independent values of variance 1 has the variance :math:`\sum a_i^2 /
(\sum a_i)^2`, that of a plain mean of

.. math::  n_{eff}(x) = \frac{(\sum_i a_i(x))^2}{\sum_i a_i(x)^2}

values (Kish 1965). Far from all rows a stationary kernel gives every row next to no weight, which the ratio does not
see: it is discounted by the square of how far the sum of weights falls short of its median over the rows of the split.

For the p-value, rows of the split are cut at random into neighbours and held-out rows. An input x has the score

.. math::  s(x) = \text{distance to the k-th nearest neighbour, in units of the neighbours' covariance,}

or, above all distances, how far a column is outside of what the neighbours hold (a tenth of the range is less than the
range, and a category never seen more than either), and :math:`p(x) = (1 + \#\{i \text{ held out}: s(x_i) \ge s(x)\}) /
(1 + \#\text{held out})`. Of inputs that are exchangeable with the rows of the split at most a share a has p <= a,
whatever their distribution (Vovk, Gammerman and Shafer 2005, proposition 2.4; Bates et al. 2023), since neither the
neighbours nor what columns hold knows of the held-out rows.

Distances are to be taken in the encoder's space before it is normalised: vectors of unit length do not say how far away
a row lies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.kernels.arrays import Array, printed, require_matrix, to_numpy
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.rng import stream
from congruence.kernels.threads import available_threads
from congruence.kernels.trust.columns import ColumnRanges, blank
from congruence.kernels.trust.rule import UNUSUAL, held_out_rows

if TYPE_CHECKING:
    import pandas as pd

TREE_FEATURES = 8
"""A tree looks at nearly every row in more dimensions than this."""

MOST_ROWS = {TREE_FEATURES: 2**15, 64: 2**13, 2**31: 2**12}
"""By the number of features at most: rows that inputs are compared with, so that 10,000 inputs take about a second."""


@dataclass(frozen=True)
class Whitening:
    """x -> (x - mean) W with W W' the inverse of a covariance, shrunk towards a multiple of the identity by as much as
    its rows are too few to know it (Ledoit and Wolf 2004).

    Attributes:
        mean: (d,).
        matrix: W, (d, d).
    """

    mean: Array = field(repr=False)
    matrix: Array = field(repr=False)

    @classmethod
    def of(cls, rows: Array) -> Whitening:
        """By the covariance of ``rows``, (n, d)."""
        scale = np.std(rows, axis=0, dtype=np.float64)
        scale[~(scale > 0.0)] = 1.0
        from sklearn.covariance import ledoit_wolf  # seconds: for who asks how usual an input is alone

        covariance = ledoit_wolf(np.asarray(rows, dtype=np.float64) / scale)[0]
        variances, directions = np.linalg.eigh(covariance)
        floor = np.finfo(rows.dtype).eps * max(float(variances[-1]), np.finfo(np.float64).tiny)
        whitened = directions / np.sqrt(np.maximum(variances, floor))
        mean = np.mean(rows, axis=0, dtype=np.float64).astype(rows.dtype)
        return cls(mean, np.asarray(whitened / scale[:, None], dtype=rows.dtype))

    def __call__(self, x: Array) -> Array:
        """``x`` (m, d) in this space, (m, d)."""
        return np.asarray((x - self.mean) @ self.matrix, dtype=self.matrix.dtype)

    def shares(self, difference: Array) -> Array:
        """What each feature of a difference (d,) adds to its squared length in this space, (d,)."""
        return np.asarray(difference * (self.matrix @ (difference @ self.matrix)))


@dataclass(frozen=True)
class NeighbourIndex:
    """The rows (n, d) that neighbours are looked for among, ready to be asked."""

    rows: Array = field(repr=False)
    searched: Any = field(repr=False)

    @classmethod
    def of(cls, rows: Array) -> NeighbourIndex:
        """The index of ``rows``, (n, d), finite."""
        from scipy.spatial import cKDTree
        from sklearn.neighbors import NearestNeighbors

        if rows.shape[1] <= TREE_FEATURES:
            # An unbalanced tree takes repeated rows, of which tables are full, in its stride.
            return cls(rows, cKDTree(rows, balanced_tree=False))
        return cls(rows, NearestNeighbors(algorithm="brute").fit(rows))

    def nearest(self, query: Array, k: int) -> tuple[Array, Array]:
        """Euclidean distances to the ``k`` nearest rows, nearest first, and their numbers, (m, k) each."""
        k = min(k, len(self.rows))
        if not len(query):
            return np.empty((0, k)), np.empty((0, k), dtype=np.intp)
        if self.rows.shape[1] <= TREE_FEATURES:
            found = self.searched.query(query, k=range(1, k + 1), workers=available_threads())
        else:
            found = self.searched.kneighbors(query, n_neighbors=k)
        return np.asarray(found[0], dtype=np.float64), np.asarray(found[1], dtype=np.intp)


def most_rows(features: int) -> int:
    """How many rows to look for neighbours among."""
    return next(rows for most, rows in MOST_ROWS.items() if features <= most)


_TYPICAL_ROWS = 4096


def effective_rows(smoother: SpectralSmoother) -> Array:
    """The effective number of rows at each of a smoother's m points, (m,); 0 where no row is near."""
    analysis, filters = smoother.analysis, smoother.filters
    total = filters * (analysis.T @ np.ones(len(analysis), dtype=analysis.dtype))
    step = max(1, len(analysis) // _TYPICAL_ROWS)
    typical = float(np.median(analysis[::step] @ total))
    sums = np.asarray(smoother.synthesis @ total, dtype=np.float64)
    squares = np.asarray(smoother.sum_of_squares, dtype=np.float64)
    ratio = np.divide(sums**2, squares, out=np.zeros_like(sums), where=squares > 0.0)
    discount = np.clip(np.abs(sums) / max(abs(typical), np.finfo(float).tiny), 0.0, 1.0) ** 2
    return np.asarray(np.minimum(ratio, len(analysis)) * discount)


NEIGHBOUR = 10
"""k: so many rows must be near, since a few impossible ones in the split itself must not vouch for others."""

FEWEST_ROWS = 40
_ABOVE = 1e150  # brings what is outside above all distances


@dataclass(frozen=True)
class SupportReading:
    """How usual m inputs are.

    Attributes:
        p_values: (m,); the smallest possible is 1 / (1 + held-out rows), and 0 of a blank picture where the split has
            none: that needs no statistics.
        distances: to the k-th nearest neighbour, in units of the neighbours' covariance, (m,).
        nearest: row numbers in the split of the nearest neighbours, nearest first, (m, k).
        outside: which columns hold what no row of the split comes near, (m, c); None without columns.
    """

    p_values: Array = field(repr=False)
    distances: Array = field(repr=False)
    nearest: Array = field(repr=False)
    outside: Array | None = field(repr=False)

    def __repr__(self) -> str:
        return printed(self, points=len(self.p_values), unusual=int(self.unusual().sum()))

    def unusual(self, level: float = UNUSUAL) -> Array:
        """Inputs of p at most ``level``: at most that share of ordinary ones, (m,) booleans."""
        return np.asarray(self.p_values <= level)


@dataclass(frozen=True)
class Support:
    """The rows of a labelled split as what inputs are compared with (from ``Support.of``).

    Attributes:
        whitening: to the space in which distances are taken.
        index: the neighbours there.
        neighbours: their row numbers in the split.
        held_out: scores of the held-out rows, rising.
        columns: what the columns of the neighbours hold; None where there are only vectors.
        has_blank: whether some row of the split is a blank picture, as an input may then be.
    """

    whitening: Whitening = field(repr=False)
    index: NeighbourIndex = field(repr=False)
    neighbours: Array = field(repr=False)
    held_out: Array = field(repr=False)
    columns: ColumnRanges | None = field(repr=False)
    has_blank: bool = False

    @classmethod
    def of(cls, x: Any, *, columns: pd.DataFrame | None = None, groups: Any | None = None, seed: int = 0) -> Support:
        """Cut the rows of a split into neighbours and held-out rows, and score the latter.

        Args:
            x: inputs of the split in the encoder's space before it is normalised, (n, d).
            columns: what the rows are in their table, (n, c), for values that no row comes near.
            groups: one value a row; rows of one group are held out together.
            seed: of the cut.

        Raises:
            InvalidInputError: fewer than 40 rows, values that are not finite, or another number of rows in ``columns``.
        """
        x = _matrix(x, "x")
        if len(x) < FEWEST_ROWS:
            raise InvalidInputError(f"x: {len(x)} rows; at least {FEWEST_ROWS} labelled rows must say what is usual")
        if columns is not None and len(columns) != len(x):
            raise InvalidInputError(f"columns: {len(columns)} rows for {len(x)} of x; give the same rows")
        kept, held = _cut(len(x), groups, stream(seed, "rows held out from neighbours"))
        most = most_rows(x.shape[1])
        # So few ordinary rows may be outside by columns that p <= 1 % stays in reach of those that are: of few held-out
        # rows hardly one, of many three tenths of those that may be as far.
        share = max(0.1, 0.3 * (int(UNUSUAL * (len(held) + 1)) - 1)) / len(held)
        ranges = None if columns is None else ColumnRanges.of(columns.iloc[kept], share)
        near = np.sort(kept[:most])
        whitening = Whitening.of(x[near])
        index = NeighbourIndex.of(whitening(x[near]))
        has_blank = columns is not None and bool(blank(columns).any())
        made = cls(whitening, index, near, np.empty(0), ranges, has_blank)
        scores = made._scores(x[held], None if columns is None else columns.iloc[held])[0]
        return replace(made, held_out=np.sort(scores))

    def __repr__(self) -> str:
        return printed(self, neighbours=len(self.neighbours), held_out=len(self.held_out), features=self.features)

    @property
    def features(self) -> int:
        """Number of features d of an input."""
        return int(self.index.rows.shape[1])

    def at(self, x: Any, columns: pd.DataFrame | None = None) -> SupportReading:
        """How usual inputs are.

        Args:
            x: (m, d), in the space of the split's.
            columns: what they are in their table, (m, c), where the split's were given.

        Raises:
            InvalidInputError: another number of features or rows, or columns that are missing.
        """
        x = _matrix(x, "x")
        if x.shape[1] != self.features:
            raise InvalidInputError(
                f"x: {x.shape[1]} features, but the rows of the split have {self.features}; embed both alike"
            )
        if self.columns is not None:
            if columns is None or len(columns) != len(x):
                given = "none" if columns is None else f"{len(columns)} rows"
                raise InvalidInputError(
                    f"columns: {given} for {len(x)} inputs; give the columns that the split's were given"
                )
            lacking = [column.name for column in self.columns.columns if column.name not in columns]
            if lacking:
                raise InvalidInputError(f"columns: no {', '.join(lacking)}, which the split has; name them alike")
        scores, distances, nearest, outside = self._scores(x, columns)
        beyond = len(self.held_out) - np.searchsorted(self.held_out, scores, side="left")
        p_values = (1.0 + beyond) / (1.0 + len(self.held_out))
        if columns is not None and not self.has_blank:
            p_values[blank(columns)] = 0.0
        return SupportReading(p_values, distances, self.neighbours[nearest], outside)

    def _scores(self, x: Array, columns: pd.DataFrame | None) -> tuple[Array, Array, Array, Array | None]:
        distances, nearest = self.index.nearest(self.whitening(x), NEIGHBOUR)
        scores = distances[:, -1]
        if self.columns is None or columns is None:
            return scores, scores, nearest, None
        beyond = self.columns.beyond(columns)
        furthest = beyond.max(axis=1, initial=0.0)
        with np.errstate(over="ignore"):
            above = _ABOVE * furthest
        return np.where(furthest > 0.0, above, scores), scores, nearest, beyond > 0.0


def _matrix(x: Any, name: str) -> Array:
    checked = to_numpy(require_matrix(x, name))
    return np.asarray(checked, dtype=checked.dtype if checked.dtype in (np.float32, np.float64) else np.float64)


def _cut(n: int, groups: Any | None, rng: np.random.Generator) -> tuple[Array, Array]:
    """Row numbers of neighbours and of held-out rows, in random order; groups are whole."""
    count = held_out_rows(n)
    if groups is None:
        order = rng.permutation(n)
        return order[count:], order[:count]
    values, numbers = np.unique(np.asarray(groups), return_inverse=True)
    if len(numbers) != n:
        raise InvalidInputError(f"groups: {len(numbers)} values for {n} rows; give one value a row")
    place = rng.permutation(len(values))[numbers]
    order = np.lexsort((rng.permutation(n), place))
    ends = np.flatnonzero(np.diff(place[order])) + 1  # where one group ends and the next begins
    if not len(ends):
        raise InvalidInputError("groups: all rows are of one group; at least two must say what is usual")
    stop = int(ends[np.argmin(np.abs(ends - count))])
    return rng.permutation(order[stop:]), order[:stop]
