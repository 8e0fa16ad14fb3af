"""The test of congruence: its result, the splits that are simulated for it, and errors at points under them.

Under the null hypothesis y*_i ~ f(x_i) is exchangeable with y_i, so for *any* statistic computed alike on observed and
drawn targets p = (1 + #{T* >= T}) / (B + 1) is a valid p-value at any n (Dwass 1957; Davison and Hinkley 1997, section
4.2). Only right-hand sides change. The statistic is the mean CCE over the points, smoothed in the leading directions.

The simulated splits are drawn from pools. A row's observed target and 15 draws from its predictive distribution are
exchangeable if the model is the truth (an ensemble's target and members are, too), and every simulated split takes one
of the 16 for each row. Which one is the action of a group on the pools, in which the observed split stands for the
identity, and the draws are elements of that group chosen at random: p is exact for any number of them (Hemerik and
Goeman 2018, theorem 2), and all of them together cost a few products.

A simulated split takes one of 2^s values of every row's pool, the one whose number has the bits A_i g, for an s x D
matrix A_i of the row's own. g = 0 takes the first value everywhere, and the splits are what a group of exchanges inside
the pools makes of it. In the Walsh characters w of the pool this is the same sum, with codes A_i' w.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from congruence.kernels.arrays import Array, printed, row_slices
from congruence.kernels.dependence.blocks import p_value_kind
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.rng import row_codes, rows_by_label, stream, walsh_hadamard
from congruence.kernels.threads import map_on_threads

if TYPE_CHECKING:
    import pandas as pd

TIE = 1.0 - 1e-5  # single precision must not make a tie with the observed value look smaller than it
MIN_BITS = 10  # of up to 1,023 draws: fewer are the first of as many
POOL_BITS = 4  # a row's pool holds 16 values
ENTRY_BITS = 5  # rows share 32 matrices of codes: those of a tile are multiplied together
DRAWS = 999
DRAWS_OF_MANY = 199
ROWS_OF_FEWER_DRAWS = 50_000  # beyond, the test costs a fifth
CACHED_BYTES = 2**20  # of the simulated errors at some points, worked on at a time


@dataclass(frozen=True, repr=False)
class CongruenceTest:
    """A Monte-Carlo test of congruence at m points.

    Attributes:
        statistic: T, the mean over the points of the smoothed error of the observed targets.
        p_value: of the whole split; at least 1 / (draws + 1).
        point_p_values: of each point's neighbourhood, (m,), under "the model is the truth everywhere".
        point_statistics: the smoothed error at each point, (m,).
        null_statistics: T* of the drawn targets, (draws,).
        blocks: how many blocks of rows are taken as independent; None where all rows are.
    """

    statistic: float
    p_value: float
    point_p_values: Array = field(repr=False)
    point_statistics: Array = field(repr=False)
    null_statistics: Array = field(repr=False)
    blocks: int | None = None

    @classmethod
    def of(cls, statistic: float, null: Array, blocks: int | None) -> CongruenceTest:
        """Returns the test from the statistic and the drawn ones, whose points are elsewhere."""
        p_value = (1 + int(np.count_nonzero(null >= TIE * statistic))) / (len(null) + 1)
        return cls(statistic, p_value, np.empty(0), np.empty(0), null, blocks)

    def __repr__(self) -> str:
        return printed(self, statistic=self.statistic, expected=self.expected, band=self.band, p_value=self.p_value,
                       p_value_kind=self.p_value_kind, draws=self.draws, points=len(self.point_p_values))  # fmt: skip

    def to_frame(self) -> pd.DataFrame:
        """Returns a table with a row a point, in their order.

        ``statistic``: the smoothed error there. ``p_value``: of the point's neighbourhood. ``q_value``: the same
        adjusted for the number of points (Benjamini and Hochberg 1995).
        """
        import pandas as pd

        q_values = benjamini_hochberg(self.point_p_values)
        return pd.DataFrame({"statistic": self.point_statistics, "p_value": self.point_p_values, "q_value": q_values})

    @property
    def expected(self) -> float:
        """What the statistic would be on average if the model were the truth: the mean of the null statistics."""
        return float(np.mean(self.null_statistics))

    @property
    def band(self) -> tuple[float, float]:
        """Where the statistic lies in 95 of 100 splits if the model is the truth."""
        return band_of(self.null_statistics)

    @property
    def p_value_kind(self) -> str:
        """ "exact", or "asymptotic in B blocks": of rows that depend on each other, or the rows of corrected draws."""
        return p_value_kind(self.blocks)

    @property
    def draws(self) -> int:
        """Number of simulated sets of targets B."""
        return len(self.null_statistics)

    def significant_points(self, level: float = 0.05) -> Array:
        """Points around which the model is wrong, with a false discovery rate of at most ``level``: (m,) booleans.

        What is tested at a point is the smoothed error there against a model that is the truth *everywhere*: a point
        next to a region where the model is wrong is smoothed from that region's targets too, and may be found though
        the model is right at the point itself. Read them as places to look around, not as verdicts on single points.
        """
        return benjamini_hochberg(self.point_p_values) <= level


def band_of(draws: Array) -> tuple[float, float]:
    """Returns between what ends one more draw lies in 95 of 100 cases, from draws (B,).

    At 2.5 and 97.5 % of B + 1 (Hyndman and Fan 1996, type 6): between NumPy's own quantiles lie 94.3 % beside 256.
    """
    low, high = np.quantile(draws, (0.025, 0.975), method="weibull").tolist()
    return low, high


def benjamini_hochberg(p_values: Array) -> Array:
    """Returns q-values: rejecting where q <= level keeps the false discovery rate at ``level``.

    q_(i) = min over j >= i of m p_(j) / j (Benjamini and Hochberg 1995). Valid for p-values that are independent or
    positively dependent, as those of neighbouring points are.

    Raises:
        InvalidInputError: not a vector of probabilities.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not np.all((p >= 0.0) & (p <= 1.0)):
        raise InvalidInputError("p_values: expected a vector of probabilities inside [0, 1]")
    order, count = np.argsort(p), np.arange(len(p), 0, -1)
    found = np.empty_like(p)
    found[order[::-1]] = np.minimum.accumulate(p[order[::-1]] * (len(p) / count))
    return np.minimum(found, 1.0)


