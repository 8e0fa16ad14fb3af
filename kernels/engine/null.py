r"""What a true version would show: simulated splits, the test of congruence, and the mean CCE that is expected.

Draws by the thousand cost as much as a few, where the rows share a linear code. A draw is a number g of D bits. Its
sign for row i is :math:`(-1)^{\langle a_i, g\rangle}` with D random bits a_i of the row's own, so that any one draw's
signs are independent, and any two draws are (Joffe 1974; Alon, Babai and Itai 1986). Means over the draws have the
expectation and the variance that independent draws would give them. What all draws sum to along directions U is a
Walsh-Hadamard transform, over g, of sums over the rows of equal code:

.. math::  \sum_i (-1)^{\langle a_i, g\rangle} u_i \Delta_i'
           = \sum_a (-1)^{\langle a, g\rangle} \sum_{i: a_i = a} u_i \Delta_i'

which costs one product with U for all draws together, where one by one it takes a product for each.

A simulated split takes one of 2^s values of every row's pool, the one whose number has the bits A_i g, for an s x D
matrix A_i of the row's own. g = 0 takes the first value everywhere, and the splits are what a group of exchanges inside
the pools makes of it. In the Walsh characters w of the pool this is the same sum, with codes A_i' w.

Under the null hypothesis y*_i ~ f(x_i) is exchangeable with y_i, so for *any* statistic computed alike on observed and
drawn targets p = (1 + #{T* >= T}) / (B + 1) is a valid p-value at any n (Dwass 1957; Davison and Hinkley 1997, section
4.2). Only right-hand sides change. The statistic is the mean CCE over the points, smoothed in the leading directions.

The simulated splits are drawn from pools. A row's observed target and 15 draws from its predictive distribution are
exchangeable if the model is the truth (an ensemble's target and members are, too), and every simulated split takes one
of the 16 for each row. Which one is the action of a group on the pools, in which the observed split stands for the
identity, and the draws are elements of that group chosen at random: p is exact for any number of them (Hemerik and
Goeman 2018, theorem 2), and all of them together cost a few products.

Rows that depend on each other are not exchangeable with draws one by one. There the simulated splits are the observed
Delta with one random sign for every block of rows: if the model is the truth, Delta has mean 0 given the inputs, and
what signs of whole blocks make of a sum has its mean and its covariance, whatever the dependence inside the blocks. p
then holds in the limit of many blocks.

The noise floor is a root of expected squares, and a mean CCE is a mean of norms: a true version lies below its floor.
What is expected of its mean CCE is the same mean of norms of drawn targets. A few drawn splits serve for hundreds,
since signs drawn for the rows leave the covariance of the smoothed error as it is (a multiplier bootstrap; Wu 1986).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, mean_over
from congruence.kernels.dependence.blocks import DependentBlocks, enlargement, widening
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import BlockSums
from congruence.kernels.engine.results import TIE, CongruenceUncertainty, ExpectedCongruence
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.engine.targets import NullFeatures, drawn_targets
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.rng import row_uniforms, row_words, stream
from congruence.kernels.threads import available_threads, map_on_threads

ROWS_OF_A_PRODUCT = 64  # below, a product is too small to be worth its call
MIN_BITS = 10  # of up to 1,023 draws: fewer are the first of as many
POOL_BITS = 4  # a row's pool holds 16 values
ENTRY_BITS = 5  # rows share 32 matrices of codes: those of a tile are multiplied together


def row_codes(positions: Array, bits: int, seed: int, purpose: str) -> Array:
    """``bits`` random bits for each row as a number, (n,): of its position in the split, seed and purpose alone."""
    return np.asarray(row_words(positions, 1, seed, purpose)[:, 0] & np.uint64(2**bits - 1)).astype(np.intp)


def sums_by_code(vectors: Array, values: Array, codes: Array, bits: int) -> Array:
    """sum over the rows i of each code of u_i v_i', (2^bits, k, c), for U (n, k), values (n, c) and codes (n,)."""
    n, count = len(codes), 2**bits
    groups = min(count, 1 << max(0, (n // ROWS_OF_A_PRODUCT).bit_length() - 1))
    each = count // groups
    sums = np.zeros((groups, each, vectors.shape[1], values.shape[1]), dtype=np.float32)
    for group, rows in _members(codes // each, groups):
        # Rows of several codes in one product: each stands in the columns of its own.
        columns = np.zeros((len(rows), each, values.shape[1]), dtype=np.float32)
        columns[np.arange(len(rows)), codes[rows] % each] = values[rows]
        product = vectors[rows].T @ columns.reshape(len(rows), -1)
        sums[group] = product.reshape(-1, each, values.shape[1]).transpose(1, 0, 2)
    return sums.reshape(count, vectors.shape[1], values.shape[1])


def walsh_hadamard(values: Array) -> Array:
    """sum_a (-1)^<a, g> v_a for every g, over the first axis, whose length is a power of two."""
    count = len(values)
    flat = np.array(values).reshape(count, -1)
    half = 1
    while half < count:
        pairs = flat.reshape(count // (2 * half), 2, half, -1)
        flat = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        half *= 2
    return np.asarray(flat.reshape(values.shape))


@dataclass(frozen=True)
class SimulatedSplits:
    """Simulated splits that take one of 2^pool_bits values of every row's pool.

    Attributes:
        draws: how many, beside the split that takes the first value everywhere.
        pool_bits: of a number in the pool.
        entry_bits: rows share 2^entry_bits matrices A.
        seed: of which rows share a matrix, and of which elements of the group are drawn.
        least_bits: of g. Fewer make sums over the rows smaller; fewer draws than they have room for are the first ones
            of more.
    """

    draws: int
    pool_bits: int
    entry_bits: int
    seed: int
    least_bits: int = MIN_BITS

    @property
    def bits(self) -> int:
        """D."""
        return max(self.least_bits, self.draws.bit_length())

    @cached_property
    def book(self) -> Array:
        """Codes A'w of the characters w for some random A of full rank, (2^entry_bits, 2^pool_bits)."""
        rng = stream(0, "code book of null draws")
        book = np.zeros((2**self.entry_bits, 2**self.pool_bits), dtype=np.intp)
        wanted = np.arange(len(book))
        while len(wanted):
            codes = _combinations(rng.integers(2**self.least_bits, size=(len(wanted), self.pool_bits)))
            book[wanted] = codes
            wanted = wanted[(codes[:, 1:] == 0).any(axis=1)]  # not of full rank: two characters would share a code
        for bit in range(self.least_bits, self.bits):  # more bits are beside the others, not in their place
            more = stream(0, "code book of null draws", bit).integers(2, size=(len(book), self.pool_bits))
            book |= _combinations(more) << bit
        return book

    @property
    def splits(self) -> Array:
        """g of the observed split, 0, and of the drawn ones, (1 + draws,)."""
        parts = [np.zeros(1, dtype=np.intp), 1 + stream(self.seed, "null splits").permutation(2**self.least_bits - 1)]
        more = range(self.least_bits, self.bits)
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
        for entry, rows in _members(self._entries(positions), len(self.book)):
            product = vectors[rows].T @ flat[rows]
            sums[self.book[entry]] += product.reshape(k, size, r).transpose(1, 0, 2)

    def coefficients(self, sums: Array) -> Array:
        """U'Delta of the observed split and of every drawn one, (1 + draws, k, r), from the sums over all rows."""
        return np.asarray(walsh_hadamard(sums)[self.splits])

    def kept(self, sums: Array, filters: Array) -> Array:
        """What a smoother of ``filters`` (k,) keeps of them, (r, k, 1 + draws), observed first."""
        kept = self.coefficients(sums) * filters[:, None]
        return np.ascontiguousarray(kept.transpose(2, 1, 0), dtype=np.float32)

    def choices(self, positions: Array) -> Array:
        """Which value of its pool a row gives to each of ``splits``, (n, 1 + draws): the definition, bit by bit."""
        chosen = np.zeros((len(self.book), 1 + self.draws), dtype=np.intp)
        for bit in range(self.pool_bits):
            ones = np.bitwise_count(self.book[:, 1 << bit, None] & self.splits) & 1
            chosen |= ones.astype(np.intp) << bit
        return np.asarray(chosen[self._entries(positions)])

    def _entries(self, positions: Array) -> Array:
        return row_codes(positions, self.entry_bits, self.seed, "pools of null draws")


def _combinations(columns: Array) -> Array:
    """A'w of every character w, (e, 2^s), from the columns of A', (e, s)."""
    codes = np.zeros((len(columns), 1), dtype=np.intp)
    for column in columns.T:
        codes = np.concatenate([codes, codes ^ column[:, None]], axis=1)
    return codes


def _members(labels: Array, count: int) -> list[tuple[int, Array]]:
    """The rows of each label that has any."""
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(count + 1))
    return [(label, order[ends[label] : ends[label + 1]]) for label in range(count) if ends[label] < ends[label + 1]]


DRAWS = 999
DRAWS_OF_MANY = 199
ROWS_OF_FEWER_DRAWS = 50_000  # beyond, the test costs a fifth
MANY_ROWS = 10_000  # of a split, beyond which the test smooths in fewer directions
FILTER_OF_MANY = 0.05
SPLITS = 16  # drawn for the expected mean CCE
SIGN_BITS = 4  # 16 draws of the signs for each of them
ROWS = 8192  # whose draws are in memory at once
TILE_BYTES = 2**23  # of the simulated errors at some points, for one thread
CACHED_BYTES = 2**20  # of these, what is worked on at a time
BAND = (0.025, 0.975)
_SIGNS = "signs of blocks of rows"


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


def tested_directions(filters: Array, n: int) -> int:
    """Returns how many leading directions the test smooths in: all up to 10,000 rows, then those that keep 5 %.

    A test is exact for any statistic; those left out hold some 1 % of the squared weights and most of the work.
    """
    return len(filters) if n <= MANY_ROWS else max(1, int((filters >= FILTER_OF_MANY).sum()))


@dataclass(frozen=True)
class SimulatedVersion:
    """What is drawn for a version, from sums over rows.

    Attributes:
        expected: psi of the k_Y of the mean CCE; None where the expected mean CCE is not asked for.
        tested: psi of the test's k_Y; None without a test.
        draws: simulated sets of targets of the test.
        directions: leading ones of U that the test smooths in.
        seed: of signs and draws.
        blocks: of all rows of the split, where they depend on each other.
    """

    expected: NullFeatures | None = field(repr=False)
    tested: NullFeatures | None = field(repr=False)
    draws: int
    directions: int
    seed: int
    blocks: DependentBlocks | None = field(default=None, repr=False)

    @property
    def splits(self) -> SimulatedSplits:
        """Of the test."""
        if self.blocks is not None:
            return SimulatedSplits(self.draws, 1, 1, self.seed)
        return SimulatedSplits(self.draws, POOL_BITS, ENTRY_BITS, self.seed)

    def add(
        self,
        sums: BlockSums,
        vectors: Array,
        targets: Array,
        predictive: Distribution,
        positions: Array,
        *,
        roots: Array | None = None,
        dtype: Any = np.float64,
    ) -> None:
        """Add what some rows contribute.

        Args:
            sums: changed in place; those of the test are made in ``dtype``.
            vectors: U, (rows, k).
            targets, predictive: of the rows.
            positions: of the rows in the split.
            roots: of their weights in the reference, where they count unequally.
        """
        targets = predictive.placed(
            targets, row_uniforms(positions, 1, self.seed, "places of targets in their cells")[:, 0]
        )
        weights = np.float32(1.0) if roots is None else roots.astype(np.float32)[:, None, None]
        leading, splits = np.ascontiguousarray(vectors[:, : self.directions]), self.splits
        if self.blocks is not None:
            if self.tested is not None:
                labels = self.blocks.labels[positions]
                observed = (self.tested.against(targets, predictive)(targets[:, None]) * weights)[:, 0]
                codes = row_codes(labels, splits.bits, self.seed, _SIGNS)
                sums.add("null", sums_by_code(leading, observed, codes, splits.bits))
                if self.blocks.sparse:
                    counts = np.bincount(labels, targets - predictive.mean(), self.blocks.count)
                    sums.add("counts of blocks", counts)
            return
        count = 2**POOL_BITS - 1 if self.expected is None else SPLITS
        drawn = drawn_targets(targets, predictive, positions, count, self.seed)
        if self.expected is not None:
            delta = self.expected.against(targets, predictive)(drawn) * weights
            codes = row_codes(positions, SIGN_BITS, self.seed, "signs of a true version")
            sums.add("expected", sums_by_code(vectors, delta.reshape(len(delta), -1), codes, SIGN_BITS))
        if self.tested is not None:
            values = np.concatenate([targets[:, None], drawn[:, : 2**POOL_BITS - 1]], axis=1)
            pool = self.tested.against(targets, predictive)(values) * weights
            null = sums.sum_of("null", (2**splits.bits, leading.shape[1], pool.shape[2]), dtype)
            splits.add(null, leading, pool, positions)

    def null_coefficients(self, sums: BlockSums, filters: Array) -> Array:
        """Returns what the smoother keeps of the observed split and then of each simulated one, (r, k, 1 + draws)."""
        kept = self.splits.coefficients(np.asarray(sums.added["null"], dtype=np.float32))
        kept = kept * filters[: self.directions, None]
        if self.blocks is not None:  # enlarged, as so few blocks ask for
            kept[1:] *= enlargement(self.blocks.count, sums.added.get("counts of blocks"))
        return np.ascontiguousarray(kept.transpose(2, 1, 0), dtype=np.float32)


def coefficients_of_split(
    smoother: SpectralSmoother,
    y: Array,
    predictive: Distribution,
    features: NullFeatures,
    *,
    draws: int,
    seed: int,
    blocks: DependentBlocks | None = None,
) -> Array:
    """Returns what the smoother keeps of the observed split and of each simulated one, where all rows are here."""
    version = SimulatedVersion(None, features, draws, len(smoother.filters), seed, blocks)
    found, n = BlockSums(), len(y)
    for start in range(0, n, ROWS):
        rows = slice(start, min(start + ROWS, n))
        positions = np.arange(rows.start, rows.stop)
        version.add(found, smoother.analysis[rows], y[rows], predictive[rows], positions, dtype=np.float32)
    return version.null_coefficients(found, smoother.filters)


def true_coefficients(sums: BlockSums, filters: Array) -> Array:
    """Returns what the smoother keeps of every split drawn for ``expected``, under all signs, (splits x signs, k, r).

    The signs that leave a drawn split as it is are as good as any: it was drawn.
    """
    kept = walsh_hadamard(np.asarray(sums.added["expected"], dtype=np.float32)) * filters[:, None]
    signs, k, columns = kept.shape
    rank = columns // SPLITS
    return np.ascontiguousarray(kept.reshape(signs, k, -1, rank).transpose(2, 0, 1, 3)).reshape(-1, k, rank)


def expected_at(
    synthesis: Array, drawn: Array, mean_squared_floor: float, weights: Array | None = None
) -> ExpectedCongruence:
    """Returns the mean CCE of a true version at points U (p, k), from what the smoother keeps of drawn Delta.

    Args:
        synthesis: U, (p, k).
        drawn: under signs, (B, k, r).
        mean_squared_floor: over the points: directions and features that were left out hold a small known share of it.
        weights: of the points, (p,), where they count unequally.
    """
    means, squares = np.empty(len(drawn)), np.empty(len(drawn))
    for number, coefficients in enumerate(drawn):
        smoothed = synthesis @ coefficients
        square = np.einsum("ij,ij->i", smoothed, smoothed)
        means[number], squares[number] = mean_over(np.sqrt(square), weights), mean_over(square, weights)
    means *= np.sqrt(mean_squared_floor / max(float(np.mean(squares)), np.finfo(float).tiny))
    low, high = np.quantile(means, BAND)
    return ExpectedCongruence(float(np.mean(means)), float(low), float(high))


def expected_by_blocks(uncertainty: CongruenceUncertainty) -> ExpectedCongruence:
    """Returns the same of rows that depend on each other: what residuals make with one sign for every block.

    The band is drawn apart as far as so few blocks ask for (``dependence.blocks.widening``).
    """
    assert uncertainty.noise_means is not None
    mean = float(np.mean(uncertainty.noise_means))
    apart = 1.0 if uncertainty.blocks is None else widening(uncertainty.blocks)
    low, high = mean + apart * (np.quantile(uncertainty.noise_means, BAND) - mean)
    return ExpectedCongruence(mean, max(float(low), 0.0), float(high))


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


def errors_at_points(synthesis: Array, kept: Array, advance: Callable[[int], None] = lambda _: None) -> SimulatedErrors:
    """Returns errors at points U (m, k), by all threads, from ``null_coefficients``."""
    points, total = max(1, TILE_BYTES // (4 * kept.shape[2])), len(synthesis)

    def at_some(start: int) -> SimulatedErrors:
        some = synthesis[start : start + points]
        found = simulated_errors(some, kept)
        advance(len(some))
        return found

    return _joined(map_on_threads(at_some, range(0, max(1, total), points), available_threads()))


def simulated_errors(synthesis: Array, coefficients: Array) -> SimulatedErrors:
    """Returns errors at points U (p, k) from ``null_coefficients``, (r, k, 1 + draws).

    In parts that a core keeps in its own cache, in the same memory one after the other.
    """
    draws = coefficients.shape[2]
    at_once = max(1, min(len(synthesis), CACHED_BYTES // (4 * draws)))
    values, smoothed = (np.empty((at_once, draws), dtype=np.float32) for _ in range(2))
    return _joined(
        [
            _cached_errors(synthesis[start : start + at_once], coefficients, values, smoothed)
            for start in range(0, max(1, len(synthesis)), at_once)
        ]
    )


def _cached_errors(some: Array, coefficients: Array, values: Array, smoothed: Array) -> SimulatedErrors:
    value, each = values[: len(some)], smoothed[: len(some)]
    value[...] = 0.0
    for of_feature in coefficients:
        np.matmul(some, of_feature, out=each)
        value += np.multiply(each, each, out=each)
    roots = np.sqrt(value[:, 1:].mean(axis=1, dtype=np.float64))
    np.sqrt(value, out=value)
    reached = (value[:, 1:] >= TIE * value[:, :1]).sum(axis=1)
    expected = value[:, 1:].mean(axis=1, dtype=np.float64)
    return SimulatedErrors(value[:, 0].copy(), reached, expected, roots, value.sum(axis=0, dtype=np.float64))


def _joined(parts: list[SimulatedErrors]) -> SimulatedErrors:
    """Returns the points of ``parts`` one after the other."""
    names = ("observed", "reached", "expected", "roots")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return SimulatedErrors(**columns, totals=np.sum([part.totals for part in parts], axis=0))
