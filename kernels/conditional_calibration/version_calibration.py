"""Calibration given the input, beside the CCE: the test of every version on the split's system, and where it is wrong.

Bases, null and regions depend on the inputs alone: they are made once for all versions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.bases import sample_positions
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.local_reading import LocalDistribution, LocalReading
from congruence.kernels.conditional_calibration.passes import INFLUENCE
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.conditional_calibration.regions import RegionCenters, Regions, number_of_regions
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence
from congruence.kernels.dependence.scores import version_blocks
from congruence.kernels.distributions import Distribution
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
