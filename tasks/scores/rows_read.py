"""The rows of a version as faults are read off them: by PIT values, as counts, or by what quantiles cover.

A version is read in the terms in which it speaks. Counts with many zeros are read by their sum and their zeros, ones,
two and more; predicted quantiles by how many targets they hold; all others by the scores of their PIT values.
Frequencies of counts, targets far out and values that many share are looked at beside.
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
from congruence.kernels.conditional_calibration.rare import Extremes, Mass, Masses, extremes, masses
from congruence.kernels.conditional_calibration.reading import (
    GroupReading,
    LevelReading,
    Place,
    group_reading,
    group_readings,
    level_reading,
)
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.scores import resolution
from congruence.tasks.scores.evaluation import MetricValue, finite_metrics
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.sentences.calibration import LEVEL, is_off, is_worth_naming, short_name
from congruence.tasks.sentences.counts import (
    MOST_NAMED,
    count_fault,
    count_finding,
    extremes_finding,
    level_fault,
    level_finding,
    mass_finding,
)
from congruence.tasks.sentences.findings import Finding, group_finding
from congruence.tasks.sentences.target_rows import TargetRows

BESIDE = 0.01
"""Level at which rows beside a place have a fault: asked of all of them and of a dozen places, after that place was."""


@dataclass(frozen=True)
class RowsRead:
    """The rows of a version as its faults are read off them.

    Attributes:
        pit: PIT values, (n,).
        counts: the rows, where they are counts with many zeros.
        jumps: scores of the rows, where they are counts of any kind, or lie in cells that the version states: what is
            read then takes no random numbers, which hide what few claims say.
        blocks: of the rows, where they depend on each other.
        targets: the rows in the targets' own unit; sizes are in predicted spreads without them.
        members: of an ensemble, by whose ranks its law is read.
        mixing: variance of the spread score over all rows, see ``kernels.conditional_calibration.faults.faults``.
    """

    pit: Array = field(repr=False)
    counts: CountRows | None = None
    jumps: JumpScores | None = None
    blocks: DependentBlocks | None = None
    targets: TargetRows | None = None
    members: int | None = None
    mixing: float = 0.0

    @classmethod
    def of(cls, given: Rows, mixing: float = 0.0) -> RowsRead:
        """Of rows of one target, with their scores."""
        points, targets, predictive, blocks = given.columns, given.targets, given.predictive, given.found.blocks
        jumps, pit = JumpScores.of(targets, predictive), points["pit"]
        return cls(
            pit,
            CountRows.of(targets, predictive),
            jumps,
            blocks,
            TargetRows(targets, points["mean"], points["std"], pit, blocks),
            predictive.members,
            mixing,
        )

    def __len__(self) -> int:
        return len(self.pit)

    def __getitem__(self, rows: Array) -> RowsRead:
        parts = {name: getattr(self, name) for name in ("pit", "counts", "jumps", "targets")}
        parts = {name: None if part is None else part[rows] for name, part in parts.items()}
        return replace(self, **parts, blocks=None if self.blocks is None else self.blocks.of_rows(rows))

    def sizes(self, chosen: Array) -> TargetRows | None:
        """Some rows in the targets' own unit."""
        return None if self.targets is None else self.targets[chosen]

    def gain_of(self, chosen: Array) -> float:
        """What a shift and a spread of their own explain of some rows, see ``TargetRows.gain_of_part``."""
        return 0.0 if self.targets is None else self.targets.gain_of_part(chosen)

    @property
    def scores(self) -> Array | JumpScores:
        """What scores are made of."""
        return self.pit if self.jumps is None else self.jumps

    @property
    def kind(self) -> Kind[Any]:
        """In which terms they are read."""
        states_levels = self.jumps is not None and self.jumps.levels is not None
        return COUNTS if self.counts is not None else LEVELS if states_levels else SCORES

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

    def fault_beside(self, rows: RowsRead, chosen: Array, among: Array | None = None) -> Finding | None:
        """The fault of all rows but some by their numbers, or of those ``among`` them; None of none beyond chance."""
        others = np.setdiff1d(np.arange(len(rows)) if among is None else among, chosen)
        reading: Any = self.read(rows, others) if len(others) > 1 else None
        if reading is None or reading.p_value > BESIDE or not self.is_off(reading):
            return None
        return self.finding(reading, "", "", rows.sizes(others))

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


