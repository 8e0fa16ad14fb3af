"""What a block of rows adds to the test, the effects and the reading of versions, in passes over the blocks.

quantiles  what versions say of the sampled rows        -> each version's own basis
scores     products of directions and scores            -> evidence, smoothing, P-P curves; of dependent rows by block
null       products of directions and drawn scores      -> the null that versions share, or that is one's alone
reading    effects, and every row's reading             -> the test
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.conditional_calibration.bases import (
    TILE_ROWS,
    Bases,
    Basis,
    KernelColumns,
    own_basis,
    own_quantiles,
    product,
)
from congruence.kernels.conditional_calibration.counts import JumpScores, is_by_jumps, table_width
from congruence.kernels.conditional_calibration.effects import LeaveOneOut
from congruence.kernels.conditional_calibration.local_reading import LEVELS, PREFIX, LocalReading, ScoreSmoothing
from congruence.kernels.conditional_calibration.null import draw_blocks, projected_draws
from congruence.kernels.conditional_calibration.regions import RegionCenters
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import BlockRows, BlockSums, Pass, Write, chosen_in
from congruence.kernels.engine.system import tile_slices, weighted_squares
from congruence.kernels.pit import ORDERS, cell_step, pit_scores, pit_values
from congruence.kernels.threads import map_on_threads

INFLUENCE = f"{PREFIX}influence_"
MOST_BLOCKS = 2_500
"""Of rows that depend on each other, whose sums are held; of more, neighbouring ones are taken as one."""

_ROWS_OF_DRAWS = 16_384  # whose directions are side by side while draws go over them


@dataclass(frozen=True)
class Version:
    """What every block needs to know of a version.

    Attributes:
        name: of the version.
        own: basis on its own quantiles; None where these do not depend on the input, or are not finite.
        by_jumps: whether its scores are means over jumps (``JumpScores``): in all rows or in none.
        step: of the cells in which its targets are judged, see ``pit.cell_step``.
        dependent: blocks of all rows that depend on each other, at most ``MOST_BLOCKS``.
        seed: of the randomisation of PIT values.
    """

    name: str
    own: Basis | None = field(repr=False)
    by_jumps: bool
    step: float | None
    dependent: DependentBlocks | None = field(repr=False)
    seed: int

    @classmethod
    def of(cls, bases: Bases, name: str, found: BlockSums, dependent: DependentBlocks | None, seed: int) -> Version:
        """Returns it from what ``predictions_pass`` found of the version; its own basis has no directions yet."""
        targets, predictive = found.rows("targets"), found.rows("predictions")
        step = cell_step(targets, predictive, bases.n)
        quantiles = own_quantiles(targets, predictive, bases.settings.levels, step)
        own = own_basis(quantiles, bases.settings, dtype=bases.dtype, seed=bases.seed)
        joined = None if dependent is None else dependent.joined(MOST_BLOCKS)
        return cls(name, own, is_by_jumps(predictive, found.largest["width"], step), step, joined, seed)

    def own_columns(self, rows: BlockRows, bases: Bases, predictive: Distribution) -> KernelColumns | None:
        """Returns the columns of its own basis at the rows of a block, if it has one; NaN where a quantile is none."""
        if self.own is None:
            return None
        quantiles = own_quantiles(rows.targets(), predictive, bases.settings.levels, self.step)
        finite = np.where(np.isfinite(quantiles), quantiles, np.nan)
        return KernelColumns(finite.astype(self.own.landmarks.dtype), [self.own])

    def jumps(self, rows: BlockRows, predictive: Distribution) -> JumpScores | None:
        """Returns its scores at the rows of a block, where they are means over jumps."""
        return JumpScores.at(rows.targets().astype(np.float64), predictive, self.step) if self.by_jumps else None

    def dependent_at(self, rows: BlockRows, at: slice) -> DependentBlocks | None:
        """Returns the blocks of dependent rows at a tile of a block."""
        return None if self.dependent is None else self.dependent.at(slice(rows.first + at.start, rows.first + at.stop))


def predictions_pass(rows: BlockRows, versions: Sequence[str], positions: Array) -> Pass:
    """Returns targets and predictions of the sampled rows, and how wide the widest of all distributions is."""
    targets, found = rows.targets(), {name: BlockSums() for name in versions}
    chosen = chosen_in(positions, rows.first, len(targets))
    for name, sums in found.items():
        predictive = rows.predictive(name)
        sums.raise_to("width", table_width(predictive))
        if len(chosen):
            sums.keep("targets", targets[chosen].astype(np.float64))
            sums.keep("predictions", predictive[chosen])
    return found


def version_scores(
    rows: BlockRows, versions: Sequence[Version]
) -> dict[str, tuple[Distribution, Array, JumpScores | None, Array]]:
    """Returns predictions, PIT values (rows,), jumps, and scores (rows, 4) of each version at the rows of a block.

    Keys are read only where a PIT value is randomised: texts take seconds.
    """
    models, found = {version.name: rows.predictive(version.name) for version in versions}, {}
    steps = any(version.step or models[version.name].may_jump or models[version.name].has_steps for version in versions)
    keys = rows.blocks.keys(rows.block) if steps else None
    for version in versions:
        predictive = models[version.name]
        pit = pit_values(rows.targets(), predictive, seed=version.seed, keys=keys, step=version.step)
        jumps = version.jumps(rows, predictive)
        found[version.name] = predictive, pit, jumps, pit_scores(pit) if jumps is None else jumps.values
    return found


def scores_pass(rows: BlockRows, bases: Bases, versions: Sequence[Version]) -> Pass:
    """Returns products of all directions with the scores of versions, and with the columns of their own kernels."""
    known, weights = version_scores(rows, versions), rows.weights()
    own = {version.name: version.own_columns(rows, bases, known[version.name][0]) for version in versions}
    regression, sums = LeaveOneOut.of_bases(bases), {version.name: BlockSums() for version in versions}
    for at, vectors in bases.tiles(bases.inputs(rows)):
        counted = None if weights is None else weights[at]
        for version in versions:
            added, (predictive, pit, jumps, scores) = sums[version.name], known[version.name]
            scores, dependent = scores[at], version.dependent_at(rows, at)
            added.raise_to("members", float(predictive.members or 0))
            added.add("projected", product(vectors, scores))
            added.add("scores", np.sum(scores, axis=0))
            added.add("squares", np.sum(scores**2, axis=0))
            if dependent is not None:
                total = added.sum_of("in blocks", (dependent.count, vectors.shape[1], len(ORDERS)))
                dependent.add_products(total, vectors, scores)
                if jumps is not None:
                    added.add("stated", np.sum(jumps.variance[at], axis=0))
            regression.add_scores(added, vectors, scores, counted, dependent)
            if bases.smoothing is not None:
                _add_smoothing(added, vectors[:, bases.smoothing[0]], pit[at], None if jumps is None else jumps[at])
            if (columns := own[version.name]) is not None:
                _add_own(added, columns, at, scores, dependent)
    return sums


def _add_smoothing(added: BlockSums, inside: Array, pit: Array, jumps: JumpScores | None) -> None:
    """What the reading of rows, and the P-P curves, need of a tile in the directions of the protocol's kernel."""
    below = (pit[:, None] <= LEVELS).astype(np.float32)
    added.add("below", product(inside, below))
    added.add("shares", np.sum(below, axis=0, dtype=np.float64))
    if jumps is not None:
        added.add("variance", np.sum(jumps.variance, axis=0))
        added.add("weighted", np.stack([weighted_squares(inside, column) for column in jumps.variance.T]))


