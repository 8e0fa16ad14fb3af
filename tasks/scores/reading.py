"""Reading what is wrong with a version from its calibration: in sentences, by slices or regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.local_distribution import LocalDistribution
from congruence.kernels.conditional_calibration.local_reading import group_reading, group_readings
from congruence.kernels.conditional_calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.regions import RegionReading, Regions, read_regions
from congruence.kernels.conditional_calibration.wording import LEVEL, NEGLIGIBLE, short_name, what_is_wrong
from congruence.tasks.linalg.calibration import VersionCalibration
from congruence.tasks.scores.evaluation import NOT_AS_IF_TRUE, Metric, cce_status, significance
from congruence.tasks.scores.meanings import probability
from congruence.tasks.scores.summary import slice_labels
from congruence.tasks.scores.wrong import WhatIsWrong

NOTHING = "No fault found: the targets fall as predicted, as far as chance lets one see (p = {})."
CONTRADICTED = "The CCE is above what is expected if the version is true, but no fault of its calibration can be named."


def read_what_is_wrong(
    calibration: VersionCalibration,
    regions: Regions,
    pit: Array,
    metrics: dict[str, Metric],
    rows: Array,
    slices: pd.DataFrame,
) -> WhatIsWrong:
    """Read one version. Faults are named where the test of the whole split finds one: what is true is seldom blamed.

    Args:
        calibration: as it was measured.
        regions: those of ``calibration``, named.
        pit: PIT values of the valid rows, (v,).
        metrics: of the version, for what its CCE says.
        rows: numbers of the valid rows in the split, (v,).
        slices: labels of the valid rows, one column per slice; none that is a function of the target.
    """
    by_region = read_regions(regions, pit)
    places = _read_slices(slices, pit) or by_region
    if calibration.test.p_value < significance(metrics) / 2.0:
        mixing = float(np.var(calibration.reading.faults.scores[:, ORDERS.index("spread")]))
        sentences = what_is_wrong(group_reading(pit, mixing=mixing), places, p_value=calibration.test.p_value)
    elif cce_status(metrics) == NOT_AS_IF_TRUE:
        sentences = [CONTRADICTED]
    else:
        sentences = [NOTHING.format(probability(calibration.test.p_value))]
    worst = by_region[0]
    return WhatIsWrong(
        tuple(sentences),
        _table(places),
        worst.name,
        int(rows[worst.medoid]),
        _at(calibration.curves, regions.names.index(worst.name)),
    )


def _read_slices(slices: pd.DataFrame, pit: Array) -> list[RegionReading]:
    """The reading of each value of each slice column, the most wrong first."""
    groups: dict[str, Array] = {}
    for column in slices.columns:
        codes, values = pd.factorize(slice_labels(slices[column]), sort=True)
        groups |= {f"{column} {value}": np.flatnonzero(codes == code) for code, value in enumerate(values)}
    readings, q_values = group_readings(pit, groups)
    read = [RegionReading(name, int(groups[name][0]), q_values[name], found) for name, found in readings.items()]
    return sorted(read, key=lambda place: -(place.reading.strength**2) * place.reading.share)


def _table(places: Sequence[RegionReading]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "place": place.name,
            "rows": place.reading.rows,
            "fault": _named(place),
            "shift": place.reading.shift,
            "factor": place.reading.factor,
            "q_value": place.q_value,
        }
        for place in places
    )


def _named(place: RegionReading) -> str:
    found = place.q_value <= LEVEL and abs(place.reading.strength) >= NEGLIGIBLE
    return short_name(place.reading.dominant, place.reading.strength) if found else ""


def _at(curves: LocalDistribution, place: int) -> LocalDistribution:
    one = slice(place, place + 1)
    return replace(curves, shares=curves.shares[one], lower=curves.lower[one], upper=curves.upper[one])
