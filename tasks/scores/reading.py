"""Reading a version off its rows: by PIT values, as counts, or by what quantiles cover; and the verdict on its places.

A version is read in the terms in which it speaks. Counts with many zeros are read by their sum and their zeros, ones,
two and more; predicted quantiles by how many targets they hold; all others by the scores of their PIT values. What is
wrong with one that is wrong is named in ``faults``.
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
from congruence.kernels.conditional_calibration.reading import (
    GroupReading,
    LevelReading,
    Place,
    group_reading,
    group_readings,
    level_reading,
)
from congruence.kernels.conditional_calibration.regions import Regions, read_regions
from congruence.kernels.conditional_calibration.score_test import VersionCalibration
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.dependence.correlation import Correlation
from congruence.kernels.engine.results import BlocksInference
from congruence.kernels.pit import cell_step
from congruence.kernels.pit_interpreter.interpretation import interpret_pit
from congruence.tasks.scores.evaluation import PLACES_P_VALUE, MetricValue, WhatIsWrong, verdict_of
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.points import slice_groups
from congruence.tasks.sentences.calibration import (
    LEVEL,
    capital,
    correlation_clause,
    inference_sentence,
    interpretation_sentence,
    is_worth_naming,
    no_fault,
    short_name,
)
from congruence.tasks.sentences.counts import count_fault, count_finding, level_fault, level_finding
from congruence.tasks.sentences.findings import Finding, group_finding
from congruence.tasks.sentences.target_rows import TargetRows

FEWEST_INTERPRETED = 30  # what the interpreter has been trained on
MOST_INTERPRETED = 8
"""Places that the interpreter reads, the most wrong first: 20 ms each."""

RESAMPLES = 60
"""Of a place's histogram: only whether a fault is likelier than not is said of it, no interval."""

INTERPRETED_LEVEL = 0.01

WEIGHTED = "Scores are weighted; tests, sentences and their shares of the rows count every row once."

_PLACES = ["place", "rows", "fault", "shift", "factor", "q_value"]


BESIDE = 0.01
"""Level at which rows beside a place have a fault: asked of all of them and of a dozen places, after that place was."""


