"""Simulated splits of rows that depend on each other: the observed Delta with one random sign for every block of rows.

If the model is the truth, Delta has mean 0 given the inputs, and blocks are independent: what signs of whole blocks
make of a sum has its mean and its covariance, whatever the dependence inside the blocks. The signs are elements of a
group, the observed split its identity (``coded_draws``): the p-value is exact where the law of a block's Delta is
symmetric around 0, and holds in the limit of many blocks otherwise.
"""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.coded_draws import SimulatedSplits, row_codes, sums_by_code
from congruence.kernels.dependence.blocks import DependentBlocks

_PURPOSE = "signs of blocks of rows"


def signed_sums(vectors: Array, delta: Array, labels: Array, draws: int, seed: int) -> Array:
    """What some rows add: U'Delta by the codes of their blocks, (2^bits, k, r); U (rows, k), labels (rows,)."""
    bits = _splits(draws, seed).bits
    return sums_by_code(vectors, delta, row_codes(labels, bits, seed, _PURPOSE), bits)


def coefficients_of(sums: Array, filters: Array, draws: int, seed: int, apart: float) -> Array:
    """What the smoother keeps of the observed split and of each simulated one, (r, k, 1 + draws), observed first.

    The simulated ones are enlarged by ``apart``, as so few blocks ask for (``dependence.blocks.enlargement``).
    """
    kept = _splits(draws, seed).coefficients(np.asarray(sums, dtype=np.float32)) * filters[:, None]
    kept[1:] *= apart
    return np.ascontiguousarray(kept.transpose(2, 1, 0), dtype=np.float32)


def negated(blocks: DependentBlocks, draws: int, seed: int) -> Array:
    """Whether a row's sign is -1 in each simulated split, the observed one first, (n, 1 + draws) of 0 and 1."""
    splits = _splits(draws, seed)
    codes = row_codes(blocks.labels, splits.bits, seed, _PURPOSE)
    return np.asarray(np.bitwise_count(codes[:, None] & splits.splits) & 1).astype(np.intp)


def _splits(draws: int, seed: int) -> SimulatedSplits:
    return SimulatedSplits(draws, 1, 1, seed)
