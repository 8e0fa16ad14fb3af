"""Reading what is wrong with a version from its calibration: in sentences, by slices or regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.conditional_calibration.counts import (
    CountReading,
    CountRows,
    JumpScores,
    count_reading,
    count_readings,
)
from congruence.kernels.conditional_calibration.coverage import LevelReading, LevelRows, level_reading, level_readings
from congruence.kernels.conditional_calibration.reading import GroupReading, group_reading, group_readings
from congruence.kernels.conditional_calibration.regions import RegionReading, Regions, read_regions
from congruence.kernels.conditional_calibration.version_calibration import VersionCalibration
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.dependence.correlation import Correlation
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.dependence import BlocksInference
from congruence.kernels.engine.results import benjamini_hochberg
from congruence.tasks.scores.evaluation import PLACES_P_VALUE, MetricValue, verdict_of
from congruence.tasks.scores.reading_pit import interpreted_places
from congruence.tasks.scores.segments import Segment
from congruence.tasks.scores.sizes import TargetRows
from congruence.tasks.scores.summary import slice_groups
from congruence.tasks.scores.wrong import WhatIsWrong
from congruence.tasks.sentences.calibration import (
    LEVEL,
    correlation_clause,
    inference_sentence,
    is_named,
    is_off,
    no_fault,
    short_name,
)
from congruence.tasks.sentences.counts import count_fault, count_finding
from congruence.tasks.sentences.findings import Finding, Place, PlaceReading, group_finding, told
from congruence.tasks.sentences.levels import level_fault, level_finding

_PLACES = ["place", "rows", "fault", "shift", "factor", "q_value"]


def read_what_is_wrong(
    calibration: VersionCalibration,
    regions: Regions,
    pit: Array,
    metrics: dict[str, MetricValue],
    rows: Array,
    slices: pd.DataFrame,
    counts: CountRows | None = None,
    jumps: JumpScores | None = None,
    levels: LevelRows | None = None,
    blocks: DependentBlocks | None = None,
    targets: TargetRows | None = None,
    segments: Callable[[], Sequence[Segment]] = tuple,
    members: int | None = None,
    rare: Callable[[GroupReading | None], list[Finding]] | None = None,
) -> WhatIsWrong:
    """Read one version.

    Faults are named where the version is wrong by all tests together, that of the places among them: then those beyond
    chance over the places (a false discovery rate of 5 %). So 5 of 100 true versions are blamed for anything at all,
    and what a table of places names the sentences name, too.

    Args:
        calibration: as it was measured, with a reading.
        regions: those of ``calibration``, named.
        pit: PIT values of the valid rows, (v,).
        metrics: of the version, for what its CCE says.
        rows: numbers of the valid rows in the split, (v,).
        slices: labels of the valid rows, one column per slice; none that is a function of the target.
        counts: the valid rows, where they are counts with many zeros, which are read in their own terms.
        jumps: scores of the valid rows, where they are counts of any kind, or in cells that the version states: what is
            read then takes no random numbers.
        levels: the valid rows of a version that states quantiles, which are read by what these cover.
        blocks: of the valid rows, where they depend on each other.
        targets: the valid rows in the targets' own unit; sizes are in predicted spreads without them.
        segments: looks for them (``weak_segments``), where the version is wrong.
        members: of an ensemble, by whose ranks its law is read.
        rare: what is found of targets far out and of values that many share, beside the reading of all rows.
    """
    assert calibration.reading is not None
    assert calibration.curves is not None
    read = pit if jumps is None else jumps
    by_region, groups = read_regions(regions, read, blocks, members), regions.rows()
    of_slices = _slices_of(slices)
    words = of_slices.words if of_slices.groups else {}
    chosen = of_slices.groups or groups
    if counts is not None:
        read_places: _Read = _read_places(_COUNTS, counts, chosen, words, blocks)
    elif levels is not None:
        read_places = _read_places(_LEVELS, levels, chosen, words, blocks)
    else:
        places = _read_groups(of_slices.groups, read, blocks, members) or by_region
        overall = group_reading(read, mixing=calibration.reading.mixing, blocks=blocks, members=members)
        interpreted = interpreted_places(places, pit, chosen)

        def findings() -> tuple[Finding | None, list[Finding]]:
            def of(reading: GroupReading, place: str = "") -> Finding:
                sizes = None if targets is None else targets[chosen[place]] if place else targets
                return group_finding(reading, place, words.get(place, ""), sizes)

            named = [of(place.reading, place.name) for place in places if is_named(place, LEVEL)]
            return of(overall) if is_off(overall) else None, named

        read_places = _Read(
            min(place.q_value for place in places),
            len(places),
            findings,
            lambda level: _table(places, level).assign(pit=interpreted),
            overall,
        )
    found = read_places.judged(metrics, len(pit), segments, rare)
    worst, curves = by_region[0], calibration.curves
    place = regions.names.index(worst.name)
    there = slice(place, place + 1)
    return replace(
        found,
        method=method_of(calibration),
        region=worst.name,
        row=int(rows[worst.medoid]),
        curve=replace(curves, shares=curves.shares[there], lower=curves.lower[there], upper=curves.upper[there]),
    )


def read_vector_targets(
    calibration: VersionCalibration,
    predictive: Distribution,
    targets: Array,
    names: Sequence[str],
    metrics: dict[str, MetricValue],
    keys: Array,
    seed: int,
    blocks: DependentBlocks | None = None,
) -> WhatIsWrong:
    """Read one version of vector targets: the test of all of them together, and the fault of each by itself.

    Args:
        calibration: as it was measured.
        predictive: of the v valid rows.
        targets: (v, q).
        names: of the targets, (q,).
        metrics: of the version, for what its CCE says.
        keys: of the rows, for randomised PIT values.
        seed: of the same.
        blocks: of the valid rows, where they depend on each other.
    """
    read = {}
    for column, name in enumerate(names):
        law = predictive.marginal(column)
        if law is not None:
            values = pit_values(targets[:, column], law, seed=seed, keys=keys)
            read[name] = group_reading(values, blocks=blocks, members=law.members)
    q_values = benjamini_hochberg(np.array([found.p_value for found in read.values()])) if read else np.empty(0)
    places = [RegionReading(name, 0, float(q), found) for (name, found), q in zip(read.items(), q_values, strict=True)]
    places.sort(key=lambda place: -abs(place.reading.strength))
    scale = min(calibration.test.by_order, key=lambda name: calibration.test.by_order[name])

    def findings() -> tuple[Finding | None, list[Finding]]:
        named = [
            group_finding(place.reading, place.name, f"for {place.name}") for place in places if is_named(place, LEVEL)
        ]
        if named:
            return None, named
        clause = (
            "no target is wrong by itself on average over all rows: how they go together is, or where (seen best at a "
            f"scale of {scale})"
        )
        together = Finding("", "", len(targets), 1.0, clause, "how targets go together", 1.0)
        return together if calibration.test.p_value < LEVEL else None, []

    p_of_places = min((place.q_value for place in places), default=None)
    read_targets = _Read(p_of_places, len(places), findings, lambda level: _table(places, level))
    return replace(read_targets.judged(metrics, len(targets)), method=method_of(calibration))


def method_of(calibration: VersionCalibration) -> str:
    """How a version was tested, in a sentence."""
    test = calibration.test
    if test.null == "blocks":
        return f"Tested against {test.draws:,} draws of one random sign for each of {test.blocks:,} blocks of rows."
    where = "" if calibration.rows is None else f"on {calibration.rows:,} rows drawn at random "
    return (
        f"Tested {where}against {test.draws:,} simulations of a right version: exact at any number of independent rows."
    )


def with_inference(
    wrong: WhatIsWrong | None, inference: BlocksInference | None, correlation: Correlation | None
) -> WhatIsWrong | None:
    """The reading with how its p-values are known: by blocks of rows; first of all that they do not hold, if so."""
    if inference is None and correlation is None:
        return wrong
    found = wrong or WhatIsWrong((), _table([], LEVEL).reindex(columns=_PLACES))
    if correlation is not None:
        text = correlation_clause(correlation)
        return replace(found, sentences=(f"{text[0].upper()}{text[1:]}.", *found.sentences))
    if inference is not None and inference.refused:
        return replace(found, sentences=(inference_sentence(inference), *found.sentences))
    said = "" if inference is None else inference_sentence(inference)
    return replace(found, method=f"{found.method} {said}".strip())


@dataclass(frozen=True)
class _Read:
    """What the places of a version say, before it is known whether the version is wrong.

    Attributes:
        p_value: of all places together, the smallest of their q-values (Simes 1986).
        total: how many there are.
        findings: of all rows together, where they have a fault, and of the places with one.
        table: the places, with a fault where the q-value is at most a level.
        overall: the reading of all rows by their PIT values, where they are read by these.
    """

    p_value: float | None
    total: int
    findings: Callable[[], tuple[Finding | None, list[Finding]]]
    table: Callable[[float], pd.DataFrame]
    overall: GroupReading | None = None

    def judged(
        self,
        metrics: Mapping[str, MetricValue],
        rows: int,
        segments: Callable[[], Sequence[Segment]] = tuple,
        rare: Callable[[GroupReading | None], list[Finding]] | None = None,
    ) -> WhatIsWrong:
        """The sentences and the table by the verdict of all parts: no fault is named where none was found."""
        of_places = {} if self.p_value is None else {PLACES_P_VALUE: MetricValue(self.p_value)}
        verdict = verdict_of({**metrics, **of_places}, rows=rows)
        if verdict.p_value is None:
            return WhatIsWrong((), self.table(-1.0), p_value=self.p_value)
        if not verdict.is_wrong:
            return WhatIsWrong((no_fault(rows, verdict.p_value),), self.table(-1.0), p_value=self.p_value)
        found, (overall, places) = segments(), self.findings()
        names = {place.place for place in places}
        apart = [each.finding for each in found if each.place not in names]  # a segment that is a slice is told once
        apart += [] if rare is None else rare(self.overall)
        sentences, fault = told(overall, places, self.total, apart)
        return WhatIsWrong(
            tuple(sentences), self.table(LEVEL), fault=fault, p_value=self.p_value, segments=tuple(found)
        )


@dataclass(frozen=True)
class _Slices:
    """The rows of each value of each slice column, by the name of the slice, and the name in a sentence."""

    groups: dict[str, Array]
    words: dict[str, str]


def _slices_of(slices: pd.DataFrame) -> _Slices:
    groups: dict[str, Array] = {}
    words: dict[str, str] = {}
    for column in slices.columns:
        codes, values = slice_groups(slices[column])
        groups |= {f"{column} {value}": np.flatnonzero(codes == code) for code, value in enumerate(values)}
        words |= {f"{column} {value}": f"where {column} is {value}" for value in values}
    return _Slices(groups, words)


def _read_groups(
    groups: dict[str, Array], pit: Array | JumpScores, blocks: DependentBlocks | None, members: int | None
) -> list[RegionReading]:
    """The reading of each group of rows, the most wrong first."""
    readings, q_values = group_readings(pit, groups, blocks, members)
    read = [RegionReading(name, int(groups[name][0]), q_values[name], found) for name, found in readings.items()]
    return sorted(read, key=lambda place: -(place.reading.strength**2) * place.reading.share)


def _read_places(
    kind: _Kind[T, R], rows: T, groups: dict[str, Array], words: Mapping[str, str], blocks: DependentBlocks | None
) -> _Read:
    """What a version says by slice or region that is read in its own terms."""
    readings, q_values = kind.by_group(rows, groups, blocks)
    places = [Place(name, q_values[name], found) for name, found in readings.items()]
    places.sort(key=lambda place: (not place.is_named(LEVEL), -place.reading.size))
    overall = kind.overall(rows, None, blocks)
    is_wrong = overall.is_off and overall.p_value <= LEVEL

    def findings() -> tuple[Finding | None, list[Finding]]:
        named = [place for place in places if place.is_named(LEVEL)]
        found = [kind.finding(place.reading, place.name, words.get(place.name, "")) for place in named]
        return kind.finding(overall, "", "") if is_wrong else None, found

    return _Read(min(q_values.values(), default=None), len(places), findings, lambda level: kind.table(places, level))


def _table_of_levels(places: Sequence[Place[LevelReading]], level: float) -> pd.DataFrame:
    covered = [(place, next(iter(place.reading.intervals or place.reading.levels), None)) for place in places]
    return pd.DataFrame(
        {
            "place": place.name,
            "rows": place.reading.rows,
            "fault": level_fault(place.reading) if place.is_named(level) else "",
            "stated": np.nan if widest is None else widest.probability,
            "holds": np.nan if widest is None else widest.observed,
            "holds_low": np.nan if widest is None else widest.low,
            "holds_high": np.nan if widest is None else widest.high,
            "q_value": place.q_value,
        }
        for place, widest in covered
    )


def _table_of_counts(places: Sequence[Place[CountReading]], level: float) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "place": place.name,
            "rows": place.reading.rows,
            "fault": count_fault(place.reading) if place.is_named(level) else "",
            "observed": place.reading.total.observed,
            "expected": place.reading.total.expected,
            "ratio": place.reading.ratio,
            "ratio_low": place.reading.low,
            "ratio_high": place.reading.high,
            **{
                f"{name}_{kind}": getattr(tally, f"{kind}_share")
                for name, tally in zip(("zeros", "ones", "more"), place.reading.shares, strict=True)
                for kind in ("observed", "expected")
            },
            "q_value": place.q_value,
        }
        for place in places
    )


T = TypeVar("T")
R = TypeVar("R", bound=PlaceReading)


@dataclass(frozen=True)
class _Kind(Generic[T, R]):
    """How versions are read that have terms of their own: all rows, each place, the finding, and the table."""

    overall: Callable[[T, None, DependentBlocks | None], R]
    by_group: Callable[[T, dict[str, Array], DependentBlocks | None], tuple[dict[str, R], dict[str, float]]]
    finding: Callable[[R, str, str], Finding]
    table: Callable[[Sequence[Place[R]], float], pd.DataFrame]


_COUNTS = _Kind(count_reading, count_readings, count_finding, _table_of_counts)
_LEVELS = _Kind(level_reading, level_readings, level_finding, _table_of_levels)


def _table(places: Sequence[RegionReading], level: float) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "place": place.name,
            "rows": place.reading.rows,
            "fault": short_name(place.reading.dominant, place.reading.strength) if is_named(place, level) else "",
            "shift": place.reading.shift,
            "factor": place.reading.factor,
            "q_value": place.q_value,
        }
        for place in places
    )