@dataclass(frozen=True)
class RowsRead:
    """The rows of a version as its faults are read off them.

    Attributes:
        pit: PIT values, (n,).
        counts: the rows, where they are counts with many zeros.
        jumps: scores of the rows, where they are counts of any kind, or lie in cells, stated or by rounding: what is
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
        step, pit = cell_step(targets, predictive), points["pit"]
        return cls(
            pit,
            CountRows.of(targets, predictive),
            JumpScores.of(targets, predictive, step),
            blocks,
            TargetRows(targets, points["mean"], points["std"], pit, blocks, members=predictive.members),
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


Faults = Callable[[WhatIsWrong, RowsRead, Sequence[Place], Mapping[str, Array], Mapping[str, str]], WhatIsWrong]
"""The reading with its faults: of the rows, of places, of the rows of each of these, and what it is in a sentence."""


def read_what_is_wrong(
    calibration: VersionCalibration,
    regions: Regions,
    rows: RowsRead,
    metrics: dict[str, MetricValue],
    numbers: Array,
    slices: pd.DataFrame,
    faults: Faults,
) -> WhatIsWrong:
    """Read one version.

    Faults are named where the version is wrong by all tests together, that of the places among them: then those beyond
    chance over the places (a false discovery rate of 5 %). So 5 of 100 true versions are blamed for anything at all,
    and what a table of places names the sentences name, too.

    Args:
        calibration: as it was measured, with a reading.
        regions: those of ``calibration``, named.
        rows: the v valid rows.
        metrics: of the version, for what its CCE says.
        numbers: of the valid rows in the split, (v,).
        slices: labels of the valid rows, one column per slice; none that is a function of the target.
        faults: names them where the version is wrong (``with_faults``).
    """
    assert calibration.reading is not None
    assert calibration.curves is not None
    by_region = read_regions(regions, rows.scores, rows.blocks, rows.members)
    groups, words = _of_slices(slices)
    groups = groups or regions.rows()
    kind, places = rows.kind, rows.places(groups)
    rows = replace(rows, mixing=calibration.reading.mixing)
    worst, curves = by_region[0], calibration.curves
    at = regions.names.index(worst.name)
    there = slice(at, at + 1)
    said = {"pit": _interpreted(places, rows.pit, groups)} if kind is SCORES else {}
    judged, is_wrong = judged_by(kind, places, metrics, len(rows))
    judged = replace(
        judged,
        places=judged.places.assign(**said),
        method=method_of(calibration),
        region=worst.name,
        row=int(numbers[regions.medoids[at]]),
        curve=replace(curves, shares=curves.shares[there], lower=curves.lower[there], upper=curves.upper[there]),
    )
    return faults(judged, rows, places, groups, words) if is_wrong else judged


def method_of(calibration: VersionCalibration) -> str:
    """How a version was tested, in a sentence."""
    test = calibration.test
    if test.null == "blocks":
        return f"Tested against {test.draws:,} draws of one random sign for each of {test.blocks:,} blocks of rows."
    where = "" if calibration.rows is None else f"on {calibration.rows:,} rows drawn at random "
    return (
        f"Tested {where}against {test.draws:,} simulations of a right version: exact at any number of independent rows."
    )


def not_read(*sentences: str) -> WhatIsWrong:
    """What is said of a version of which no place was read."""
    return WhatIsWrong(sentences, pd.DataFrame(columns=_PLACES))


def with_inference(
    wrong: WhatIsWrong | None, inference: BlocksInference | None, correlation: Correlation | None
) -> WhatIsWrong | None:
    """The reading with how its p-values are known: by blocks of rows; first of all that they do not hold, if so."""
    if inference is None and correlation is None:
        return wrong
    found = wrong or not_read()
    if correlation is not None:
        return replace(found, sentences=(f"{capital(correlation_clause(correlation))}.", *found.sentences))
    if inference is not None and inference.refused:
        return replace(found, sentences=(inference_sentence(inference), *found.sentences))
    return found if inference is None else found.noting(inference_sentence(inference))


def judged_by(
    kind: Kind[Any], places: Sequence[Place], metrics: Mapping[str, MetricValue], rows: int
) -> tuple[WhatIsWrong, bool]:
    """The table of places by the verdict of all parts, and whether the version is wrong: else no fault is named.

    The p-value of all places together is the smallest of their q-values (Simes 1986).

    Args:
        kind: in which terms they are read.
        places: slices, regions or targets that were read.
        metrics: of the version.
        rows: how many were read.
    """
    p_value = min((place.q_value for place in places), default=None)
    of_places = {} if p_value is None else {PLACES_P_VALUE: MetricValue(p_value)}
    verdict = verdict_of({**metrics, **of_places}, rows=rows)
    is_wrong = verdict.p_value is not None and verdict.is_wrong
    said = () if verdict.p_value is None or is_wrong else (no_fault(rows, verdict.p_value),)
    return WhatIsWrong(said, kind.table(places, LEVEL if is_wrong else -1.0), p_value=p_value), is_wrong


def _of_slices(slices: pd.DataFrame) -> tuple[dict[str, Array], dict[str, str]]:
    """The rows of each value of each slice column by "column value", and what that is in a sentence."""
    groups: dict[str, Array] = {}
    words: dict[str, str] = {}
    for column in slices.columns:
        codes, values = slice_groups(slices[column])
        groups |= {f"{column} {value}": np.flatnonzero(codes == code) for code, value in enumerate(values)}
        words |= {f"{column} {value}": f"where {column} is {value}" for value in values}
    return groups, words


def _interpreted(places: Sequence[Place], pit: Array, groups: Mapping[str, Array]) -> list[str]:
    """The PIT interpreter's verdict on each place, in words; "" of few rows and beyond the first places.

    Faults are named where uniformity is rejected at 1 % over all places that are read (Bonferroni).
    """
    read = [place.name for place in places if len(groups[place.name]) >= FEWEST_INTERPRETED][:MOST_INTERPRETED]
    said = {}
    for name in read:
        found = interpret_pit(pit[groups[name]], level=INTERPRETED_LEVEL / len(read), resamples=RESAMPLES)
        said[name] = interpretation_sentence(found) if found.verdict.findings else found.verdict.label
    return [said.get(place.name, "") for place in places]
