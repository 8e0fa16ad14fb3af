"""What a block of rows adds to the test, the effects and the reading of versions, in passes over the blocks.

quantiles  what versions say of the sampled rows        -> each version's own basis
scores     products of directions and scores            -> evidence, smoothing, P-P curves; of dependent rows by block
null       products of directions and drawn scores      -> the null
jumps      the same of one version that predicts counts -> the null that is its alone
reading    effects, and every row's reading             -> the test
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.bases import (
    Basis,
    BasisKernel,
    BasisPlan,
    InputBases,
    OwnColumns,
    own_kernel,
    own_quantiles,
    product,
)
from congruence.kernels.conditional_calibration.counts import LARGEST_TABLE, JumpScores, table_width
from congruence.kernels.conditional_calibration.effects import LeaveOneOut
from congruence.kernels.conditional_calibration.local_reading import LEVELS, PREFIX, LocalReading, ScoreSmoothing
from congruence.kernels.conditional_calibration.null import CalibrationSettings, draw_blocks, own_draws, projected_draws
from congruence.kernels.conditional_calibration.regions import RegionCenters
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import BlockRows, BlockSums, Pass, Write, chosen_in
from congruence.kernels.engine.spectrum import weighted_squares
from congruence.kernels.pit import ORDERS, pit_scores, pit_values
from congruence.kernels.threads import map_on_threads

INFLUENCE = f"{PREFIX}influence_"
MOST_BLOCKS = 2_500
"""Of rows that depend on each other, whose sums are held; of more, neighbouring ones are taken as one."""

_ROWS_OF_DRAWS = 16_384  # whose directions are side by side while draws go over them


@dataclass(frozen=True)
class VersionPlan:
    """What every block needs to know of a version.

    Attributes:
        name: of the version.
        own: kernel on its own quantiles; None where these do not depend on the input, or are not finite.
        by_jumps: whether its scores are means over jumps (``JumpScores``): in all rows or in none.
        dependent: blocks of all rows that depend on each other, at most ``MOST_BLOCKS``.
        seed: of the randomisation of PIT values.
    """

    name: str
    own: BasisKernel | None = field(repr=False)
    by_jumps: bool
    dependent: DependentBlocks | None = field(repr=False)
    seed: int

    @classmethod
    def of(
        cls, bases: InputBases, name: str, found: BlockSums, dependent: DependentBlocks | None, seed: int
    ) -> VersionPlan:
        """Returns it from what ``quantiles_pass`` found of the version."""
        plan = bases.plan
        own = own_kernel(found.rows("quantiles"), plan.settings, dtype=plan.dtype, seed=plan.seed)
        joined = None if dependent is None else dependent.joined(MOST_BLOCKS)
        return cls(name, own, 0 < found.largest["width"] <= LARGEST_TABLE, joined, seed)

    def own_columns(self, rows: BlockRows, plan: BasisPlan, predictive: Distribution) -> OwnColumns | None:
        """Returns the columns of its own kernel at the rows of a block, if it has one."""
        if self.own is None:
            return None
        quantiles = own_quantiles(rows.targets(), predictive, plan.settings.levels)
        assert quantiles is not None
        return OwnColumns(self.own, quantiles)

    def jumps(self, rows: BlockRows, predictive: Distribution) -> JumpScores | None:
        """Returns its scores at the rows of a block, where they are means over jumps."""
        return JumpScores.at(np.asarray(rows.targets(), dtype=np.float64), predictive) if self.by_jumps else None


def quantiles_pass(rows: BlockRows, settings: CalibrationSettings, versions: Sequence[str], positions: Array) -> Pass:
    """Returns what versions say of the sampled rows, and how wide the widest of their distributions is."""
    targets, found = rows.targets(), {name: BlockSums() for name in versions}
    chosen = chosen_in(positions, rows.first, len(targets))
    for name, sums in found.items():
        predictive = rows.predictive(name)
        sums.raise_to("width", table_width(predictive))
        if len(chosen):
            said = own_quantiles(targets[chosen], predictive[chosen], settings.levels)
            sums.keep("quantiles", np.empty((len(chosen), 0)) if said is None else np.asarray(said, dtype=np.float64))
    return found


@dataclass(frozen=True)
class VersionRows:
    """A version at the rows of a block.

    Attributes:
        pit: PIT values, (rows,).
        scores: of these, (rows, 4), or of ``jumps``.
        jumps: where scores are means over jumps.
        own: columns of its own kernel, where they are asked for.
        members: where PIT values are ranks among draws, how many these are; 0 of others.
    """

    pit: Array
    scores: Array
    jumps: JumpScores | None
    own: OwnColumns | None
    members: int


def version_rows(
    rows: BlockRows, plan: BasisPlan, versions: Sequence[VersionPlan], *, with_own: bool = False
) -> dict[str, VersionRows]:
    """Returns the rows of each version; keys are read only where a PIT value is randomised: texts take seconds."""
    models, found = {version.name: rows.predictive(version.name) for version in versions}, {}
    steps = any(predictive.may_jump or predictive.has_steps for predictive in models.values())
    keys = rows.blocks.keys(rows.block) if steps else None
    for version in versions:
        predictive = models[version.name]
        pit = pit_values(rows.targets(), predictive, seed=version.seed, keys=keys)
        jumps, own = version.jumps(rows, predictive), version.own_columns(rows, plan, predictive) if with_own else None
        scores = pit_scores(pit) if jumps is None else jumps.values
        found[version.name] = VersionRows(pit, scores, jumps, own, predictive.members or 0)
    return found


def scores_pass(rows: BlockRows, bases: InputBases, plans: Sequence[VersionPlan]) -> Pass:
    """Returns products of all directions with the scores of versions, and with the columns of their own kernels."""
    known, weights = version_rows(rows, bases.plan, plans, with_own=True), rows.weights()
    regression, sums = LeaveOneOut.of_bases(bases), {plan.name: BlockSums() for plan in plans}
    for at, vectors in bases.tiles(bases.plan.inputs(rows)):
        counted = None if weights is None else weights[at]
        for plan in plans:
            added, version = sums[plan.name], known[plan.name]
            scores, dependent = version.scores[at], None
            added.raise_to("members", float(version.members))
            added.add("projected", product(vectors, scores))
            added.add("scores", np.sum(scores, axis=0))
            added.add("squares", np.sum(scores**2, axis=0))
            if plan.dependent is not None:
                dependent = plan.dependent.at(slice(rows.first + at.start, rows.first + at.stop))
                total = added.sum_of("in blocks", (dependent.count, vectors.shape[1], len(ORDERS)))
                dependent.add_products(total, vectors, scores)
            regression.add_scores(added, vectors, scores, counted, dependent)
            if bases.smoothing is not None:
                _add_smoothing(added, vectors[:, bases.smoothing[0]], version, at)
            if version.own is not None:
                _add_own(added, version.own, at, scores, dependent)
    return sums


def _add_smoothing(added: BlockSums, inside: Array, version: VersionRows, at: slice) -> None:
    """What the reading of rows, and the P-P curves, need of a tile in the directions of the protocol's kernel."""
    below = (version.pit[at, None] <= LEVELS).astype(np.float32)
    added.add("below", product(inside, below))
    added.add("shares", np.sum(below, axis=0, dtype=np.float64))
    if version.jumps is not None:
        variance = version.jumps[at].variance
        added.add("variance", np.sum(variance, axis=0))
        added.add("weighted", np.stack([weighted_squares(inside, column) for column in variance.T]))