@dataclass(frozen=True)
class SimulatedSplits:
    """Simulated splits that take one of 2^pool_bits values of every row's pool.

    Attributes:
        draws: how many, beside the split that takes the first value everywhere.
        pool_bits: of a number in the pool.
        entry_bits: rows share 2^entry_bits matrices A.
        seed: of which rows share a matrix, and of which elements of the group are drawn.
    """

    draws: int
    pool_bits: int
    entry_bits: int
    seed: int

    @property
    def bits(self) -> int:
        """D, of g."""
        return max(MIN_BITS, self.draws.bit_length())

    @cached_property
    def book(self) -> Array:
        """Codes A'w of the characters w for some random A of full rank, (2^entry_bits, 2^pool_bits)."""
        rng = stream(0, "code book of null draws")
        book = np.zeros((2**self.entry_bits, 2**self.pool_bits), dtype=np.intp)
        wanted = np.arange(len(book))
        while len(wanted):
            codes = _combinations(rng.integers(2**MIN_BITS, size=(len(wanted), self.pool_bits)))
            book[wanted] = codes
            wanted = wanted[(codes[:, 1:] == 0).any(axis=1)]  # not of full rank: two characters would share a code
        for bit in range(MIN_BITS, self.bits):  # more bits are beside the others, not in their place
            more = stream(0, "code book of null draws", bit).integers(2, size=(len(book), self.pool_bits))
            book |= _combinations(more) << bit
        return book

    @property
    def splits(self) -> Array:
        """g of the observed split, 0, and of the drawn ones, (1 + draws,)."""
        parts = [np.zeros(1, dtype=np.intp), 1 + stream(self.seed, "null splits").permutation(2**MIN_BITS - 1)]
        more = range(MIN_BITS, self.bits)
        parts += [2**bit + stream(self.seed, "null splits", bit).permutation(2**bit) for bit in more]
        return np.concatenate(parts)[: 1 + self.draws]

    def add(self, sums: Array, vectors: Array, pool: Array, positions: Array) -> None:
        """Add what some rows contribute to ``sums`` (2^D, k, r).

        Args:
            sums: changed in place.
            vectors: U, (n, k).
            pool: Delta of the pools, the observed one first, (n, 2^pool_bits, r).
            positions: of the rows in the split, (n,).
        """
        k, (n, size, r) = vectors.shape[1], pool.shape
        # Value j of a pool is sum_w (-1)^<w, j> times character w, and j = A g makes <w, j> = <A'w, g>.
        characters = walsh_hadamard(pool.transpose(1, 0, 2)) / np.float32(size)
        flat = np.ascontiguousarray(characters.transpose(1, 0, 2)).reshape(n, -1)
        entries = row_codes(positions, self.entry_bits, self.seed, "pools of null draws")
        for entry, rows in rows_by_label(entries, len(self.book)):
            product = vectors[rows].T @ flat[rows]
            sums[self.book[entry]] += product.reshape(k, size, r).transpose(1, 0, 2)

    def coefficients(self, sums: Array) -> Array:
        """U'Delta of the observed split and of every drawn one, (1 + draws, k, r), from the sums over all rows."""
        return np.asarray(walsh_hadamard(sums)[self.splits])