def _add_own(
    added: BlockSums, columns: KernelColumns, at: slice, scores: Array, dependent: DependentBlocks | None
) -> None:
    """What a version's own basis needs of a tile."""
    tile = columns.at(at)[0].astype(np.float64)
    added.add("own projected", product(tile, scores))
    added.add("own products", tile.T @ tile)
    if dependent is not None:
        total = added.sum_of("own in blocks", (dependent.count, tile.shape[1], len(ORDERS)))
        dependent.add_products(total, tile, scores)


def null_pass(rows: BlockRows, bases: Bases, versions: Sequence[Version], draws: int, with_shared: bool) -> Pass:
    """Returns products of drawn scores with the directions of all bases, if asked, and with those of versions' own.

    Of a version with jumps, which comes alone, its own distributions' scores are drawn.
    """
    beside: list[tuple[KernelColumns, Array]] = []
    jumps: JumpScores | None = None
    for version in versions:
        predictive = rows.predictive(version.name)
        jumps = version.jumps(rows, predictive)
        columns = version.own_columns(rows, bases, predictive)
        if version.own is not None and columns is not None:
            beside.append((columns, version.own.coordinates))
    widths = [bases.directions if with_shared else 0, *(coordinates.shape[1] for _, coordinates in beside)]
    sums, blocks, apart = BlockSums(), draw_blocks(draws), np.cumsum(widths)[:-1].tolist()
    x = bases.inputs(rows)
    for strip in row_slices(len(x), _ROWS_OF_DRAWS):
        parts = [bases.vectors(x[strip])] if with_shared else []
        for columns, coordinates in beside:
            tiles = tile_slices(strip, TILE_ROWS)
            parts.append(np.concatenate([columns.at(at)[0] @ coordinates for at in tiles]).astype(np.float32))
        here, first = None if jumps is None else jumps[strip], rows.first + strip.start
        vectors = np.concatenate(parts, axis=1)
        draw = partial(projected_draws, vectors, first, draws=draws, seed=bases.seed, jumps=here, apart=apart)
        for block, part in zip(blocks, map_on_threads(draw, blocks), strict=True):
            sums.add_large(f"draws from {block}", part)
    return {"": sums}


