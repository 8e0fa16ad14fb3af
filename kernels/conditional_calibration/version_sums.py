"""One version on a block of rows: what the block adds to its test, its effects and its smoothing.

Passes over the blocks, each of which adds up what the next one needs of all rows: the version's quantiles at the
sampled rows (for its own basis), scores, draws of the null, and the reading of every row with the effects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, on_card
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.calibration.pit_scores import pit_scores
from congruence.kernels.conditional_calibration.bases import BasisKernel, InputBases, Tiles, product
from congruence.kernels.conditional_calibration.counts import LARGEST_TABLE, JumpScores, table_width
from congruence.kernels.conditional_calibration.effects import LeaveOneOut
from congruence.kernels.conditional_calibration.local_reading import LEVELS
from congruence.kernels.conditional_calibration.null import dominance, draw_blocks
from congruence.kernels.conditional_calibration.own_basis import OwnColumns, OwnDirections, own_kernel, own_quantiles
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import BlockSums, chosen_in
from congruence.kernels.engine.coded_draws import SimulatedSplits
from congruence.kernels.engine.tiles import weighted_squares
from congruence.kernels.threads import map_on_threads

SHARED = "what all versions share"
POOLS = "pools"
_ROWS_OF_DRAWS = 16_384  # whose directions are side by side while draws go over them


@dataclass(frozen=True)
class VersionPlan:
    """What every block needs to know of a version.

    Attributes:
        name: of the version.
        own: kernel on its own quantiles; None where these do not depend on the input, or are not finite.
        by_jumps: whether counts may be scored by means over their jumps (``LARGEST_TABLE``): in all rows or in none.
            None where their laws are still to be looked at.
    """

    name: str
    own: BasisKernel | None = field(default=None, repr=False)
    by_jumps: bool | None = None


def quantile_sums(
    settings: CalibrationSettings, targets: Array, predictive: Distribution, positions: Array, first: int
) -> BlockSums:
    """A version's own quantiles at the sampled rows of a block from row ``first`` on, and the widest law of all."""
    sums = BlockSums()
    sums.raise_to("width", table_width(predictive))
    rows = chosen_in(positions, first, len(targets))
    if len(rows):
        found = own_quantiles(targets[rows], predictive[rows], settings.levels)
        sums.keep("quantiles", np.empty((len(rows), 0)) if found is None else np.asarray(found, dtype=np.float64))
    return sums


def planned_version(
    bases: InputBases, name: str, quantiles: Array, dtype: Any, width: float | None = None
) -> VersionPlan:
    """The version's own basis, from its quantiles at the sampled rows, (s, q); ``width`` of its widest law if known."""
    own = own_kernel(quantiles, bases.plan.settings, dtype=dtype, seed=bases.plan.seed)
    return VersionPlan(name, own, None if width is None else width <= LARGEST_TABLE)


@dataclass(frozen=True)
class VersionRows:
    """A version's PIT values and their scores at the rows of a block, and what it says of them.

    Attributes:
        pit: (rows,).
        scores: (rows, 4).
        own: columns of its own kernel; None without an own basis.
        counts: where the scores are means over the jumps of predicted counts, their law.
        weights: what each row counts in effects, of mean 1 over all rows, (rows,); None for equal ones.
    """

    pit: Array
    scores: Array
    own: OwnColumns | None = None
    counts: JumpScores | None = None
    weights: Array | None = None

    @classmethod
    def of(
        cls,
        plan: VersionPlan,
        y: Any,
        law: Distribution,
        quantiles: Array | None,
        *,
        keys: Any,
        seed: int,
        weights: Array | None = None,
    ) -> VersionRows:
        """From targets and predictions, and the version's own quantiles (rows, q), if it has a basis of them."""
        pit = pit_values(y, law, seed=seed, keys=keys)
        own = None if plan.own is None or quantiles is None else OwnColumns.of(plan.own, quantiles)
        counts, targets = None, np.asarray(y, dtype=np.float64)
        if plan.by_jumps is None:
            counts = JumpScores.of(targets, law)
        elif plan.by_jumps and law.has_steps:
            counts = JumpScores.at(targets, law)
        return cls(pit, pit_scores(pit) if counts is None else counts.values, own, counts, weights)


