"""Calibration given the input by blocks of rows: passes on the workers, of whose sums the tests are made.

sample     5,000 rows of the inputs            -> landmarks, median distance, regions
bases      products of the kernels' columns    -> bases, once for all versions
quantiles  what versions say of these rows     -> each version's own basis
then the passes over the scores of versions: ``kernels.conditional_calibration.score_test``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.bases import BasisPlan, InputBases, Tiles, basis_sums, sample_positions
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.local_reading import PREFIX, LocalDistribution, LocalReading
from congruence.kernels.conditional_calibration.own_basis import own_quantiles
from congruence.kernels.conditional_calibration.passes import influence_of
from congruence.kernels.conditional_calibration.regions import RegionCenters, Regions, number_of_regions
from congruence.kernels.conditional_calibration.score_test import VersionTests
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.conditional_calibration.version_calibration import (
    FEWEST_ROWS,
    VectorCalibration,
    VersionCalibration,
    prepared_vectors,
    vector_rows,
)
from congruence.kernels.conditional_calibration.version_sums import (
    VersionPlan,
    VersionRows,
    planned_version,
    quantile_sums,
)
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.engine.blocks import BlockRows, Pass, RowBlocks, Write, held, whole_rows
from congruence.kernels.engine.system import protocol_inputs, sample_pass
from congruence.kernels.protocol import EvaluationProtocol


class KeyedBlocks(RowBlocks, Protocol):
    """Blocks of rows that have keys, by which randomised PIT values are drawn."""

    def keys(self, block: int) -> Array:
        """One number or text per valid row of a block, (rows,)."""


@dataclass(frozen=True)
class CalibrationInputs:
    """What every block is told of the others' inputs: the protocol, which brings embeddings to the kernels' inputs.

    Attributes:
        protocol: of the measurement.
        dtype: of the arithmetic inside a tile.
        plan: of the bases.
        places: centres of the regions.
    """

    protocol: EvaluationProtocol
    dtype: Any
    plan: BasisPlan
    places: RegionCenters

    def of(self, rows: BlockRows) -> Array:
        """x of a block."""
        return protocol_inputs(self.protocol, rows.inputs(), rows.first, self.dtype)


@dataclass(frozen=True)
class RowsOfBlock:
    """The rows of a block, read where they are asked for (see ``CalibrationRows``)."""

    rows: BlockRows
    given: CalibrationInputs
    bases: InputBases
    keep: Write
    has_card: bool = False

    @property
    def first(self) -> int:
        """See ``CalibrationRows``."""
        return self.rows.first

    @cached_property
    def x(self) -> Array:
        """Inputs of the kernels."""
        return self.given.of(self.rows)

    def tiles(self) -> Tiles:
        """See ``CalibrationRows``."""
        return self.bases.tiles(self.x)

    def versions(self, plans: Sequence[VersionPlan]) -> dict[str, VersionRows]:
        """See ``CalibrationRows``."""
        targets, known, found, weights = self.rows.targets(), self.given.plan, {}, self.rows.weights()
        laws = {plan.name: self.rows.predictive(plan.name) for plan in plans}
        # A million texts take seconds; without steps no PIT value is randomised.
        steps = any(law.may_jump or law.has_steps for law in laws.values())
        keys = self.rows.blocks.keys(self.rows.block) if steps else None
        for plan in plans:
            law = laws[plan.name]
            quantiles = None if plan.own is None else own_quantiles(targets, law, known.settings.levels)
            found[plan.name] = VersionRows.of(
                plan, targets, law, quantiles, keys=keys, seed=known.seed, weights=weights
            )
        return found

    @cached_property
    def regions(self) -> Array:
        """The region of each row."""
        return self.given.places.labels(self.x).astype(np.float64)

    def write(self, version: str, columns: dict[str, Array]) -> None:
        """See ``CalibrationRows``."""
        self.keep(self.rows.block, version, columns | {f"{PREFIX}region": self.regions})


def bases_pass(rows: BlockRows, given: CalibrationInputs) -> Pass:
    """Products of the columns of the kernels of all bases."""
    return {"": basis_sums(given.plan, given.of(rows))}


def quantiles_pass(rows: BlockRows, settings: CalibrationSettings, versions: list[str], positions: Array) -> Pass:
    """What versions say of the sampled rows."""
    targets = rows.targets()
    return {name: quantile_sums(settings, targets, rows.predictive(name), positions, rows.first) for name in versions}


def of_rows(
    rows: BlockRows,
    given: CalibrationInputs,
    bases: InputBases,
    keep: Write,
    function: Callable[..., Pass],
    context: tuple[Any, ...],
) -> Pass:
    """A pass over the scores of versions (``kernels.conditional_calibration.passes``)."""
    return function(RowsOfBlock(rows, given, bases, keep), *context)


@dataclass(frozen=True)
class CalibrationInBlocks:
    """Whether a version is calibrated given the input, but for the columns that lie block by block.

    Attributes:
        test: over the whole split, with effects by order.
        mixing: see ``LocalReading``.
        medoids: the row nearest to the centre of each region, among the sampled ones.
        curves: the local P-P plot there.
    """

    test: ConditionalCalibrationTest
    mixing: float
    medoids: Array
    curves: LocalDistribution = field(repr=False)

    def whole(self, columns: dict[str, Array]) -> VersionCalibration:
        """With the columns of all rows, those named ``calibration_...``."""
        labels = columns[f"{PREFIX}region"].astype(np.int16)
        names = tuple(f"region {k + 1}" for k in range(len(self.medoids)))
        influence, reading = influence_of(columns), LocalReading.of_rows(columns, self.mixing)
        return VersionCalibration(
            self.test, reading, Regions(labels, self.medoids, names), self.curves, influence=influence
        )


def calibrate_blocks(
    run: Callable[..., Pass],
    n: int,
    protocol: EvaluationProtocol,
    versions: Sequence[str],
    write: Write,
    *,
    seed: int,
    dtype: Any,
    settings: CalibrationSettings | None = None,
    dependent: Mapping[str, DependentBlocks | None] | None = None,
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
        dependent: blocks of rows that depend on each other, by version.
    """
    if n < FEWEST_ROWS or not versions:
        return {}
    settings = CalibrationSettings() if settings is None else settings
    positions = sample_positions(n, seed)
    x = run("calibration sample", sample_pass, protocol, dtype, positions)[""].rows("inputs")
    plan = BasisPlan.of(
        x, n, settings, input_kernel=protocol.input_kernel, regularization=protocol.regularization, seed=seed
    )
    given = CalibrationInputs(protocol, dtype, plan, RegionCenters.of(x, positions, number_of_regions(n), seed))
    bases = InputBases.of(plan, run("calibration bases", bases_pass, given)[""])
    found = run("calibration quantiles", quantiles_pass, settings, list(versions), positions)
    plans = [
        planned_version(bases, name, found[name].rows("quantiles"), dtype, found[name].largest["width"])
        for name in versions
    ]

    def run_rows(name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        return run(name, of_rows, given, bases, write, function, context)

    tested = VersionTests(run_rows, bases, plans, dependent or {}).tested(read=True)
    ((_, medoids),) = bases.tiles(given.places.points)
    return {
        name: CalibrationInBlocks(version.test, version.mixing, given.places.medoids, version.curves(bases, medoids))
        for name, version in tested.items()
    }


def calibrate_vector_blocks(
    run: Callable[..., Pass],
    n: int,
    protocol: EvaluationProtocol,
    versions: Sequence[str],
    *,
    seed: int,
    dtype: Any,
    dependent: Mapping[str, DependentBlocks | None],
) -> dict[str, VersionCalibration]:
    """Test every version of a split with vector targets on the rows of ``vector_rows``, fetched from the blocks."""
    if n < FEWEST_ROWS:
        return {}
    rows = vector_rows(n, seed)
    kept = held(run("calibration sample", whole_rows, list(versions), rows), versions)
    x = protocol_inputs(protocol, kept.x, 0, dtype)
    split = VectorCalibration(prepared_vectors(protocol.input_kernel, x, seed), rows, n)
    assert kept.y is not None
    return {name: split.of_rows(kept.y, law, dependent.get(name)) for name, law in kept.models.items()}