def _combinations(columns: Array) -> Array:
    """A'w of every character w, (e, 2^s), from the columns of A', (e, s)."""
    codes = np.zeros((len(columns), 1), dtype=np.intp)
    for column in columns.T:
        codes = np.concatenate([codes, codes ^ column[:, None]], axis=1)
    return codes


def null_draw_count(n: int, draws: int | None = None) -> int:
    """Returns ``draws``; by default 999 simulated sets of targets up to 50,000 rows, and the first 199 of them beyond.

    Raises:
        InvalidInputError: fewer than one.
    """
    if draws is None:
        return DRAWS if n <= ROWS_OF_FEWER_DRAWS else DRAWS_OF_MANY
    if draws < 1:
        raise InvalidInputError(f"draws: {draws}; a Monte-Carlo test needs at least 1, and 19 to reject at 5 %")
    return draws


@dataclass(frozen=True)
class SimulatedErrors:
    """Smoothed errors at some points.

    Attributes:
        observed: of the observed split, (p,).
        reached: how many of the simulated splits reach it there, (p,).
        expected: the mean of the simulated splits there, (p,).
        roots: their root mean square there, (p,).
        totals: sums over the points by their weights, of the observed split and of each simulated one, (1 + draws,).
    """

    observed: Array
    reached: Array
    expected: Array
    roots: Array
    totals: Array


def simulated_errors(synthesis: Array, coefficients: Array, threads: int = 1) -> SimulatedErrors:
    """Returns errors at points U (p, k) from ``null_coefficients``, (r, k, 1 + draws), by so many threads.

    In parts that a core keeps in its own cache.
    """

    def of(rows: slice) -> SimulatedErrors:
        some = synthesis[rows]
        value = np.zeros((len(some), coefficients.shape[2]), dtype=np.float32)
        smoothed = np.empty_like(value)
        for of_feature in coefficients:
            np.matmul(some, of_feature, out=smoothed)
            value += np.multiply(smoothed, smoothed, out=smoothed)
        roots = np.sqrt(value[:, 1:].mean(axis=1, dtype=np.float64))
        np.sqrt(value, out=value)
        reached = (value[:, 1:] >= TIE * value[:, :1]).sum(axis=1)
        expected = value[:, 1:].mean(axis=1, dtype=np.float64)
        return SimulatedErrors(value[:, 0].copy(), reached, expected, roots, value.sum(axis=0, dtype=np.float64))

    some = row_slices(len(synthesis), CACHED_BYTES / (4 * coefficients.shape[2])) or [slice(0, 0)]
    parts = map_on_threads(of, some, threads)
    names = ("observed", "reached", "expected", "roots")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return SimulatedErrors(**columns, totals=np.sum([part.totals for part in parts], axis=0))
