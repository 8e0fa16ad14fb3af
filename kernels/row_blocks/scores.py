"""The pass over scores: what is solved of the sums, what every row of a block knows, and what the split knows.

e = C (mu W + C'C)^-1 C'Delta at each row; the noise floor and the p-values of points come from the leading directions,
the certificate from K[s, :] Z on a thousand rows s, to which every block adds its share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums, chosen_in
from congruence.kernels.congruence.influence_sums import (
    InfluenceWeights,
    ResidualFit,
    add_points,
    add_residuals,
    mean_points,
)
from congruence.kernels.congruence.noise_floor import FloorCoefficients
from congruence.kernels.congruence.test import simulated_errors
from congruence.kernels.gram.thin_products import product, projected, weighted_squares
from congruence.kernels.gram.tiles import TileMaker, TilePoints
from congruence.kernels.row_blocks.inputs import SUMMED_ROWS, BlockDirections
from congruence.kernels.row_blocks.right_hand_sides import errors_of
from congruence.kernels.row_blocks.rows import BlockRows, Pass, RowBlocks, Write
from congruence.kernels.row_blocks.system import BlockSystem
from congruence.kernels.row_blocks.versions import BlockVersion


@dataclass(frozen=True)
class VersionAnswer:
    """What blocks need to score a version: all of size m or k.

    Attributes:
        version: its features.
        weights: (mu W + C'C)^-1 C'[Delta, probes], (m, r + p).
        rank: r.
        floor: of the noise floor.
        fit: that residuals are taken from.
        simulated: filters times U'Delta* of the observed targets and of every simulated split, (r, k, 1 + draws).
    """

    version: BlockVersion
    weights: Array = field(repr=False)
    rank: int
    floor: FloorCoefficients
    fit: ResidualFit
    simulated: Array | None = field(repr=False)


@dataclass(frozen=True)
class CheckedInputs:
    """Points at which K Z in single precision is compared with that in double (``gram.rounding``), centred."""

    single: Array = field(repr=False)
    double: Array = field(repr=False)


def version_answer(system: BlockSystem, version: BlockVersion, sums: BlockSums) -> VersionAnswer:
    """The small solves of a version, from what all blocks added."""
    filters = system.inputs.filters
    rank = version.features.rank
    simulated = None if version.simulated.tested is None else version.simulated.null_coefficients(sums, filters)
    return VersionAnswer(
        version,
        system.weights(sums.added["projections"]),
        rank,
        FloorCoefficients.of(filters, sums),
        ResidualFit.of(filters, sums, system.inputs.n),
        simulated,
    )


def scores_pass(
    block: BlockRows[RowBlocks],
    system: BlockDirections,
    answers: Sequence[VersionAnswer],
    checked: CheckedInputs | None,
    write: Write,
) -> Pass:
    """What a block adds for every version; the columns of its rows are written: cce, noise_floor, p_value, statistic.

    ``checked``: for arithmetic in single precision. Rows that count unequally in means have a column of their weights.
    """
    predictive = {answer.version.name: block.predictive(answer.version.name) for answer in answers}
    targets, weights, first = block.targets(), block.weights(), block.first
    points, x = system.points(block.inputs(), first)
    doubles = x.astype(np.float64) if checked is not None else x
    if checked is not None and system.center is not None:
        doubles = doubles - system.center
    sums = {answer.version.name: BlockSums() for answer in answers}
    columns: dict[str, list[dict[str, Array]]] = {answer.version.name: [] for answer in answers}
    read = _ReadRows(system, checked)
    at_points = mean_points(system.n)
    for rows, tile, vectors in system.tiles(points):
        kernel_rows = read.of(points, rows, doubles)
        roots = np.sqrt(np.asarray(system.kernel.diagonal(points.x[rows]), dtype=np.float64))
        shown = chosen_in(at_points, first + rows.start, len(vectors))
        for answer in answers:
            name = answer.version.name
            added, law = sums[name], predictive[name][rows]
            delta = errors_of(answer.version, targets[rows], law).delta
            smoothed = product(tile, answer.weights)
            e = smoothed[:, : answer.rank]
            counts = None if weights is None else weights[rows]
            scored = _floor_and_values(added, answer, vectors, e, smoothed[:, answer.rank :], counts)
            _add_residual(added, kernel_rows, (delta - e) / system.shift, roots)
            add_points(added, vectors, e, scored["cce"], counts)
            of_split = answer.version.rows(np.arange(first + rows.start, first + rows.start + len(vectors)))
            add_residuals(added, answer.fit.residuals(vectors, delta, of_split))
            added.keep("smoothed at points", e[shown])
            added.keep("vectors at points", vectors[shown])
            if counts is not None:
                added.keep("weights at points", counts[shown])
                added.add("weighted spread", weighted_squares(vectors, counts))
                added.add("squared weights", float(counts @ counts))
                scored["weight"] = counts
            if answer.simulated is not None:
                scored |= _point_tests(added, answer.simulated, vectors[:, : answer.version.simulated.directions])
            columns[name].append(scored)
    for name, parts in columns.items():
        if parts:
            joined = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
            write(block.block, name, joined)
    return sums


class _ReadRows:
    """Tiles of the Gram matrix at the rows on which residuals are read: made once for all versions."""

    def __init__(self, system: BlockDirections, checked: CheckedInputs | None) -> None:
        self._system, self._checked = system, checked
        self._residual = TilePoints(system.residual)
        self._maker = TileMaker(system.kernel, int(system.residual.shape[1]))
        self._single = None if checked is None else TilePoints(checked.single)
        self._single_maker = TileMaker(system.kernel, int(system.residual.shape[1]))

    def of(self, points: TilePoints, rows: slice, doubles: Array) -> tuple[Array, Array | None, Array | None]:
        """K[rows, s], and K[rows, checked] in single and in double precision."""
        residual = self._maker.tile(points, rows, self._residual, slice(0, len(self._residual.x)))
        if self._checked is None or self._single is None:
            return residual, None, None
        single = self._single_maker.tile(points, rows, self._single, slice(0, len(self._single.x)))
        return residual, single, np.asarray(self._system.kernel(doubles[rows], self._checked.double))


def _floor_and_values(
    sums: BlockSums, answer: VersionAnswer, vectors: Array, e: Array, probes: Array, weights: Array | None
) -> dict[str, Array]:
    values = np.sqrt(np.einsum("ij,ij->i", e, e))
    squared = answer.floor.squared(vectors, probes)
    counted = {"values": values, "squared values": values**2, "floor": np.sqrt(squared), "squared floor": squared}
    for name, column in counted.items():
        sums.add(name, float(np.sum(column if weights is None else weights * column)))
    sums.raise_to("-value", -float(np.min(values)))
    return {"cce": values, "noise_floor": np.sqrt(squared)}


def _add_residual(
    sums: BlockSums, kernel_rows: tuple[Array, Array | None, Array | None], value: Array, roots: Array
) -> None:
    residual, single, double = kernel_rows
    sums.add("K Z", projected(residual, value))
    sums.add("weighted norms", float(roots @ np.linalg.norm(value, axis=1)))
    if single is not None and double is not None:
        sums.add("rounded", projected(single, value))
        sums.add("exact", double.T @ value)


def influence_pass(
    block: BlockRows[RowBlocks],
    system: BlockDirections,
    known: Mapping[str, tuple[BlockVersion, InfluenceWeights]],
    write: Write,
) -> Pass:
    """What a block adds for the standard errors of every version; the columns of its rows' influences are written."""
    predictive = {name: block.predictive(name) for name in known}
    targets, first = block.targets(), block.first
    points, _ = system.points(block.inputs(), first)
    sums = {name: BlockSums() for name in known}
    columns: dict[str, dict[str, Array]] = {
        name: {column: np.empty(len(points.x)) for column in ("influence", "influence_squared")} for name in known
    }
    for rows, _, vectors in system.tiles(points, SUMMED_ROWS):
        positions = np.arange(first + rows.start, first + rows.stop)
        for name, (version, weights) in known.items():
            delta = errors_of(version, targets[rows], predictive[name][rows]).delta
            for column, values in weights.add_rows(sums[name], vectors, delta, version.rows(positions)).items():
                columns[name][column][rows] = values
    for name, written in columns.items():
        write(block.block, name, written)
    return sums


def _point_tests(sums: BlockSums, simulated: Array, vectors: Array) -> dict[str, Array]:
    """The smoothed error of every row, and how many of the simulated splits reach it there."""
    found = simulated_errors(vectors, simulated)
    sums.add("statistic", float(found.totals[0]))
    sums.add("null statistics", found.totals[1:])
    return {"p_value": (1 + found.reached) / len(found.totals), "statistic": found.observed}
