"""What is wrong with a version that is: over all rows, in places, in segments of its inputs, or target by target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import CountReading
from congruence.kernels.conditional_calibration.faults import BIAS, SKEW, SPREAD, TAILS
from congruence.kernels.conditional_calibration.reading import GroupReading, Place, group_reading, mixed_scores
from congruence.kernels.conditional_calibration.score_test import VersionCalibration
from congruence.kernels.conditional_calibration.searched_ranges import Feature, Range, SearchedRows
from congruence.kernels.conditional_calibration.segments import FoundSegment, faulty_segments
from congruence.kernels.engine.congruence_test import benjamini_hochberg
from congruence.kernels.engine.results import excess_over
from congruence.kernels.pit import ORDERS, cell_step, pit_values
from congruence.tasks.scores.evaluation import MetricValue, WhatIsWrong
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.points import feature_values
from congruence.tasks.scores.reading import SCORES, RowsRead, judged_by, method_of
from congruence.tasks.sentences.calibration import LEVEL
from congruence.tasks.sentences.counts import count_clause
from congruence.tasks.sentences.findings import Finding, Segment, group_finding, sentences_of


def read_vector_targets(
    calibration: VersionCalibration, given: Rows, names: Sequence[str], metrics: dict[str, MetricValue]
) -> WhatIsWrong:
    """Read one version of vector targets: the test of all of them together, and the fault of each by itself.

    Args:
        calibration: as it was measured.
        given: the v valid rows.
        names: of the targets, (q,).
        metrics: of the version, for what its CCE says.
    """
    read = {}
    for column, name in enumerate(names):
        law = given.predictive.marginal(column)
        if law is not None:
            targets = given.targets[:, column]
            step = cell_step(targets, law)
            values = pit_values(targets, law, seed=given.seed, keys=given.names, step=step)
            read[name] = group_reading(values, blocks=given.found.blocks, members=law.members)
    q_values = benjamini_hochberg(np.array([found.p_value for found in read.values()])) if read else np.empty(0)
    places = [Place(name, float(q), found) for (name, found), q in zip(read.items(), q_values, strict=True)]
    places.sort(key=lambda place: -abs(place.reading.strength))
    scale = min(calibration.test.by_order, key=lambda name: calibration.test.by_order[name])

    judged, is_wrong = judged_by(SCORES, places, metrics, len(given.targets))
    judged = replace(judged, method=method_of(calibration))
    if not is_wrong:
        return judged
    named = [
        group_finding(place.reading, place.name, f"for {place.name}")
        for place in places
        if SCORES.is_named(place, LEVEL)
    ]
    together = None
    if not named and calibration.test.p_value < LEVEL:
        clause = (
            "no target is wrong by itself on average over all rows: how they go together is, or where (seen best at a "
            f"scale of {scale})"
        )
        together = Finding("", "", len(given.targets), 1.0, clause, "how targets go together", 1.0)
    sentences, fault = sentences_of(together, named, len(places))
    return replace(judged, sentences=tuple(sentences), fault=fault)


FEWEST_ROWS = 200
"""Rows below which places as small as segments say nothing."""


_MOSTLY = 0.8


def weak_segments(
    features: pd.DataFrame,
    rows: RowsRead,
    cce: Array,
    expected: Array,
    places: Mapping[str, Array] | None = None,
    *,
    is_sample: bool = False,
) -> Searched:
    """Look for segments in which the version is wrong; none where none is.

    Of a version that is true, 95 of 100 splits have none.

    Args:
        features: named columns of numbers, truth values or words, (n, k); missing values are allowed.
        rows: the n rows.
        cce: CCE at the rows, (n,).
        expected: what it would be there if the version were true, (n,).
        places: the row numbers of slices or regions by their names.
        is_sample: whether the split has more.
    """
    if len(rows) < FEWEST_ROWS:
        return Searched(rows)
    columns = [Feature(str(name), feature_values(features[name])) for name in features.columns]
    kind, found, held = rows.kind, list[Segment](), dict(places or {})
    whole = {each.name: ends for each in columns if (ends := _whole_ends(each)) is not None}
    most = LEVEL  # the p-value of a fault that is too small to be named: what is less certain than that is none
    for segment in faulty_segments(columns, SearchedRows.of(rows.pit, rows.jumps, rows.blocks), level=LEVEL):
        chosen, name = segment.rows, ", ".join(_range(each, whole.get(each.feature)) for each in segment.ranges)
        judged = segment.judged_by
        reading = kind.read(rows, judged)
        is_new, is_beyond_chance = all(each.name != name for each in found), reading.p_value <= LEVEL
        if is_beyond_chance and not kind.is_off(reading):
            most = min(most, segment.p_value)
        elif is_new and is_beyond_chance and segment.p_value <= most:  # it may differ by being right
            excess = excess_over(float(cce[chosen].mean()), float(expected[chosen].mean()))
            finding = kind.finding(reading, name, "", rows.sizes(judged))
            if isinstance(reading, CountReading) and not np.array_equal(judged, chosen):
                finding = replace(finding, clause=count_clause(reading, of_others=True))
            sample = len(rows) if is_sample else None
            finding = replace(finding, rows=len(chosen), share=len(chosen) / len(rows), sample=sample)
            found.append(Segment(name, finding, segment.p_value, excess, _ranges(segment)))
            held[name] = chosen
    found = [replace(each, places=_places_in(each.name, held, len(rows))) for each in found]
    return Searched(rows, held, tuple(sorted(found, key=lambda segment: -segment.finding.weight)))


def _places_in(place: str, places: Mapping[str, Array], rows: int) -> tuple[str, ...]:
    """The other places of which four of five rows are among those of ``place``."""
    inside = np.zeros(rows, dtype=bool)
    inside[places[place]] = True
    others = {name: own for name, own in places.items() if name != place and len(own)}
    return tuple(name for name, own in others.items() if np.mean(inside[own]) >= _MOSTLY)


def _whole_ends(feature: Feature) -> tuple[float, float] | None:
    """The least and the largest value of a column of whole numbers; None of others."""
    if feature.values.dtype.kind != "f":
        return None
    known = feature.values[np.isfinite(feature.values)]
    return (float(known.min()), float(known.max())) if len(known) and np.all(known == np.floor(known)) else None


def _range(part: Range, whole: tuple[float, float] | None) -> str:
    if part.word is not None:
        return f"{part.feature} is {'not ' if part.is_not else ''}{part.word}"
    low, high = part.above, part.up_to
    if np.isinf(low) and np.isinf(high):
        return f"{part.feature} is not missing"
    if whole is not None:  # "2 or more", not "above 1.5"
        low, high = np.floor(low) + 1.0, np.floor(high)
        if max(low, whole[0]) == min(high, whole[1]):
            return f"{part.feature} is {max(low, whole[0]):.15g}"
        if np.isinf(high):
            return f"{part.feature} from {low:.15g}"
    if np.isinf(low):
        return f"{part.feature} up to {high:.15g}"
    return f"{part.feature} above {low:.15g}" if np.isinf(high) else f"{part.feature} {low:.15g} to {high:.15g}"


def _ranges(segment: FoundSegment) -> tuple[tuple[str, float, float], ...]:
    """See ``Segment.ranges``."""
    return tuple(
        (part.feature, part.above, part.up_to)
        if part.word is None
        else (f"{part.feature} = {part.word}", *((-np.inf, 0.5) if part.is_not else (0.5, np.inf)))
        for part in segment.ranges
    )


Rare = Callable[[GroupReading | None, float], list[Finding]]
"""What is found of targets far out and of values that many share: by the reading of all rows, and by the most that a
part of the rows explains (``TargetRows.gain_of_part``)."""


def with_faults(
    judged: WhatIsWrong,
    rows: RowsRead,
    places: Sequence[Place],
    groups: Mapping[str, Array],
    words: Mapping[str, str],
    *,
    segments: Callable[[Mapping[str, Array]], Searched] | None = None,
    rare: Rare | None = None,
) -> WhatIsWrong:
    """The reading of a version that is wrong with its sentences: of all rows, of places, of segments, and beside.

    Args:
        judged: the reading.
        rows: those of the version.
        places: slices or regions.
        groups: the rows of each of them.
        words: what a place is in a sentence.
        segments: looks for them (``weak_segments``), given the rows of each place.
        rare: see ``Rare``.
    """
    searched = Searched(rows) if segments is None else segments(groups)
    kind, found = rows.kind, searched.segments
    overall = kind.read(rows, None)
    of_scores = overall if isinstance(overall, GroupReading) else None
    left = overall if of_scores is None else _less_mixed(of_scores, searched)
    is_off = overall.p_value <= LEVEL and kind.is_off(overall) and left is not None
    wrong = [place for place in places if kind.is_named(place, LEVEL)]

    def placed(finding: Finding) -> Finding:
        return replace(finding, lies_in=tuple(part.name for part in found if finding.place in part.places))

    def others(first: Finding, place: str) -> Finding | None:
        of_segment = any(each.name in (first.place, place) for each in found)
        read, where = (searched.rows, searched.places) if of_segment else (rows, groups)
        return kind.fault_beside(read, where[first.place], where[place] if place else None)

    named = [
        placed(kind.finding(place.reading, place.name, words.get(place.name, ""), rows.sizes(groups[place.name])))
        for place in wrong
    ]
    apart = [placed(each.finding) for each in found if not any(each.repeats(place) for place in named)]
    if rare is not None:
        gains = [rows.gain_of(groups[place.name]) for place in wrong]
        gains += [searched.rows.gain_of(searched.places[each.name]) for each in found]
        apart += rare(of_scores, max([0.0, *gains]))
    everywhere = kind.finding(left, "", "", rows.targets) if is_off else None
    sentences, fault = sentences_of(everywhere, named, len(places), apart, others)
    return replace(judged, sentences=tuple(sentences), fault=fault, segments=found)


def _less_mixed(overall: GroupReading, searched: Searched) -> GroupReading | None:
    """The reading of all rows less the skew and tails that a segment and all other rows make together.

    None where its fault is a spread, skew or tails of which they make most: then the segment is the fault.
    """
    left, dominant = overall.unexplained.copy(), ORDERS.index(overall.dominant)
    own = left + mixed_scores([overall], searched.rows.members)
    for mixed in map(searched.mixed, searched.segments):
        if dominant != BIAS and abs(overall.strength - mixed[dominant]) < _HALF * abs(overall.strength):
            return None
        for order in (SKEW, TAILS):
            if order != dominant and abs(own[order] - mixed[order]) < abs(left[order]):
                left[order] = own[order] - mixed[order]
    return replace(overall, unexplained=left)


_HALF = 0.5


@dataclass(frozen=True)
class Searched:
    """The rows in which segments were looked for, and what was found.

    Attributes:
        rows: the rows.
        places: which of them lie in each slice or region, and in each segment, by name.
        segments: those in which the version is wrong, the most wrong first.
    """

    rows: RowsRead
    places: Mapping[str, Array] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()

    def mixed(self, segment: Segment) -> Array:
        """Mean PIT scores that the rows of a segment and all others would have together if either were normal, (4,),
        their spread score by their shifts alone."""
        is_inside = np.zeros(len(self.rows), dtype=bool)
        is_inside[self.places[segment.name]] = True
        parts = [SCORES.read(self.rows, np.flatnonzero(some)) for some in (is_inside, ~is_inside)]
        mixed = mixed_scores(parts, self.rows.members)
        mixed[SPREAD] = mixed_scores(parts, self.rows.members, shifts_alone=True)[SPREAD]
        return mixed
