"""Calibration given the input, beside the CCE: the test of every version on the split's system, and where it is wrong.

Bases, null and regions depend on the inputs alone: they are made once for all versions.

Calibration given the input by blocks of rows: passes on the workers, of whose sums the tests are made.

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
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.bases import (
    BasisPlan,
    InputBases,
    Tiles,
    basis_sums,
    own_quantiles,
    sample_positions,
)
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.local_reading import PREFIX, LocalDistribution, LocalReading
from congruence.kernels.conditional_calibration.passes import (
    INFLUENCE,
    VersionPlan,
    VersionRows,
    influence_of,
    planned_version,
    quantile_sums,
)
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.conditional_calibration.regions import RegionCenters, Regions, number_of_regions
from congruence.kernels.conditional_calibration.score_test import VersionTests
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence
from congruence.kernels.dependence.scores import version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import BlockRows, Pass, RowBlocks, Write, held, whole_rows
from congruence.kernels.engine.system import protocol_inputs, sample_pass
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.streams import stream

FEWEST_ROWS = 30
"""Of fewer rows nothing can be said of a place."""


@dataclass(frozen=True)
class VersionCalibration:
    """Whether a version is calibrated given the input, and where it is not.

    Attributes:
        test: over the whole split, with effects by order; of vector targets over ``rows`` of it, without effects.
        reading: at every row; None for vector targets, which have no PIT.
        regions: of the inputs, the same for all versions; unnamed. None without a reading.
        curves: the local P-P plot at each region's medoid.
        rows: that were tested, where these are not all.
        influence: of every row on the effects, (n, 4); see ``effects``.
    """

    test: ConditionalCalibrationTest
    reading: LocalReading | None = field(default=None, repr=False)
    regions: Regions | None = field(default=None, repr=False)
    curves: LocalDistribution | None = field(default=None, repr=False)
    rows: int | None = None
    influence: Array | None = field(default=None, repr=False)

    def columns(self) -> dict[str, Array]:
        """What is known of every row, by the names of the scores; ``calibration_fault`` is text."""
        found = {} if self.reading is None else self.reading.columns()
        if self.influence is not None:
            found |= {f"{INFLUENCE}{order}": self.influence[:, j] for j, order in enumerate(ORDERS)}
        return found


VECTOR_ROWS = 4_000
"""Of more rows with vector targets, so many are tested: their null is drawn from each version anew, 3 ms a row."""

VECTOR_DRAWS = 199


def can_be_tested(protocol: EvaluationProtocol, targets: Array, query: Array | None) -> bool:
    """Whether calibration given the input is measured: of targets judged at their own rows, all of them, once."""
    return query is None and not protocol.is_repeated and len(targets) >= FEWEST_ROWS


@dataclass(frozen=True)
class SplitCalibration:
    """What depends on the inputs alone, and so serves every version of a split; picklable.

    Attributes:
        prepared: bases and null of the test.
        places: the regions.
        weights: what each row counts in effects, (n,); equal by default.
    """

    prepared: PreparedCalibration = field(repr=False)
    places: Regions = field(repr=False)
    weights: Array | None = field(default=None, repr=False)

    def of_version(
        self,
        targets: Array,
        predictive: Distribution,
        *,
        keys: Array | None,
        seed: int,
        dependence: RowDependence | None = None,
    ) -> VersionCalibration:
        """Test and read one version.

        Args:
            targets: (n,).
            predictive: n predictive distributions.
            keys: one per row, for the randomisation of PIT values; row numbers by default.
            seed: of that randomisation.
            dependence: of the rows.

        Raises:
            TooFewBlocksError: rows depend on each other in fewer than ten blocks.
        """
        found = self.prepared.version(
            targets, predictive, keys=keys, seed=seed, dependence=dependence, weights=self.weights
        )
        curves = found.curves(self.prepared, self.places.medoids)
        return VersionCalibration(
            found.test, found.reading, self.places, curves, influence=found.influence.astype(np.float32)
        )


def calibration_of_split(
    protocol: EvaluationProtocol, x: Array, targets: Array, *, weights: Array | None = None, seed: int
) -> SplitCalibration | VectorCalibration:
    """Bases, null and regions, made once for all versions.

    Args:
        protocol: its kernel and lambda.
        x: the kernel's inputs, (n, d).
        targets: (n,), or (n, q): then only some rows are tested.
        weights: what each row counts in effects, (n,); equal by default.
        seed: of landmarks, draws and regions.
    """
    if targets.ndim == 2:
        rows = vector_rows(len(targets), seed)
        return VectorCalibration(prepared_vectors(protocol.input_kernel, x[rows], seed), rows, len(targets))
    positions = sample_positions(len(x), seed)
    centers = RegionCenters.of(x[positions], positions, number_of_regions(len(x)), seed)
    calibration = prepare_calibration(
        x, input_kernel=protocol.input_kernel, regularization=protocol.regularization, seed=seed
    )
    if np.any(targets % 1.0):  # no counts, which have a null of each version's own
        _ = calibration.null  # once here, not by every worker that has a version
    return SplitCalibration(calibration, centers.regions(centers.labels(x)), weights)


def vector_rows(n: int, seed: int) -> Array:
    """Sorted numbers of the rows that are tested where targets are vectors."""
    return np.sort(stream(seed, "rows of vector targets").choice(n, min(n, VECTOR_ROWS), replace=False))


def prepared_vectors(kernel: Kernel, x: Array, seed: int) -> PreparedCalibration:
    """Bases of the rows ``vector_rows`` with inputs x (m, d), under the protocol's kernel."""
    return prepare_calibration(x, input_kernel=kernel, settings=CalibrationSettings(draws=VECTOR_DRAWS), seed=seed)


@dataclass(frozen=True)
class VectorCalibration:
    """Of vector targets: exact on some rows, and blind to what the others show. It has no reading; picklable.

    Attributes:
        prepared: bases of these rows, from ``prepared_vectors``.
        rows: their numbers, (m,).
        total: rows of the split, n.
    """

    prepared: PreparedCalibration = field(repr=False)
    rows: Array = field(repr=False)
    total: int

    def of_version(
        self,
        targets: Array,
        predictive: Distribution,
        *,
        keys: Array | None,  # noqa: ARG002
        seed: int,  # noqa: ARG002
        dependence: RowDependence | None = None,
    ) -> VersionCalibration:
        """Test one version; see SplitCalibration."""
        blocks = version_blocks(dependence, targets, predictive)
        return self.of_rows(targets[self.rows], predictive[self.rows], blocks)

    def of_rows(
        self, targets: Array, predictive: Distribution, blocks: DependentBlocks | None = None
    ) -> VersionCalibration:
        """Test one version by the targets (m, q) and predictive distributions of the rows alone; blocks of all rows."""
        test = self.prepared.test_vectors(targets, predictive, None if blocks is None else blocks.of_rows(self.rows))
        return VersionCalibration(test, rows=len(self.rows) if len(self.rows) < self.total else None)


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
