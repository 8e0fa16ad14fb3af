"""Calibration given the input, beside the CCE: the test of every version on the split's system, and where it is wrong.

Bases, null and regions depend on the inputs alone: they are made once for all versions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.conditional_calibration.bases import own_quantiles
from congruence.kernels.conditional_calibration.local_distribution import LocalDistribution, local_distribution
from congruence.kernels.conditional_calibration.local_reading import LocalReading, local_reading
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.conditional_calibration.regions import Regions, regions
from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.distributions import Distribution
from congruence.kernels.gram.spectrum import SpectralSmoother
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


@dataclass(frozen=True)
class SplitCalibration:
    """What depends on the inputs alone, and so serves every version of a split; picklable.

    Attributes:
        prepared: bases and null of the test.
        places: the regions.
    """

    prepared: PreparedCalibration = field(repr=False)
    places: Regions = field(repr=False)

    def of_version(
        self,
        smoother: SpectralSmoother,
        targets: Array,
        predictive: Distribution,
        *,
        keys: Array | None,
        seed: int,
    ) -> VersionCalibration:
        """Test and read one version.

        Args:
            smoother: of the split's system, at its own rows.
            targets: (n,).
            predictive: n predictive distributions.
            keys: one per row, for the randomisation of PIT values; row numbers by default.
            seed: of that randomisation.
        """
        pit = pit_values(predictive, targets, seed=seed, keys=np.arange(len(targets)) if keys is None else keys)
        said = own_quantiles(targets, predictive, self.prepared.settings.levels)
        # A law with a tenth of itself at infinity has no distances between its quantiles; the inputs' bases remain.
        test = self.prepared.test(pit, said if said is not None and np.isfinite(said).all() else None)
        curves = local_distribution(replace(smoother, synthesis=smoother.synthesis[self.places.medoids]), pit)
        return VersionCalibration(test, local_reading(smoother, pit), self.places, curves)


def calibration_of_split(prepared: PreparedCongruence, x: Array, *, seed: int) -> SplitCalibration:
    """Bases, null and regions, made once for all versions.

    Args:
        prepared: the split's system, without query points.
        x: the inputs it is made of, (n, d).
        seed: of landmarks, draws and regions.
    """
    return SplitCalibration(prepare_calibration(prepared, seed=seed), regions(x, seed=seed))
