"""Simulated splits of a version: what its rows add to them, and what the smoother keeps of them; one block, or many.

Targets drawn from the version make its expected mean CCE (``expected``) and the null of its test (``test``), which have
the draws in common. Of rows that depend on each other the test has the observed Delta with one sign for every block of
rows (``signed_splits``), and the expected mean CCE is that of the residuals' noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums
from congruence.kernels.congruence.coded_draws import (
    ENTRY_BITS,
    POOL_BITS,
    SimulatedSplits,
    row_codes,
    sums_by_code,
    walsh_hadamard,
)
from congruence.kernels.congruence.null_draws import NullFeatures, drawn_targets
from congruence.kernels.congruence.signed_splits import coefficients_of, signed_sums
from congruence.kernels.dependence.blocks import DependentBlocks, enlargement
from congruence.kernels.distributions import Distribution
from congruence.kernels.gram.spectrum import SpectralSmoother
from congruence.kernels.streams import row_uniforms
from congruence.kernels.threads import map_on_threads

SPLITS = 16
SIGN_BITS = 4  # 16 draws of the signs for each split
ROWS = 8192  # whose draws are in memory at once


@dataclass(frozen=True)
class SimulatedVersion:
    """What is drawn for a version.

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
        threads: int = 1,
        dtype: Any = np.float64,
    ) -> None:
        """What some rows add.

        Args:
            sums: changed in place; those of the test are made in ``dtype``.
            vectors: U, (rows, k).
            targets, predictive: of the rows.
            positions: of the rows in the split.
            roots: of their weights, where they count unequally.
            threads: that share the test's work.
        """
        weights = None if roots is None else roots.astype(np.float32)[:, None]
        targets = predictive.placed(targets, row_uniforms(positions, self.seed, "places of targets in their cells"))
        leading = np.ascontiguousarray(vectors[:, : self.directions])
        if self.blocks is not None:
            if self.tested is not None:
                labels, observed = self.blocks.labels[positions], self.tested.draws(targets, predictive).observed()
                signed = observed if weights is None else observed * weights
                sums.add("null", signed_sums(leading, signed, labels, self.draws, self.seed))
                if self.blocks.sparse:
                    counts = np.bincount(labels, targets - predictive.mean(), self.blocks.count)
                    sums.add("counts of blocks", counts)
            return
        count = 2**POOL_BITS - 1 if self.expected is None else SPLITS
        drawn = drawn_targets(targets, predictive, positions, count, self.seed)
        if self.expected is not None:
            delta = _weighted(self.expected.draws(targets, predictive).of_values(drawn), weights)
            codes = row_codes(positions, SIGN_BITS, self.seed, "signs of a true version")
            sums.add("expected", sums_by_code(vectors, delta.reshape(len(delta), -1), codes, SIGN_BITS))
        if self.tested is not None:
            values = np.concatenate([targets[:, None], drawn[:, : 2**POOL_BITS - 1]], axis=1)
            pool = _weighted(self.tested.draws(targets, predictive).of_values(values), weights)
            splits, k = self.splits, leading.shape[1]
            null = sums.sum_of("null", (2**splits.bits, k, pool.shape[2]), dtype)
            shares = [slice(start, start + -(-k // threads)) for start in range(0, k, -(-k // threads))]
            map_on_threads(partial(_add_share, splits, null, leading, pool, positions), shares, threads)

    def sums(
        self, smoother: SpectralSmoother, targets: Array, predictive: Distribution, *, roots: Array | None, threads: int
    ) -> BlockSums:
        """What all rows add, where they are here."""
        found, n = BlockSums(), len(targets)
        for start in range(0, n, ROWS):
            rows = slice(start, min(start + ROWS, n))
            self.add(
                found,
                smoother.analysis[rows],
                targets[rows],
                predictive[rows],
                np.arange(rows.start, rows.stop),
                roots=None if roots is None else roots[rows],
                threads=threads,
                dtype=np.float32,
            )
        return found

    def null_coefficients(self, sums: BlockSums, filters: Array) -> Array:
        """What the smoother keeps of the observed split and then of each simulated one, (r, k, 1 + draws)."""
        tested, null = filters[: self.directions], sums.added["null"]
        if self.blocks is not None:
            apart = enlargement(self.blocks.count, sums.added.get("counts of blocks"))
            return coefficients_of(null, tested, self.draws, self.seed, apart)
        return self.splits.kept(null, tested)


def true_coefficients(sums: BlockSums, filters: Array) -> Array:
    """What the smoother keeps of every split drawn for ``expected``, under all signs, (splits x signs, k, r).

    The signs that leave a drawn split as it is are as good as any: it was drawn.
    """
    kept = walsh_hadamard(np.asarray(sums.added["expected"], dtype=np.float32)) * filters[:, None]
    signs, k, columns = kept.shape
    rank = columns // SPLITS
    return np.ascontiguousarray(kept.reshape(signs, k, -1, rank).transpose(2, 0, 1, 3)).reshape(-1, k, rank)


def _weighted(delta: Array, weights: Array | None) -> Array:
    return delta if weights is None else delta * weights[:, None]


def _add_share(
    splits: SimulatedSplits, sums: Array, vectors: Array, pool: Array, positions: Array, share: slice
) -> None:
    splits.add(sums[:, share], vectors[:, share], pool, positions)