def reading_pass(
    rows: BlockRows,
    bases: Bases,
    versions: Sequence[Version],
    regressions: Mapping[str, BlockSums],
    smoothings: Mapping[str, ScoreSmoothing | None],
    places: RegionCenters | None,
    write: Write | None,
) -> Pass:
    """Returns what the effects of versions need. Where there are ``places``, columns of every row are written, too.

    Args:
        regressions: of the scores of each version, from ``scores_pass``.
        smoothings: of the same, by which rows are read.
        places: centres of the regions; None where nothing is read.
        write: takes region, reading and influence of every row.
    """
    known, weights, x = version_scores(rows, versions), rows.weights(), bases.inputs(rows)
    regression, found = LeaveOneOut.of_bases(bases), {version.name: BlockSums() for version in versions}
    written: dict[str, list[dict[str, Array]]] = {version.name: [] for version in versions}
    for at, vectors in bases.tiles(x):
        counted = None if weights is None else weights[at]
        for version in versions:
            added, scores = found[version.name], known[version.name][3][at]
            influence = regression.add_effects(added, regressions[version.name], vectors, scores, counted)
            if (dependent := version.dependent_at(rows, at)) is not None:
                added.add("influence of blocks", dependent.sums(influence))
            smoothing = smoothings[version.name]
            if places is not None and smoothing is not None and bases.smoothing is not None:
                reading = LocalReading.at(smoothing, vectors[:, bases.smoothing[0]])
                columns = {f"{INFLUENCE}{order}": influence[:, j] for j, order in enumerate(ORDERS)}
                written[version.name].append(columns | reading.by_row())
    if places is not None and write is not None:
        region = {f"{PREFIX}region": places.labels(x).astype(np.float64)}
        for name, parts in written.items():
            columns = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
            write(rows.block, name, columns | region)
    return found
