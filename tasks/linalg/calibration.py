"""Calibration given the input, beside the CCE: the test of every version on the split's system, and where it is wrong.

Bases, null and regions depend on the inputs alone: they are made once for all versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.conditional_calibration.bases import own_quantiles
from congruence.kernels.conditional_calibration.block_reading import INFLUENCE, BlockReading
from congruence.kernels.conditional_calibration.local_distribution import LocalDistribution, local_distribution
from congruence.kernels.conditional_calibration.local_reading import LocalReading, local_reading
from congruence.kernels.conditional_calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.regions import Regions, regions
from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.distributions import Distribution
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.protocol.protocol import Protocol
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
        influence: of every row on the effects, (n, 4), where the reading does not hold it; see ``effects``.
    """

    test: ConditionalCalibrationTest
    reading: LocalReading | BlockReading | None = field(default=None, repr=False)
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


def can_be_tested(protocol: Protocol, targets: Array, query: Array | None) -> bool:
    """Whether calibration given the input is measured: of targets judged at their own rows, all of them, once."""
    repeated = protocol.samples is not None or protocol.bootstraps or protocol.downsampling is not None
    return query is None and not repeated and len(targets) >= FEWEST_ROWS


def measure_calibration(
    prepared: PreparedCongruence,
    x: Array,
    targets: Array,
    versions: Mapping[str, Distribution],
    *,
    keys: Array | None,
    seed: int,
) -> dict[str, VersionCalibration]:
    """Test and read every version.

    Args:
        prepared: the split's system, without query points.
        x: the inputs it is made of, (n, d).
        targets: (n,), or (n, q): see ``measure_vector_calibration``.
        versions: n predictive distributions each.
        keys: one per row, for the randomisation of PIT values; row numbers by default.
        seed: of landmarks, draws, regions and that randomisation.
    """
    if targets.ndim == 2:
        rows = vector_rows(len(targets), seed)
        laws = {name: predictive[rows] for name, predictive in versions.items()}
        return measure_vector_calibration(prepared.operator.kernel, x[rows], targets[rows], laws, len(targets), seed)
    split, places = prepare_calibration(prepared, seed=seed), regions(x, seed=seed)
    smoother = prepared.smoother
    at_medoids = replace(smoother, synthesis=smoother.synthesis[places.medoids])
    found = {}
    for name, predictive in versions.items():
        pit = pit_values(predictive, targets, seed=seed, keys=np.arange(len(targets)) if keys is None else keys)
        said = own_quantiles(targets, predictive, split.settings.levels)
        # A law with a tenth of itself at infinity has no distances between its quantiles; the inputs' bases remain.
        test = split.test(pit, said if said is not None and np.isfinite(said).all() else None)
        curves = local_distribution(at_medoids, pit)
        influence = split.effect_influence(pit).astype(np.float32)
        found[name] = VersionCalibration(test, local_reading(smoother, pit), places, curves, influence=influence)
    return found


def vector_rows(n: int, seed: int) -> Array:
    """Sorted numbers of the rows that are tested where targets are vectors."""
    return np.sort(stream(seed, "rows of vector targets").choice(n, min(n, VECTOR_ROWS), replace=False))


def measure_vector_calibration(
    kernel: Kernel, x: Array, targets: Array, versions: Mapping[str, Distribution], n: int, seed: int
) -> dict[str, VersionCalibration]:
    """Test every version on some rows with vector targets: exact, and blind to what the other rows show.

    Args:
        kernel: the protocol's.
        x: inputs of the rows of ``vector_rows``, (m, d).
        targets: (m, q).
        versions: m predictive distributions each.
        n: rows of the split.
        seed: of landmarks and draws.
    """
    settings = CalibrationSettings(draws=VECTOR_DRAWS)
    split = prepare_calibration(x, input_kernel=kernel, settings=settings, seed=seed)
    tested = len(x) if len(x) < n else None
    return {
        name: VersionCalibration(split.test_version(targets, law, seed=seed), rows=tested)
        for name, law in versions.items()
    }
