"""One version on a block of rows: what the block adds to its test, its effects and its smoothing.

Passes over the blocks, each of which adds up what the next one needs of all rows: the version's quantiles at the
sampled rows (for its own basis), scores, draws of the null, and the reading of every row with the effects.

What a block of rows adds in each pass over the scores of versions, wherever its rows are.

scores     products of directions and scores   -> evidence, local smoothing, P-P curves
null       products with drawn scores          -> the null
reading    effects, and every row's reading    -> the test
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array, on_card
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.calibration.pit_scores import ORDERS, pit_scores
from congruence.kernels.conditional_calibration.bases import (
    PROTOCOL,
    BasisKernel,
    InputBases,
    OwnColumns,
    OwnDirections,
    Tiles,
    own_kernel,
    own_quantiles,
    product,
)
from congruence.kernels.conditional_calibration.counts import LARGEST_TABLE, JumpScores, table_width
from congruence.kernels.conditional_calibration.effects import MOST_HELD_BLOCKS, LeaveOneOut
from congruence.kernels.conditional_calibration.local_reading import (
    LEVELS,
    PREFIX,
    Directions,
    LocalReading,
    ScoreSmoothing,
    block_moments,
)
from congruence.kernels.conditional_calibration.null import (
    draw_blocks,
    own_draws,
    projected_draws,
    signed_draws,
)
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import BlockSums, chosen_in
from congruence.kernels.engine.tiles import weighted_squares
from congruence.kernels.threads import map_on_threads

SHARED = "what all versions share"
JUMPS = "scores have jumps"
"""Among the largest of a version's sums, where its null is its own."""

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
        members: where PIT values are ranks among draws, how many these are; 0 of others.
    """

    pit: Array
    scores: Array
    own: OwnColumns | None = None
    counts: JumpScores | None = None
    weights: Array | None = None
    members: int = 0

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
        return cls(pit, pit_scores(pit) if counts is None else counts.values, own, counts, weights, law.members or 0)


def score_sums(bases: InputBases, tiles: Tiles, rows_of: Mapping[str, VersionRows]) -> dict[str, BlockSums]:
    """What a block adds by version: products of all directions with the scores, and with the version's own columns."""
    sums = {name: BlockSums() for name in rows_of}
    regression, smoother = LeaveOneOut.of_bases(bases), bases.smoother
    own = {name: version.own.tiles() for name, version in rows_of.items() if version.own is not None}
    for name, version in rows_of.items():
        if version.own is not None:
            sums[name].add("unbounded", float(version.own.unbounded))
        if version.counts is not None:
            sums[name].raise_to(JUMPS, 1.0)
    for rows, vectors in tiles:
        for name, version in rows_of.items():
            added, scores = sums[name], version.scores[rows]
            added.raise_to("members", float(version.members))
            added.add("projected", product(vectors, scores))
            added.add("scores", np.sum(scores, axis=0))
            added.add("squares", np.sum(scores**2, axis=0))
            regression.add_scores(added, vectors, scores, None if version.weights is None else version.weights[rows])
            if smoother is not None:
                inside = vectors[:, smoother[0]]
                below = (version.pit[rows, None] <= LEVELS).astype(np.float32)
                added.add("below", product(inside, below))
                added.add("shares", np.sum(below, axis=0, dtype=np.float64))
                if version.counts is not None:
                    variance = version.counts[rows].variance
                    added.add("variance", np.sum(variance, axis=0))
                    added.add("weighted", np.stack([weighted_squares(inside, column) for column in variance.T]))
            if name in own:
                columns = own[name].at(rows)[0].astype(np.float64)
                added.add("own projected", product(columns, scores))
                added.add("own products", columns.T @ columns)
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


INFLUENCE = f"{PREFIX}influence_"
Sums = dict[str, BlockSums]