def score_sums(
    bases: InputBases,
    tiles: Tiles,
    rows_of: Mapping[str, VersionRows],
    *,
    is_guarded: bool,
    with_limit: bool = True,
    pools: SimulatedSplits | None = None,
    pooled: Collection[str] = (),
    first: int = 0,
) -> dict[str, BlockSums]:
    """What a block adds by version: products of all directions with the scores, and with the version's own columns.

    With ``is_guarded`` also what the gaussian limit of the null needs, under ``SHARED`` (``limit_sums``) if asked.

    Args:
        bases: of the split.
        tiles: of the block.
        rows_of: by version.
        is_guarded: whether the null may be its gaussian limit, so that the dominance of rows is to be known.
        with_limit: whether the null that versions share is to be made of the sums.
        pools: draws of the null of counts, whose sums are under ``POOLS``: along all directions, and the version's own
            columns after them.
        pooled: the versions that are tested by them, if they predict counts.
        first: position of the block's first row in the split.
    """
    sums = {name: BlockSums() for name in rows_of}
    drawn = {
        name: _PooledDraws(pools, sums[name])
        for name, version in rows_of.items()
        if pools is not None and name in pooled and version.counts is not None
    }
    regression, smoother = LeaveOneOut.of_bases(bases), bases.smoother
    own = {name: version.own.tiles() for name, version in rows_of.items() if version.own is not None}
    for name, version in rows_of.items():
        if version.own is not None:
            sums[name].add("unbounded", float(version.own.unbounded))
    for rows, vectors in tiles:
        if is_guarded and with_limit:
            sums.setdefault(SHARED, BlockSums()).merge(limit_sums(bases, vectors))
        for name, version in rows_of.items():
            added, scores = sums[name], version.scores[rows]
            added.add("projected", product(vectors, scores))
            added.add("scores", np.sum(scores, axis=0))
            added.add("squares", np.sum(scores**2, axis=0))
            counted = None if version.weights is None else version.weights[rows]
            regression.add_scores(added, vectors, scores, counted)
            counts = None if version.counts is None else version.counts[rows]
            if smoother is not None:
                below = (version.pit[rows, None] <= LEVELS).astype(np.float32)
                added.add("below", product(vectors[:, smoother[0]], below))
                added.add("shares", np.sum(below, axis=0, dtype=np.float64))
                if counts is not None:
                    _add_variances(added, vectors[:, smoother[0]], counts.variance)
            beside = vectors
            if name in own:
                columns = own[name].at(rows)[0].astype(np.float64)
                added.add("own projected", product(columns, scores))
                added.add("own products", columns.T @ columns)
                if is_guarded:
                    added.add("own shared", product(columns, vectors))
                beside = np.concatenate([vectors, columns], axis=1, dtype=np.float32)
            if counts is not None and name in drawn:
                drawn[name].add(beside, counts.pool(first + rows.start, drawn[name].seed), first + rows.start)
    for pool in drawn.values():
        pool.flush()
    return sums


@dataclass
class _PooledDraws:
    """Products of directions with pools of scores, added for many rows at once: those of a tile are too small."""

    splits: SimulatedSplits
    sums: BlockSums
    held: list[tuple[Array, Array, Array]] = field(default_factory=list)
    rows: int = 0

    @property
    def seed(self) -> int:
        """Of the draws."""
        return self.splits.seed

    def add(self, vectors: Array, pool: Array, first: int) -> None:
        """Of rows from position ``first`` on: U (n, k) and pools (n, 16, 4)."""
        self.held.append((vectors, pool, np.arange(first, first + len(vectors))))
        self.rows += len(vectors)
        if self.rows >= _ROWS_OF_DRAWS:
            self.flush()

    def flush(self) -> None:
        """Add what is held."""
        if not self.held:
            return
        vectors, pool, positions = (np.concatenate(parts) for parts in zip(*self.held, strict=True))
        shape = (2**self.splits.bits, vectors.shape[1], pool.shape[2])
        self.splits.add(self.sums.sum_of(POOLS, shape), vectors, pool, positions)
        self.held, self.rows = [], 0


def _add_variances(sums: BlockSums, vectors: Array, variance: Array) -> None:
    """U' diag(v) U of every order, and the sum of v, for v (rows, 4)."""
    sums.add("variance", np.sum(variance, axis=0))
    sums.add("weighted", np.stack([weighted_squares(vectors, column) for column in variance.T]))


def limit_sums(bases: InputBases, vectors: Array) -> BlockSums:
    """U'U, and how far one of the rows dominates a hypothesis, over the rows of a tile."""
    sums = BlockSums()
    # Of U itself: what is rounding in products of columns is large in the last directions.
    exact = vectors.astype(np.float64)
    sums.add("moment", exact.T @ exact)
    sums.raise_to("dominance", dominance(bases, vectors))
    return sums


Draw = Callable[[Array, slice, int], Array]
"""Products of directions of some rows of a block with the scores of a block of draws there, (k, 4, D)."""


def drawn_sums(
    tiles: Tiles,
    own: Sequence[tuple[OwnColumns | None, OwnDirections | None]],
    draws: int,
    draw: Draw,
    *,
    with_shared: bool = True,
    has_card: bool = False,
) -> BlockSums:
    """Products of drawn scores with the directions of all bases and with those of versions' own side by side.

    Args:
        tiles: of the block.
        own: columns and directions of versions; None where they have none.
        draws: B.
        draw: the scores, given directions, their rows and the first of the draws.
        with_shared: whether with the directions of all bases, too.
        has_card: whether directions are given on the card.
    """
    sums, blocks = BlockSums(), draw_blocks(draws)
    for rows, held in _strips(tiles, own, with_shared=with_shared):
        vectors = on_card(held) if has_card else held
        found = map_on_threads(partial(draw, vectors, rows), blocks)
        for block, part in zip(blocks, found, strict=True):
            sums.add(f"draws from {block}", part)
    return sums


def _strips(
    tiles: Tiles, own: Sequence[tuple[OwnColumns | None, OwnDirections | None]], *, with_shared: bool
) -> Iterator[tuple[slice, Array]]:
    """The directions of some tiles together, over which draws go at once."""
    columns = [(rows.tiles(), of.coordinates) for rows, of in own if rows is not None and of is not None]
    held: list[Array] = []
    begin = end = 0
    for rows, vectors in tiles:
        parts = [vectors] if with_shared else []
        parts += [of.at(rows)[0] @ coordinates for of, coordinates in columns]
        held.append(np.concatenate(parts, axis=1, dtype=np.float32))
        end = rows.stop
        if end - begin >= _ROWS_OF_DRAWS:
            yield slice(begin, end), np.concatenate(held)
            held, begin = [], end
    if held:
        yield slice(begin, end), np.concatenate(held)
