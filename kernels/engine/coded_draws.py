r"""Draws by the thousand at the price of a few: simulated splits and signs of the rows that share a linear code.

A draw is a number g of D bits. Its sign for row i is :math:`(-1)^{\langle a_i, g\rangle}` with D random bits a_i of the
row's own, so that any one draw's signs are independent, and any two draws are (Joffe 1974; Alon, Babai and Itai 1986).
Means over the draws have the expectation and the variance that independent draws would give them. What all draws sum to
along directions U is a Walsh-Hadamard transform, over g, of sums over the rows of equal code:

.. math::  \sum_i (-1)^{\langle a_i, g\rangle} u_i \Delta_i'
           = \sum_a (-1)^{\langle a, g\rangle} \sum_{i: a_i = a} u_i \Delta_i'

which costs one product with U for all draws together, where one by one it takes a product for each.

A simulated split takes one of 2^s values of every row's pool, the one whose number has the bits A_i g, for an s x D
matrix A_i of the row's own. g = 0 takes the first value everywhere, and the splits are what a group of exchanges inside
the pools makes of it. In the Walsh characters w of the pool this is the same sum, with codes A_i' w.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.streams import row_words, stream

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