def _add_own(
    added: BlockSums, columns: OwnColumns, at: slice, scores: Array, dependent: DependentBlocks | None
) -> None:
    """What a version's own basis needs of a tile."""
    tile = columns.at(at).astype(np.float64)
    if at.start == 0:
        added.add("unbounded", float(columns.unbounded))
    added.add("own projected", product(tile, scores))
    added.add("own products", tile.T @ tile)
    if dependent is not None:
        total = added.sum_of("own in blocks", (dependent.count, tile.shape[1], len(ORDERS)))
        dependent.add_products(total, tile, scores)


Draw = Callable[[Array, slice, int], Array]
"""Products of directions of some rows of a block with the scores of a block of draws there, (k, 4, D)."""


def null_pass(
    rows: BlockRows,
    bases: InputBases,
    plans: Sequence[VersionPlan],
    own: Mapping[str, Basis],
    draws: int,
    with_shared: bool,
) -> Pass:
    """Returns products of drawn scores with the directions of all bases, if asked, and with those of versions' own."""
    beside = []
    for plan in plans:
        columns = plan.own_columns(rows, bases.plan, rows.predictive(plan.name))
        assert columns is not None
        beside.append((columns, own[plan.name].coordinates))
    seed = bases.plan.seed

    def draw(vectors: Array, at: slice, block: int) -> Array:
        return projected_draws(vectors, rows.first + at.start, block, draws, seed)

    return {"": _drawn_sums(_strips(rows, bases, beside, with_shared=with_shared), draws, draw)}