class CalibrationRows(Protocol):
    """The rows of a block, as the passes see them."""

    @property
    def first(self) -> int:
        """Position of the first row in the split."""

    @property
    def has_card(self) -> bool:
        """Whether draws are projected on a card."""

    def tiles(self) -> Tiles:
        """U of all bases."""

    def versions(self, plans: Sequence[VersionPlan]) -> dict[str, VersionRows]:
        """PIT values and scores, by version."""

    def write(self, version: str, columns: dict[str, Array]) -> None:
        """Takes what is known of every row."""


class RunPass(Protocol):
    """Runs a function of the rows of every block, and merges what they add."""

    def __call__(self, name: str, function: Callable[..., Sums], *context: Any) -> Sums:
        """``function(rows, *context)`` of every block."""


def scores_pass(rows: CalibrationRows, bases: InputBases, plans: Sequence[VersionPlan]) -> Sums:
    """Products of the directions of all bases with the scores of versions; see ``score_sums``."""
    return score_sums(bases, rows.tiles(), rows.versions(plans))


def null_pass(
    rows: CalibrationRows,
    plans: Sequence[VersionPlan],
    own: Mapping[str, OwnDirections],
    draws: int,
    seed: int,
    with_shared: bool,
) -> Sums:
    """Products of drawn scores with the directions of all bases, if asked, and with those of versions' own."""
    beside = [(version.own, own[name]) for name, version in rows.versions(plans).items()]
    return {
        "": drawn_sums(
            rows.tiles(),
            beside,
            draws,
            lambda vectors, at, block: projected_draws(vectors, rows.first + at.start, block, draws, seed),
            with_shared=with_shared,
            has_card=rows.has_card,
        )
    }


def own_null_pass(
    rows: CalibrationRows,
    bases: InputBases,
    plan: VersionPlan,
    own: OwnDirections | None,
    draws: int,
    seed: int,
    dependent: DependentBlocks | None,
) -> Sums:
    """Products of the directions with draws of a null that is one version's alone.

    From its own law, or of rows that depend on each other its scores under one sign a block.
    """
    version = rows.versions([plan])[plan.name]
    pairs = BlockSums()
    if dependent is None:
        counts = version.counts
        assert counts is not None

        def drawn(vectors: Array, at: slice, block: int) -> Array:
            return own_draws(vectors, counts[at], rows.first + at.start, block, draws, seed)
    else:
        here, regression = _here(dependent, rows.first, len(version.scores)), LeaveOneOut.of_bases(bases)
        pairs.add("scores of blocks", here.sums(version.scores))

        def drawn(vectors: Array, at: slice, block: int) -> Array:
            of_rows, scores = replace(here, labels=here.labels[at]), version.scores[at]
            if block == 0 and here.count <= MOST_HELD_BLOCKS:
                weights = None if version.weights is None else version.weights[at]
                regression.add_blocks(pairs, vectors, scores, of_rows, weights)
            return signed_draws(vectors, scores, of_rows, block, draws, seed)

    found = drawn_sums(rows.tiles(), [(version.own, own)], draws, drawn)
    found.merge(pairs)
    return {"": found}


def whole_blocks_pass(rows: CalibrationRows, bases: InputBases, plan: VersionPlan, dependent: DependentBlocks) -> Sums:
    """Of all rows of a split in memory, whose protocol's kernel is a basis: ``block_moments``."""
    assert bases.smoother is not None
    scores, sums = rows.versions([plan])[plan.name].scores, BlockSums()
    vectors = np.concatenate([tile[:, bases.smoother[0]] for _, tile in rows.tiles()])
    weighted, variance = block_moments(vectors, scores, dependent)
    sums.add("weighted", weighted)
    sums.add("variance", variance * len(scores))
    return {"": sums}


def reading_pass(
    rows: CalibrationRows,
    plans: Sequence[VersionPlan],
    versions: Mapping[str, VersionSmoothing],
    dependent: Mapping[str, DependentBlocks | None],
    read: bool,
) -> Sums:
    """What the effects of versions need, and columns of every row, which are written: influences, and readings."""
    known = rows.versions([replace(plan, own=None) for plan in plans])
    scores = {name: version.scores for name, version in known.items()}
    weights = next((version.weights for version in known.values()), None)
    sums, columns = effect_sums(rows.tiles(), scores, versions, read=read, weights=weights)
    for name, written in columns.items():
        rows.write(name, written)
        if (blocks := dependent.get(name)) is not None:
            influence = influence_of(written)
            sums[name].add("influence of blocks", _here(blocks, rows.first, len(influence)).sums(influence))
    return sums


