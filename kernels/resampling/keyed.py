"""Random numbers that belong to a row: functions of its position in the split, a seed and a purpose alone.

A generator that is asked block by block gives other numbers to other cuts. Here each row has a SplitMix64 sequence
(Steele et al. 2014) of its own, and laws are drawn from by inversion.
"""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.streams import row_words

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


def row_draws(predictive: Distribution, positions: Array, count: int, seed: int, purpose: str) -> Array:
    """``count`` independent draws from the law of each row, (n, count) or (n, count, q)."""
    return predictive.sample_by(lambda numbers, use: row_uniforms(positions, numbers, seed, f"{purpose}{use}"), count)
