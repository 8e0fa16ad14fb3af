"""One version on a block of rows: what the block adds to its test, its effects and its smoothing.

Passes over the blocks, each of which adds up what the next one needs of all rows: the version's quantiles at the
sampled rows (for its own basis), scores, draws of the null, and the reading of every row with the effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums, chosen_in
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.calibration.pit_scores import pit_scores
from congruence.kernels.conditional_calibration.bases import BasisKernel, InputBases, Tiles, product
from congruence.kernels.conditional_calibration.count_scores import CountScores, projected_count_draws
from congruence.kernels.conditional_calibration.effects import LeaveOneOut
from congruence.kernels.conditional_calibration.local_distribution import LEVELS
from congruence.kernels.conditional_calibration.null import dominance, draw_blocks, projected_draws, sign_null
from congruence.kernels.conditional_calibration.own_basis import OwnColumns, own_kernel, own_quantiles
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.threads import available_threads, map_on_threads

SHARED = "what all versions share"
_ROWS_OF_DRAWS = 16_384  # whose directions are side by side while draws go over them


@dataclass(frozen=True)
class VersionPlan:
    """What every block needs to know of a version.

    Attributes:
        name: of the version.
        own: kernel on its own quantiles; None where these do not depend on the input, or are not finite.
    """

    name: str
    own: BasisKernel | None = field(default=None, repr=False)


def quantile_sums(
    settings: CalibrationSettings, targets: Array, predictive: Distribution, positions: Array, first: int
) -> BlockSums:
    """A version's own quantiles at the sampled rows of a block that begins at row ``first``."""
    sums = BlockSums()
    rows = chosen_in(positions, first, len(targets))
    if len(rows):
        found = own_quantiles(targets[rows], predictive[rows], settings.levels)
        sums.keep("quantiles", np.empty((len(rows), 0)) if found is None else np.asarray(found, dtype=np.float64))
    return sums


def planned_version(bases: InputBases, name: str, quantiles: Array, dtype: Any) -> VersionPlan:
    """The version's own basis, from its quantiles at the sampled rows, (s, q)."""
    return VersionPlan(name, own_kernel(quantiles, bases.plan.settings, dtype=dtype, seed=bases.plan.seed))


@dataclass(frozen=True)
class VersionRows:
    """A version's PIT values and their scores at the rows of a block, and what it says of them.

    Attributes:
        pit: (rows,).
        scores: (rows, 4).
        own: columns of its own kernel; None without an own basis.
        counts: where the scores are means over the jumps of predicted counts, their law.
    """

    pit: Array
    scores: Array
    own: OwnColumns | None = None
    counts: CountScores | None = None

    @classmethod
    def of(
        cls, plan: VersionPlan, y: Any, law: Distribution, quantiles: Array | None, *, keys: Any, seed: int
    ) -> VersionRows:
        """From targets and predictions, and the version's own quantiles (rows, q), if it has a basis of them."""
        pit = pit_values(y, law, seed=seed, keys=keys)
        own = None if plan.own is None or quantiles is None else OwnColumns.of(plan.own, quantiles)
        counts = CountScores.of(np.asarray(y, dtype=np.float64), law)
        return cls(pit, pit_scores(pit) if counts is None else counts.observed, own, counts)


def score_sums(
    bases: InputBases, tiles: Tiles, rows_of: Mapping[str, VersionRows], *, is_guarded: bool
) -> dict[str, BlockSums]:
    """What a block adds by version: products of all directions with the scores, and with the version's own columns.

    With ``is_guarded`` also under ``SHARED`` what the gaussian limit of the null needs (``limit_sums``).

    Args:
        bases: of the split.
        tiles: of the block.
        rows_of: by version.
        is_guarded: whether the null may be its gaussian limit, so that the dominance of rows is to be known.
    """
    sums = {name: BlockSums() for name in rows_of}
    regression, smoother = LeaveOneOut.of_bases(bases), bases.smoother
    own = {name: version.own.tiles() for name, version in rows_of.items() if version.own is not None}
    for name, version in rows_of.items():
        if version.own is not None:
            sums[name].add("unbounded", float(version.own.unbounded))
    for rows, vectors in tiles:
        if is_guarded:
            sums.setdefault(SHARED, BlockSums()).merge(limit_sums(bases, vectors))
        for name, version in rows_of.items():
            added, scores = sums[name], version.scores[rows]
            added.add("projected", product(vectors, scores))
            added.add("scores", np.sum(scores, axis=0))
            added.add("squares", np.sum(scores**2, axis=0))
            regression.add_scores(added, vectors, scores)
            if smoother is not None:
                below = (version.pit[rows, None] <= LEVELS).astype(np.float32)
                added.add("below", product(vectors[:, smoother[0]], below))
                added.add("shares", np.sum(below, axis=0, dtype=np.float64))
                if version.counts is not None:
                    _add_variances(added, vectors[:, smoother[0]], version.counts.variance[rows])
            if name in own:
                columns = own[name].at(rows)[0].astype(np.float64)
                added.add("own projected", product(columns, scores))
                added.add("own products", columns.T @ columns)
                if is_guarded:
                    added.add("own shared", product(columns, vectors))
    return sums


