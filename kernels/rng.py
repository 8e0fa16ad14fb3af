r"""Where random numbers come from: one seed, and for every purpose a stream that nobody else draws from.

``default_rng([s, 0])`` is ``default_rng(s)``, and a test set written with ``default_rng(s)`` then holds the
very numbers of an evaluation with seed s. So purpose, seed and indices are hashed together (SHA-256), and the 256 bits
of the hash are the entropy of the generator: two streams coincide, with each other or with a generator that a caller
seeds with a number of their own choice, only where SHA-256 collides.

Random numbers of a row are functions of its position in the split, a seed and a purpose alone. A generator that is
asked block by block gives other numbers to other cuts. Here each row has a SplitMix64 sequence (Steele et al. 2014) of
its own, and distributions are drawn from by inversion.

Draws by the thousand cost as much as a few, where the rows share a linear code. A draw is a number g of D bits. Its
sign for row i is :math:`(-1)^{\langle a_i, g\rangle}` with D random bits a_i of the row's own, so that any one draw's
signs are independent, and any two draws are (Joffe 1974; Alon, Babai and Itai 1986). Means over the draws have the
expectation and the variance that independent draws would give them. What all draws sum to along directions U is a
Walsh-Hadamard transform, over g, of sums over the rows of equal code:

.. math::  \sum_i (-1)^{\langle a_i, g\rangle} u_i \Delta_i'
           = \sum_a (-1)^{\langle a, g\rangle} \sum_{i: a_i = a} u_i \Delta_i'

which costs one product with U for all draws together, where one by one it takes a product for each.
"""

from __future__ import annotations

import hashlib
import operator
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError


def stream(seed: int | np.random.Generator, purpose: str, *index: int) -> np.random.Generator:
    """The generator of a purpose, such as ``stream(seed, "null draws", block)``.

    Args:
        seed: any whole number. A generator takes the place of the whole stream and is returned as it is.
        purpose: what the numbers are for, in words.
        index: whole numbers that tell the streams of one purpose apart.

    Raises:
        InvalidInputError: a seed that is neither a whole number nor a generator.
    """
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(int.from_bytes(_digest(seed, purpose, *index), "little"))


def positioned_stream(seed: int, purpose: str, step: int, *index: int) -> np.random.Generator:
    """A generator that begins at a counter of the stream of a purpose: Philox 4x64 (Salmon et al. 2011).

    What is drawn from position p on is what a generator that began earlier would draw there, so that rows in blocks of
    any size have the numbers of their positions.
    """
    key = np.frombuffer(_digest(seed, purpose, *index)[:16], dtype="<u8")
    return np.random.Generator(np.random.Philox(counter=step, key=key))


