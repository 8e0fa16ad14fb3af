r"""What a true version would show: simulated splits, the test of congruence, and the mean CCE that is expected.

Under the null hypothesis y*_i ~ f(x_i) is exchangeable with y_i, so for *any* statistic computed alike on observed and
drawn targets p = (1 + #{T* >= T}) / (B + 1) is a valid p-value at any n (Dwass 1957; Davison and Hinkley 1997, section
4.2). Only right-hand sides change. The statistic is the mean CCE over the points, smoothed in the leading directions.

The simulated splits are drawn from pools. A row's observed target and 15 draws from its predictive distribution are
exchangeable if the model is the truth (an ensemble's target and members are, too), and every simulated split takes one
of the 16 for each row. Which one is the action of a group on the pools, in which the observed split stands for the
identity, and the draws are elements of that group chosen at random: p is exact for any number of them (Hemerik and
Goeman 2018, theorem 2), and all of them together cost a few products (``coded_draws``).

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
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, mean_over
from congruence.kernels.dependence.blocks import DependentBlocks, enlargement, widening
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import BlockSums
from congruence.kernels.engine.coded_draws import (
    ENTRY_BITS,
    POOL_BITS,
    SimulatedSplits,
    row_codes,
    sums_by_code,
    walsh_hadamard,
)
from congruence.kernels.engine.null_features import NullFeatures, drawn_targets
from congruence.kernels.engine.results import TIE, CongruenceUncertainty, ExpectedCongruence
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.streams import row_uniforms
from congruence.kernels.threads import available_threads, map_on_threads

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
        targets = predictive.placed(targets, row_uniforms(positions, self.seed, "places of targets in their cells"))
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