_MIXED = 0.5
"""Share of the rows beyond which some of them are a mixture as all are."""


def _read_scores(rows: RowsRead, chosen: Array | None) -> GroupReading:
    mixing = rows.mixing if chosen is None or len(chosen) > _MIXED * len(rows) else 0.0
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
    is_worth_naming,
    lambda reading: reading.strength**2 * reading.share,
    lambda reading: short_name(reading.dominant, reading.strength),
    group_finding,
    lambda reading: {"shift": reading.shift, "factor": reading.factor},
)
LEVELS: Kind[LevelReading] = Kind(
    lambda rows, chosen: level_reading(_known(rows.jumps), chosen, rows.blocks),
    lambda rows, groups: by_group(lambda chosen: level_reading(_known(rows.jumps), chosen, rows.blocks), groups, 2),
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

NOT_STATED = "Targets far out were not counted: what was predicted states no probability as small as 0.001."

FEW = 0.1
"""Share of the targets: of more far out, the spread or the mean is what is wrong."""

COUNTED = (0.0, 1.0)
"""Values whose masses the finding on counts with many zeros has anyway."""


@dataclass(frozen=True)
class RareTargets:
    """The targets of a version far out, and the values that many share; None of either where it was not looked for."""

    far: Extremes | None = None
    shared: Masses | None = None

    @classmethod
    def of(cls, rows: Rows) -> RareTargets:
        """Nothing of vectors, and of rows that depend on each other in too few blocks."""
        targets, predictive, blocks = rows.targets, rows.predictive, rows.found.blocks
        if targets.ndim != 1 or rows.found.refused:
            return cls()
        step = resolution(targets)
        found = cls(shared=masses(targets, predictive, step, blocks))
        return replace(found, far=extremes(targets, predictive, step, blocks, found.masses))

    @property
    def masses(self) -> tuple[Mass, ...]:
        """The values that many share whose number is wrong, the most wrong first."""
        return () if self.shared is None else self.shared.faults()

    def metrics(self) -> dict[str, MetricValue]:
        """The p-values of both, and what the most is wrong with: numbers of targets, and shares of a value."""
        known: dict[str, float] = {}
        if self.far is not None and self.far.p_value is not None and (most := self.far.most) is not None:
            known |= {"extremes_p_value": self.far.p_value, "extremes_level": most.level}
            known |= {"extremes_observed": most.observed, "extremes_expected": most.expected}
        if self.shared is not None and self.shared.p_value is not None:
            known["masses_p_value"] = self.shared.p_value
            for mass in self.masses[:1]:
                known |= {"mass_value": mass.value, "mass_observed": mass.observed_share}
                known["mass_expected"] = mass.expected_share
        return finite_metrics(known)

    @property
    def method(self) -> str:
        """What was not looked at, if anything was not."""
        return NOT_STATED if self.far is not None and not self.far.counts else ""

    def findings(
        self, overall: GroupReading | None, names: Callable[[Array], list[str]], *, of_counts: bool
    ) -> list[Finding]:
        """The largest fault of a single value, and targets far out beyond what the fault of all rows explains.

        Args:
            overall: the reading of all rows by their PIT values; None of versions that are read in their own terms.
            names: of rows by their numbers.
            of_counts: whether counts with many zeros are read, whose finding speaks of 0 and 1.
        """
        found = [mass_finding(mass) for mass in self.masses if not (of_counts and mass.value in COUNTED)][:1]
        shift, factor = (overall.shift, overall.factor) if overall is not None and is_off(overall) else (0.0, 1.0)
        beyond = None if self.far is None else self.far.beyond(shift, factor)
        if self.far is not None and beyond is not None and beyond.observed <= FEW * self.far.rows:
            found.append(extremes_finding(self.far, beyond, names(self.far.farthest[:MOST_NAMED])))
        return found
