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
from congruence.kernels.conditional_calibration.local_distribution import LocalDistribution, local_distribution
from congruence.kernels.conditional_calibration.local_reading import LocalReading, local_reading
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.regions import Regions, regions
from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.distributions import Distribution
from congruence.kernels.protocol.protocol import Protocol

FEWEST_ROWS = 30
"""Of fewer rows nothing can be said of a place."""


@dataclass(frozen=True)
class VersionCalibration:
    """Whether a version is calibrated given the input, and where it is not.

    Attributes:
        test: over the whole split, with effects by order.
        reading: at every row.
        regions: of the inputs, the same for all versions; unnamed.
        curves: the local P-P plot at each region's medoid.
    """

    test: ConditionalCalibrationTest
    reading: LocalReading = field(repr=False)
    regions: Regions = field(repr=False)
    curves: LocalDistribution = field(repr=False)


def can_be_tested(protocol: Protocol, targets: Array, query: Array | None) -> bool:
    """Whether calibration given the input is measured: scalar targets, judged at their own rows, all of them, once."""
    repeated = protocol.samples is not None or protocol.bootstraps or protocol.downsampling is not None
    return query is None and targets.ndim == 1 and not repeated and len(targets) >= FEWEST_ROWS


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
        targets: (n,).
        versions: n predictive distributions each.
        keys: one per row, for the randomisation of PIT values; row numbers by default.
        seed: of landmarks, draws, regions and that randomisation.
    """
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
        found[name] = VersionCalibration(test, local_reading(smoother, pit), places, curves)
    return found