def _add_variances(sums: BlockSums, vectors: Array, variance: Array) -> None:
    """U' diag(v) U of every order, and the sum of v, for v (rows, 4)."""
    sums.add("variance", np.sum(variance, axis=0))
    weighted = [product(vectors * column[:, None].astype(vectors.dtype), vectors) for column in variance.T]
    sums.add("weighted", np.stack(weighted))


def count_null_sums(tiles: Tiles, version: VersionRows, first: int, draws: int, seed: int) -> BlockSums:
    """Products of the scores of drawn counts with all directions and with the version's own columns side by side."""
    assert version.counts is not None
    counts, own, sums = version.counts, None if version.own is None else version.own.tiles(), BlockSums()
    for rows, vectors in tiles:
        side_by_side = vectors if own is None else np.concatenate([vectors, own.at(rows)[0]], axis=1, dtype=np.float32)
        for block in draw_blocks(draws):
            part = projected_count_draws(side_by_side, counts.of_rows(rows), first + rows.start, block, draws, seed)
            sums.add(f"draws from {block}", part)
    return sums


def sign_null_sums(tiles: Tiles, version: VersionRows, blocks: DependentBlocks, draws: int, seed: int) -> BlockSums:
    """Products of the scores under one sign a block of rows, as ``count_null_sums`` has them of drawn counts.

    ``blocks`` of these rows, with the number of all.
    """
    own, sums = None if version.own is None else version.own.tiles(), BlockSums()
    for rows, vectors in tiles:
        side_by_side = vectors if own is None else np.concatenate([vectors, own.at(rows)[0]], axis=1, dtype=np.float32)
        null = sign_null(side_by_side, version.scores[rows], replace(blocks, labels=blocks.labels[rows]), draws, seed)
        for block in draw_blocks(draws):
            sums.add(f"draws from {block}", null(block))
    return sums


def limit_sums(bases: InputBases, vectors: Array) -> BlockSums:
    """U'U, and how far one of the rows dominates a hypothesis, over the rows of a tile."""
    sums = BlockSums()
    # Of U itself: what is rounding in products of columns is large in the last directions.
    exact = vectors.astype(np.float64)
    sums.add("moment", exact.T @ exact)
    sums.raise_to("dominance", dominance(bases, vectors))
    return sums


def null_sums(tiles: Tiles, rows_of: Mapping[str, VersionRows], first: int, draws: int, seed: int) -> BlockSums:
    """Products of drawn scores with all directions and with the versions' own columns side by side.

    Args:
        tiles: of a block that begins at row ``first``.
        rows_of: by version, in the order in which ``places_in_null`` has them.
        first: position of the first row.
        draws: B.
        seed: of the draws.
    """
    sums, begin, length = BlockSums(), first, 0
    held: list[Array] = []
    own = [version.own.tiles() for version in rows_of.values() if version.own is not None]

    def add() -> None:
        vectors = np.concatenate(held)
        blocks = draw_blocks(draws)
        found = map_on_threads(
            lambda block: projected_draws(vectors, begin, block, draws, seed), blocks, available_threads()
        )
        for block, part in zip(blocks, found, strict=True):
            sums.add(f"draws from {block}", part)

    for rows, vectors in tiles:
        held.append(np.concatenate([vectors, *(one.at(rows)[0] for one in own)], axis=1, dtype=np.float32))
        length += len(vectors)
        if length >= _ROWS_OF_DRAWS:
            add()
            held, begin, length = [], begin + length, 0
    if held:
        add()
    return sums


def places_in_null(bases: InputBases, plans: Sequence[VersionPlan]) -> dict[str, slice]:
    """Of each version's own columns in ``null_sums``; ``SHARED`` is what all share."""
    start = len(bases.total)
    places = {SHARED: slice(0, start)}
    for plan in plans:
        if plan.own is not None:
            places[plan.name] = slice(start, start + len(plan.own.landmarks))
            start = places[plan.name].stop
    return places
