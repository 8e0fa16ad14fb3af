"""Calibration given the input by blocks of rows: passes on the workers, of whose sums the tests are made.

    sample   5,000 rows of the inputs            -> landmarks, median distance, regions
    bases    products of the kernels' columns    -> bases and null, once for all versions
    said     what versions say of these rows     -> each version's own basis
    scores   products of columns and PIT scores  -> evidence, local smoothing, P-P curves
    reading  effects, and every row's reading    -> the test

The null is its gaussian limit (``kernels.conditional_calibration.null``): no draw goes over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.block_bases import (
    BlockBases,
    PreparedBlocks,
    basis_sums,
    prepared_blocks,
    sample_positions,
)
from congruence.kernels.conditional_calibration.block_reading import PREFIX, BlockReading, reading_sums, version_test
from congruence.kernels.conditional_calibration.block_versions import (
    BlockCalibration,
    BlockRows,
    ProjectedVersion,
    planned_calibration,
    projected_version,
    said_sums,
    version_sums,
)
from congruence.kernels.conditional_calibration.local_distribution import LocalDistribution
from congruence.kernels.conditional_calibration.regions import Regions
from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.inputs import protocol_inputs
from congruence.tasks.solving.block_passes import (
    Pass,
    RowBlocks,
    SampledRows,
    Write,
    inputs_of,
    sample,
    targets_of,
    whole_rows,
)
from congruence.tasks.solving.calibration import (
    FEWEST_ROWS,
    VectorCalibration,
    VersionCalibration,
    prepared_vectors,
    vector_rows,
)


class RunPass(Protocol):
    """Runs a function of every block on the workers and merges what they add."""

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        """``function(blocks, block, first row, *context)`` of every block that has rows."""


class KeyedBlocks(RowBlocks, Protocol):
    """Blocks of rows that have keys, by which randomised PIT values are drawn."""

    def keys(self, block: int) -> Array:
        """One number or text per valid row of a block, (rows,)."""


@dataclass(frozen=True)
class CalibrationInBlocks:
    """Whether a version is calibrated given the input, but for the columns that lie block by block.

    Attributes:
        test: over the whole split, with effects by order; its null is the gaussian limit.
        mixing: see ``BlockReading``.
        medoids: the row nearest to the centre of each region, among the sampled ones.
        curves: the local P-P plot there.
    """

    test: ConditionalCalibrationTest
    mixing: float
    medoids: Array
    curves: LocalDistribution = field(repr=False)

    def whole(self, columns: dict[str, Array]) -> VersionCalibration:
        """With the columns of all rows, those named ``calibration_...``."""
        labels = columns[f"{PREFIX}region"].astype(np.intp)
        names = tuple(f"region {k + 1}" for k in range(len(self.medoids)))
        reading = BlockReading(columns, self.mixing)
        return VersionCalibration(self.test, reading, Regions(labels, self.medoids, names), self.curves)


def calibrate_blocks(
    run: RunPass,
    n: int,
    protocol: EvaluationProtocol,
    versions: Sequence[str],
    write: Write,
    *,
    seed: int,
    dtype: Any,
    settings: CalibrationSettings | None = None,
) -> dict[str, CalibrationInBlocks]:
    """Test and read every version of a split in blocks; none of fewer than ``FEWEST_ROWS`` rows.

    Args:
        run: passes over the blocks, which are ``KeyedBlocks`` of scalar targets.
        n: valid rows.
        protocol: its kernel and lambda.
        versions: a group whose sums fit a worker together.
        write: called on the workers with block, version and columns.
        seed: of landmarks, draws, regions and the randomisation of PIT values.
        dtype: of the arithmetic inside a tile.
        settings: of the test.
    """
    if n < FEWEST_ROWS or not versions:
        return {}
    settings = CalibrationSettings() if settings is None else settings
    positions = sample_positions(n, seed)
    rows = run("calibration sample", sample, protocol, dtype, positions)[""].rows("inputs")
    told = BlockBases.of(protocol, settings, rows, positions, n, seed)
    prepared = prepared_blocks(told, run("calibration bases", _bases, told)[""])
    said = run("calibration said", _said, told, list(versions), positions)
    plans = [planned_calibration(prepared, name, said[name]) for name in versions]
    return _calibrated(run, prepared, plans, write)


def calibrate_vector_blocks(
    run: RunPass, n: int, protocol: EvaluationProtocol, versions: Sequence[str], *, seed: int, dtype: Any
) -> dict[str, VersionCalibration]:
    """Test every version of a split with vector targets on the rows of ``vector_rows``, fetched from the blocks."""
    if n < FEWEST_ROWS:
        return {}
    rows = vector_rows(n, seed)
    kept = SampledRows.of(run("calibration sample", whole_rows, list(versions), rows), versions)
    x = protocol_inputs(protocol, kept.rows, 0, dtype)
    split = VectorCalibration(prepared_vectors(protocol.input_kernel, x, seed), rows, n)
    return {name: split.of_rows(kept.said, law, seed) for name, law in kept.models.items()}


def _calibrated(
    run: RunPass, prepared: PreparedBlocks, plans: list[BlockCalibration], write: Write
) -> dict[str, CalibrationInBlocks]:
    sums = run("calibration scores", _scores, prepared.told, plans)
    projected = {plan.name: projected_version(prepared, plan, sums[plan.name]) for plan in plans}
    effects = run("calibration reading", _reading, prepared.told, projected, write)
    return {
        name: CalibrationInBlocks(
            version_test(prepared, version, effects[name]),
            version.smoothing.mixing,
            prepared.told.medoids[0],
            version.curves,
        )
        for name, version in projected.items()
    }


def _bases(blocks: RowBlocks, block: int, first: int, told: BlockBases) -> Pass:
    return {"": basis_sums(told, inputs_of(blocks, block, first), first)}


def _said(blocks: RowBlocks, block: int, first: int, told: BlockBases, versions: list[str], positions: Array) -> Pass:
    targets = targets_of(blocks, block, first)
    return {name: said_sums(told, targets, blocks.predictive(block, name), positions, first) for name in versions}


def _scores(blocks: KeyedBlocks, block: int, first: int, told: BlockBases, plans: list[BlockCalibration]) -> Pass:
    rows = _rows(blocks, block, first, told, plans)
    return version_sums(told, told.inputs(inputs_of(blocks, block, first), first), rows, plans)


def _reading(
    blocks: KeyedBlocks,
    block: int,
    first: int,
    told: BlockBases,
    versions: dict[str, ProjectedVersion],
    write: Write,
) -> Pass:
    rows = _rows(blocks, block, first, told, [version.plan for version in versions.values()], own=False)
    x = told.inputs(inputs_of(blocks, block, first), first)
    sums, columns = reading_sums(told, x, rows, versions)
    for name, written in columns.items():
        write(block, name, written)
    return sums


def _rows(
    blocks: KeyedBlocks,
    block: int,
    first: int,
    told: BlockBases,
    plans: Sequence[BlockCalibration],
    *,
    own: bool = True,
) -> dict[str, BlockRows]:
    targets, keys = targets_of(blocks, block, first), blocks.keys(block)
    return {
        plan.name: BlockRows.of(
            told, targets, blocks.predictive(block, plan.name), keys, has_own=own and plan.own is not None
        )
        for plan in plans
    }
