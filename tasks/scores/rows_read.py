"""The rows of a version as faults are read off them: by PIT values, as counts, or by what quantiles cover.

A version is read in the terms in which it speaks. Counts with many zeros are read by their sum and their zeros, ones,
two and more; predicted quantiles by how many targets they hold; all others by the scores of their PIT values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import (
    CountReading,
    CountRows,
    JumpScores,
    by_group,
    count_reading,
)
from congruence.kernels.conditional_calibration.coverage import LevelReading, LevelRows, level_reading
from congruence.kernels.conditional_calibration.reading import GroupReading, Place, group_reading, group_readings
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution
from congruence.tasks.sentences.calibration import LEVEL, NEGLIGIBLE, short_name
from congruence.tasks.sentences.counts import count_fault, count_finding, level_fault, level_finding
from congruence.tasks.sentences.findings import Finding, group_finding
from congruence.tasks.sentences.sizes import TargetRows


@dataclass(frozen=True)
class RowsRead:
    """The rows of a version as its faults are read off them.

    Attributes:
        pit: PIT values, (n,).
        counts: the rows, where they are counts with many zeros.
        jumps: scores of the rows, where they are counts of any kind, or lie in cells that the version states: what is
            read then takes no random numbers, which hide what few claims say.
        levels: the rows of a version that states quantiles.
        blocks: of the rows, where they depend on each other.
        targets: the rows in the targets' own unit; sizes are in predicted spreads without them.
        members: of an ensemble, by whose ranks its law is read.
        mixing: variance of the spread score over all rows, see ``kernels.conditional_calibration.reading.faults``.
    """

    pit: Array = field(repr=False)
    counts: CountRows | None = None
    jumps: JumpScores | None = None
    levels: LevelRows | None = None
    blocks: DependentBlocks | None = None
    targets: TargetRows | None = None
    members: int | None = None
    mixing: float = 0.0

    @classmethod
    def of(
        cls,
        points: Mapping[str, Array],
        targets: Array,
        predictive: Distribution,
        blocks: DependentBlocks | None = None,
    ) -> RowsRead:
        """Of the scores of n rows (``score_points``), their targets (n,) and n laws."""
        jumps, pit = JumpScores.of(targets, predictive), points["pit"]
        return cls(
            pit,
            CountRows.of(targets, predictive),
            jumps,
            LevelRows.of(predictive.quantile_levels, jumps),
            blocks,
            TargetRows(targets, points["mean"], points["std"], pit, blocks),
            predictive.members,
        )

    def __len__(self) -> int:
        return len(self.pit)

    def __getitem__(self, rows: Array) -> RowsRead:
        return replace(
            self,
            pit=self.pit[rows],
            counts=None if self.counts is None else self.counts[rows],
            jumps=None if self.jumps is None else self.jumps[rows],
            levels=None if self.levels is None else self.levels[rows],
            blocks=None if self.blocks is None else self.blocks.of_rows(rows),
            targets=None if self.targets is None else self.targets[rows],
        )

    @property
    def scores(self) -> Array | JumpScores:
        """What scores are made of."""
        return self.pit if self.jumps is None else self.jumps

    @property
    def kind(self) -> Kind[Any]:
        """In which terms they are read."""
        return COUNTS if self.counts is not None else SCORES if self.levels is None else LEVELS

    def places(self, groups: Mapping[str, Array]) -> list[Place]:
        """The reading of each group of rows by its name, those with a fault beyond chance first, the largest before."""
        kind = self.kind
        readings, q_values = kind.by_group(self, groups)
        found = [Place(name, q_values[name], reading) for name, reading in readings.items()]
        return sorted(found, key=lambda place: (not kind.is_named(place, LEVEL), -kind.size(place.reading)))


R = TypeVar("R")


@dataclass(frozen=True)
class Kind(Generic[R]):
    """The terms in which versions are read.

    Attributes:
        read: some rows by their numbers, or all.
        by_group: each of several groups of rows, and q-values over them.
        is_off: whether there is a fault that is worth naming, by chance or not.
        size: what the fault weighs, for the order of places.
        fault: the fault in a few words.
        finding: the fault in a sentence: of a place, by its name in that sentence, with sizes of its rows.
        columns: what a table of places says beside it.
    """

    read: Callable[[RowsRead, Array | None], R]
    by_group: Callable[[RowsRead, Mapping[str, Array]], tuple[dict[str, R], dict[str, float]]]
    is_off: Callable[[R], bool]
    size: Callable[[R], float]
    fault: Callable[[R], str]
    finding: Callable[[R, str, str, TargetRows | None], Finding]
    columns: Callable[[R], dict[str, Any]]

    def is_named(self, place: Place, level: float) -> bool:
        """Whether the fault of a place is beyond chance over all places, and worth naming."""
        return place.q_value <= level and self.is_off(place.reading)

    def table(self, places: Sequence[Place], level: float) -> pd.DataFrame:
        """The places, with a fault where it is named at a level."""
        return pd.DataFrame(
            {
                "place": place.name,
                "rows": place.reading.rows,
                "fault": self.fault(place.reading) if self.is_named(place, level) else "",
                **self.columns(place.reading),
                "q_value": place.q_value,
            }
            for place in places
        )


def _known(part: R | None) -> R:
    assert part is not None  # of rows of this kind
    return part


def _read_scores(rows: RowsRead, chosen: Array | None) -> GroupReading:
    mixing = rows.mixing if chosen is None else 0.0
    return group_reading(rows.scores, chosen, mixing=mixing, blocks=rows.blocks, members=rows.members)


def _of_levels(reading: LevelReading) -> dict[str, float]:
    widest = next(iter(reading.intervals or reading.levels), None)
    names = {"stated": "probability", "holds": "observed", "holds_low": "low", "holds_high": "high"}
    return {name: np.nan if widest is None else getattr(widest, part) for name, part in names.items()}


def _of_counts(reading: CountReading) -> dict[str, float]:
    sums = {"observed": reading.total.observed, "expected": reading.total.expected}
    ratios = {"ratio": reading.ratio, "ratio_low": reading.low, "ratio_high": reading.high}
    shares = {
        f"{name}_{kind}": getattr(tally, f"{kind}_share")
        for name, tally in zip(("zeros", "ones", "more"), reading.shares, strict=True)
        for kind in ("observed", "expected")
    }
    return {**sums, **ratios, **shares}


SCORES: Kind[GroupReading] = Kind(
    _read_scores,
    lambda rows, groups: group_readings(rows.scores, groups, rows.blocks, rows.members),
    lambda reading: abs(reading.strength) >= NEGLIGIBLE,
    lambda reading: reading.strength**2 * reading.share,
    lambda reading: short_name(reading.dominant, reading.strength),
    group_finding,
    lambda reading: {"shift": reading.shift, "factor": reading.factor},
)
LEVELS: Kind[LevelReading] = Kind(
    lambda rows, chosen: level_reading(_known(rows.levels), chosen, rows.blocks),
    lambda rows, groups: by_group(lambda chosen: level_reading(_known(rows.levels), chosen, rows.blocks), groups, 2),
    lambda reading: reading.is_off,
    lambda reading: reading.size,
    level_fault,
    lambda reading, place, words, *_: level_finding(reading, place, words),
    _of_levels,
)
COUNTS: Kind[CountReading] = Kind(
    lambda rows, chosen: count_reading(_known(rows.counts), chosen, rows.blocks),
    lambda rows, groups: by_group(lambda chosen: count_reading(_known(rows.counts), chosen, rows.blocks), groups, 1),
    lambda reading: reading.is_off,
    lambda reading: reading.size,
    count_fault,
    lambda reading, place, words, *_: count_finding(reading, place, words),
    _of_counts,
)
