"""What a block of rows adds in each pass over the scores of versions, wherever its rows are.

scores     products of directions and scores   -> evidence, local smoothing, P-P curves
null       products with drawn scores          -> the null, where it is not its gaussian limit
reading    effects, and every row's reading    -> the test
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.bases import PROTOCOL, InputBases, Tiles
from congruence.kernels.conditional_calibration.effects import MOST_HELD_BLOCKS, LeaveOneOut
from congruence.kernels.conditional_calibration.local_reading import PREFIX, LocalReading
from congruence.kernels.conditional_calibration.null import needs_limit, projected_draws, sign_null
from congruence.kernels.conditional_calibration.own_basis import OwnDirections
from congruence.kernels.conditional_calibration.smoothing import Directions, ScoreSmoothing, block_moments
from congruence.kernels.conditional_calibration.version_sums import (
    VersionPlan,
    VersionRows,
    drawn_sums,
    limit_sums,
    score_sums,
)
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.engine.blocks import BlockSums
from congruence.kernels.engine.coded_draws import SimulatedSplits

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


def limit_pass(rows: CalibrationRows, bases: InputBases) -> Sums:
    """What the gaussian limit of the null needs."""
    sums = BlockSums()
    for _, vectors in rows.tiles():
        sums.merge(limit_sums(bases, vectors))
    return {"": sums}


def scores_pass(
    rows: CalibrationRows,
    bases: InputBases,
    plans: Sequence[VersionPlan],
    with_limit: bool,
    pools: SimulatedSplits,
    pooled: Collection[str],
) -> Sums:
    """Products of the directions of all bases with the scores of versions; see ``score_sums``."""
    return score_sums(
        bases,
        rows.tiles(),
        rows.versions(plans),
        is_guarded=needs_limit(bases.plan.settings.null, bases.plan.n),
        with_limit=with_limit,
        pools=pools,
        pooled=pooled,
        first=rows.first,
    )


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


def signs_pass(
    rows: CalibrationRows,
    bases: InputBases,
    plan: VersionPlan,
    own: OwnDirections | None,
    draws: int,
    seed: int,
    dependent: DependentBlocks,
) -> Sums:
    """Products of the directions with a version's scores under one sign a block of rows that depend on each other."""
    version = rows.versions([plan])[plan.name]
    here = _here(dependent, rows.first, len(version.scores))
    regression, pairs = LeaveOneOut.of_bases(bases), BlockSums()

    def drawn(vectors: Array, at: slice, block: int) -> Array:
        of_rows, scores = replace(here, labels=here.labels[at]), version.scores[at]
        if block == 0 and here.count <= MOST_HELD_BLOCKS:
            weights = None if version.weights is None else version.weights[at]
            regression.add_blocks(pairs, vectors, scores, of_rows, weights)
        return sign_null(vectors, scores, of_rows, draws, seed)(block)

    found = drawn_sums(rows.tiles(), [(version.own, own)], draws, drawn)
    found.merge(pairs)
    found.add("scores of blocks", here.sums(version.scores))
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