def jumps_pass(rows: BlockRows, bases: InputBases, plan: VersionPlan, own: Basis | None, draws: int) -> Pass:
    """Returns products of all directions with draws of the scores that a version's own distributions have."""
    predictive, seed = rows.predictive(plan.name), bases.plan.seed
    jumps = plan.jumps(rows, predictive)
    assert jumps is not None
    columns = None if own is None else plan.own_columns(rows, bases.plan, predictive)
    beside = [] if own is None or columns is None else [(columns, own.coordinates)]

    def draw(vectors: Array, at: slice, block: int) -> Array:
        return own_draws(vectors, jumps[at], rows.first + at.start, block, draws, seed)

    return {"": _drawn_sums(_strips(rows, bases, beside, with_shared=True), draws, draw)}


def _drawn_sums(strips: Iterator[tuple[slice, Array]], draws: int, draw: Draw) -> BlockSums:
    sums, blocks = BlockSums(), draw_blocks(draws)
    for at, vectors in strips:
        for block, part in zip(blocks, map_on_threads(partial(draw, vectors, at), blocks), strict=True):
            sums.add(f"draws from {block}", part)
    return sums


def _strips(
    rows: BlockRows, bases: InputBases, beside: Sequence[tuple[OwnColumns, Array]], *, with_shared: bool
) -> Iterator[tuple[slice, Array]]:
    """The directions of all bases, if asked, and of versions' own of some tiles together, over which draws go at once.

    ``beside``: columns and coordinates of versions' own.
    """
    held: list[Array] = []
    begin = end = 0
    for at, vectors in bases.tiles(bases.plan.inputs(rows)):
        parts = [vectors] if with_shared else []
        parts += [columns.at(at) @ coordinates for columns, coordinates in beside]
        held.append(np.concatenate(parts, axis=1, dtype=np.float32))
        end = at.stop
        if end - begin >= _ROWS_OF_DRAWS:
            yield slice(begin, end), np.concatenate(held)
            held, begin = [], end
    if held:
        yield slice(begin, end), np.concatenate(held)


def reading_pass(
    rows: BlockRows,
    bases: InputBases,
    plans: Sequence[VersionPlan],
    regressions: Mapping[str, BlockSums],
    smoothings: Mapping[str, ScoreSmoothing | None],
    places: RegionCenters | None,
    write: Write | None,
) -> Pass:
    """Returns what the effects of versions need. Where there are ``places``, columns of every row are written, too.

    Args:
        rows: of a block.
        bases: of the inputs.
        plans: of the versions.
        regressions: of their scores, from ``scores_pass``.
        smoothings: of their scores, by which rows are read.
        places: centres of the regions; None where nothing is read.
        write: takes region, reading and influence of every row.
    """
    known, weights, x = version_rows(rows, bases.plan, plans), rows.weights(), bases.plan.inputs(rows)
    regression, found = LeaveOneOut.of_bases(bases), {plan.name: BlockSums() for plan in plans}
    written: dict[str, list[dict[str, Array]]] = {plan.name: [] for plan in plans}
    for at, vectors in bases.tiles(x):
        counted = None if weights is None else weights[at]
        for plan in plans:
            added, scores = found[plan.name], known[plan.name].scores[at]
            influence = regression.add_effects(added, regressions[plan.name], vectors, scores, counted)
            if plan.dependent is not None:
                here = plan.dependent.at(slice(rows.first + at.start, rows.first + at.stop))
                added.add("influence of blocks", here.sums(influence))
            smoothing = smoothings[plan.name]
            if places is not None and smoothing is not None and bases.smoothing is not None:
                reading = LocalReading.at(smoothing, vectors[:, bases.smoothing[0]])
                columns = {f"{INFLUENCE}{order}": influence[:, j] for j, order in enumerate(ORDERS)}
                written[plan.name].append(columns | reading.by_row())
    if places is not None and write is not None:
        region = {f"{PREFIX}region": places.labels(x).astype(np.float64)}
        for name, parts in written.items():
            columns = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
            write(rows.block, name, columns | region)
    return found