def influence_of(columns: Mapping[str, Array]) -> Array:
    """What each row contributes to the effect of each order, (n, 4), from its columns."""
    return np.column_stack([columns[f"{INFLUENCE}{order}"] for order in ORDERS])


def _here(dependent: DependentBlocks, first: int, rows: int) -> DependentBlocks:
    """Of a block of rows, with the number of all."""
    return replace(dependent, labels=dependent.labels[first : first + rows])


@dataclass(frozen=True)
class VersionSmoothing:
    """What the sums of a version say of the rows: how its scores are smoothed, and their regression.

    Attributes:
        known: sums of its scores over all rows.
        regression: of the effects.
        place: of the directions that are smoothed in; None without a protocol's kernel.
        smoothing: of the scores there.
    """

    known: BlockSums = field(repr=False)
    regression: LeaveOneOut
    place: slice | None
    smoothing: ScoreSmoothing | None = field(repr=False)

    @classmethod
    def of(cls, bases: InputBases, sums: BlockSums) -> VersionSmoothing:
        """From the sums of scores over all rows."""
        regression, found = LeaveOneOut.of_bases(bases), directions(bases)
        if found is None:
            return cls(sums, regression, None, None)
        place, inside = found
        projected, means = sums.added["projected"][place], sums.added["scores"] / bases.plan.n
        smoothing = ScoreSmoothing.of(
            inside,
            projected,
            means,
            sums.added["squares"],
            weighted=sums.added.get("weighted"),
            variance=sums.added["variance"] / bases.plan.n if "variance" in sums.added else None,
            members=int(sums.largest.get("members", 0.0)) or None,
        )
        return cls(sums, regression, place, smoothing)

    def reading(self, vectors: Array) -> LocalReading:
        """Of rows with directions U, (rows, k)."""
        assert self.smoothing is not None
        return LocalReading.at(self.smoothing, vectors[:, self.place])


def directions(bases: InputBases) -> tuple[slice, Directions] | None:
    """The directions of the protocol's kernel and their place; None where that is no basis."""
    basis = bases.named(PROTOCOL)
    if basis is None or bases.smoother is None:
        return None
    place, filters = bases.smoother
    kept = slice(0, len(filters))
    return place, Directions(bases.plan.n, filters, basis.moment[kept, kept], basis.total[kept])


def effect_sums(
    tiles: Tiles,
    scores: Mapping[str, Array],
    versions: Mapping[str, VersionSmoothing],
    *,
    read: bool,
    weights: Array | None = None,
) -> tuple[dict[str, BlockSums], dict[str, dict[str, Array]]]:
    """What a block adds to the effects of every version, and columns of its rows: influences and, if asked, readings.

    Args:
        tiles: of the block.
        scores: of its rows by version, (rows, 4).
        versions: what their sums said.
        read: whether every row is read.
        weights: what the rows count in the effects, (rows,), of mean 1 over all rows.
    """
    sums = {name: BlockSums() for name in versions}
    parts: dict[str, list[dict[str, Array]]] = {name: [] for name in versions}
    for rows, vectors in tiles:
        for name, version in versions.items():
            counted = None if weights is None else weights[rows]
            influence = version.regression.add_effects(sums[name], version.known, vectors, scores[name][rows], counted)
            columns = {f"{INFLUENCE}{order}": influence[:, j] for j, order in enumerate(ORDERS)}
            parts[name].append(columns | (version.reading(vectors).by_row() if read else {}))
    written = {
        name: {column: np.concatenate([part[column] for part in some]) for column in some[0]}
        for name, some in parts.items()
        if some
    }
    return sums, written