def keyed_uniforms(keys: Any, seed: int, purpose: str) -> Array:
    """One uniform number in [0, 1) per key (n,), a function of the key, the seed and the purpose alone.

    The same in every sharding and every order of the rows. Whole numbers count by their value, everything else by its
    text.

    Raises:
        InvalidInputError: a seed that is not a whole number.
    """
    start = np.frombuffer(_digest(seed, purpose)[:8], dtype="<u8").astype(np.uint64)
    mixed = _scramble(_scramble(hashed_keys(keys)) ^ start)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def row_words(positions: Array, count: int, seed: int, purpose: str) -> Array:
    """``count`` 64-bit words for each row, (n, count): the SplitMix64 sequence that starts at its hashed position."""
    start = np.frombuffer(_digest(seed, purpose)[:8], dtype="<u8").astype(np.uint64)
    own = _scramble(np.asarray(positions).astype(np.uint64) ^ start)
    return _scramble(own[:, None] + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def hashed_keys(keys: Any) -> Array:
    """64-bit numbers that stand for the keys, (n,): near numbers stay near."""
    array = np.asarray(keys)
    if array.dtype.kind in "iub":
        return np.asarray(array.astype(np.int64).view(np.uint64))
    digests = b"".join(hashlib.blake2b(str(key).encode(), digest_size=8).digest() for key in array)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _digest(seed: Any, purpose: str, *index: int) -> bytes:
    try:
        numbers = [operator.index(number) for number in (seed, *index)]
    except TypeError:
        raise InvalidInputError(f"seed: is {seed!r}, expected a whole number") from None
    return hashlib.sha256(repr((purpose, numbers)).encode()).digest()


def _scramble(numbers: Array) -> Array:
    """The output function of SplitMix64 (Steele et al. 2014): near keys give unrelated numbers."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


NIBBLES = 16


def row_uniforms(positions: Array, count: int, seed: int, purpose: str) -> Array:
    """``count`` uniform numbers inside (0, 1) for each row, (n, count)."""
    words = row_words(positions, count, seed, purpose)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def row_signs(positions: Array, count: int, seed: int, purpose: str) -> Array:
    """``count`` signs -1 or 1 for each row, (n, count), in single precision."""
    words = row_words(positions, -(-count // 64), seed, purpose)
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=count)
    signs = bits.astype(np.float32)
    signs *= 2.0
    signs -= 1.0
    return signs


def row_choices(positions: Array, count: int, among: int, seed: int, purpose: str) -> Array:
    """``count`` numbers 0, ..., ``among`` - 1 for each row, uniform and independent, (n, count)."""
    if among == NIBBLES:
        pairs = row_words(positions, -(-count // 16), seed, purpose).view(np.uint8)
        return np.stack([pairs & 15, pairs >> 4], axis=2).reshape(len(positions), -1)[:, :count].astype(np.intp)
    halves = row_words(positions, -(-count // 2), seed, purpose).view(np.uint32)[:, :count]
    return ((halves.astype(np.uint64) * np.uint64(among)) >> np.uint64(32)).astype(np.intp)


_ROWS_OF_A_PRODUCT = 64  # below, a product is too small to be worth its call


def row_codes(positions: Array, bits: int, seed: int, purpose: str) -> Array:
    """``bits`` random bits for each row as a number, (n,): of its position in the split, seed and purpose alone."""
    return np.asarray(row_words(positions, 1, seed, purpose)[:, 0] & np.uint64(2**bits - 1)).astype(np.intp)


def sums_by_code(vectors: Array, values: Array, codes: Array, bits: int) -> Array:
    """sum over the rows i of each code of u_i v_i', (2^bits, k, c), for U (n, k), values (n, c) and codes (n,)."""
    n, count = len(codes), 2**bits
    groups = min(count, 1 << max(0, (n // _ROWS_OF_A_PRODUCT).bit_length() - 1))
    each = count // groups
    sums = np.zeros((groups, each, vectors.shape[1], values.shape[1]), dtype=np.float32)
    for group, rows in rows_by_label(codes // each, groups):
        # Rows of several codes in one product: each stands in the columns of its own.
        columns = np.zeros((len(rows), each, values.shape[1]), dtype=np.float32)
        columns[np.arange(len(rows)), codes[rows] % each] = values[rows]
        product = vectors[rows].T @ columns.reshape(len(rows), -1)
        sums[group] = product.reshape(-1, each, values.shape[1]).transpose(1, 0, 2)
    return sums.reshape(count, vectors.shape[1], values.shape[1])


def rows_by_label(labels: Array, count: int) -> list[tuple[int, Array]]:
    """The rows of each label that has any."""
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(count + 1))
    return [(label, order[ends[label] : ends[label + 1]]) for label in range(count) if ends[label] < ends[label + 1]]


def walsh_hadamard(values: Array) -> Array:
    """sum_a (-1)^<a, g> v_a for every g, over the first axis, whose length is a power of two."""
    count = len(values)
    flat = np.array(values).reshape(count, -1)
    other, half = np.empty_like(flat), 1
    while half < count:
        pairs, made = (each.reshape(count // (2 * half), 2, half, -1) for each in (flat, other))
        np.add(pairs[:, 0], pairs[:, 1], out=made[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=made[:, 1])
        flat, other, half = other, flat, 2 * half
    return np.asarray(flat.reshape(values.shape))
