r"""Segments: ranges of features in which a version differs from what it is elsewhere, down to ten rows, with honest p.

Over every range S of a feature (an interval between two of its values, or one word) with m rows, sums of PIT scores are
set against their variance if the version is as right or wrong as everywhere,

.. math::  z_j(S)^2 = \frac{(\sum_{i \in S} (\phi_{ij} - \bar\phi_j))^2}{s_j^2 \, V_j(S) (1 - V_j(S) / V_j)}

with V the variances that the version states and s^2 the ratio of the scores' own to these. Beside ranges stand trends,
the same of all rows by their ranks u in a feature, Sum u_i phi_ij: a slope that is missed is small in any range. The
largest over all ranges of a size class (10 to 19 rows, 20 to 39, ...), and over all trends, of each order and of all
four together, is put on one scale by the moments of draws of the null, which go the same way: the scores of other rows,
where a right version's are alike in all rows, and scores drawn from the version's own distribution, where it predicts
counts (both exact); the scores times one sign a block for rows that depend on each other. The p-value is of the whole
search.

The range that says most is found, or, of the feature whose trend does, the one with one end; its mean scores, or the
trend, are taken out, and the search goes on with what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.null import evidence_by_others
from congruence.kernels.conditional_calibration.searched_ranges import (
    FEWEST,
    TREND,
    Feature,
    Range,
    Search,
    SearchedRows,
    Sums,
)

DRAWS = 199
_AT_ONCE = 40
_NARROWER = 20.0
"""Chi-squared of four scores that a second feature must add to the first: by chance it seldom does."""

_SIMPLER = 10.0
"""The same that a second end of a range must add to the first: "above .5", not "between .5 and 2.6"."""

_FEWEST_DIGITS, _MOST_DIGITS, _MOVED = 3, 16, 0.02
_FOLDS, _SAME = 20, 0.8
_MOST_KEPT = 0.8
"""Of the rows of a range, the share from which a second range is not worth its words."""

_BEYOND_CHANCE, _ALIKE = 1.5, 0.2
"""Standard errors, and the share of the fault, from which rows that a second feature leaves out are wrong, too."""


@dataclass(frozen=True)
class FoundSegment:
    """Rows in which a version differs.

    Attributes:
        ranges: that all of them are in, one or two.
        rows: their numbers, ascending.
        p_value: of the whole search that found it.
        judged_by: the rows whose own scores had no part in where the ends lie, ascending: nineteen
            twentieths of the rows set them for each twentieth. In the rows of a segment, which were chosen for it, the
            fault looks larger than it is.
    """

    ranges: tuple[Range, ...]
    rows: Array = field(repr=False)
    p_value: float
    judged_by: Array = field(repr=False)


def faulty_segments(
    features: Sequence[Feature], rows: SearchedRows, *, level: float = 0.05, draws: int = DRAWS, most: int = 5
) -> list[FoundSegment]:
    """The segments in which a version differs, the most certain first; none of a version that is right, in 95 of 100.

    Args:
        features: of the rows.
        rows: their scores.
        level: of the search: of so many right versions a segment is found.
        draws: B.
        most: segments at most.
    """
    search = Search(features, rows.variance)
    if not search.features:
        return []
    null = np.concatenate(
        [
            search.largest(rows.draw(min(_AT_ONCE, draws - first), first).astype(np.float32, copy=False))
            for first in range(0, draws, _AT_ONCE)
        ],
        axis=2,
    )
    scores, found = np.array(rows.scores), list[FoundSegment]()
    while len(found) < most:
        observed = search.largest(scores[:, :, None].astype(np.float32))
        evidence = evidence_by_others(np.concatenate([observed, null], axis=2))
        p_value = float(np.mean(np.max(evidence, axis=(0, 1)) >= np.max(evidence[:, :, 0])))
        if p_value > level:
            break
        place, order = np.unravel_index(np.argmax(evidence[:, :, 0]), evidence.shape[:2])
        whole = Sums(scores.copy(), rows.variance)
        ranges, inside = _segment(search, whole, int(place), int(order))
        judged_by = _judged_by(search, ranges, whole)
        found.append(FoundSegment(ranges, np.flatnonzero(inside), p_value, judged_by))
        if search.classes[place] == TREND:
            along = next(feature.ranks for feature in search.features if feature.name == ranges[0].feature)[:, None]
            scores -= along * (np.sum(along * scores, axis=0) / np.sum(along**2))
        else:
            outside = scores[~inside].mean(axis=0)
            scores[inside] += outside - scores[inside].mean(axis=0)
    return found


def _segment(search: Search, whole: Sums, place: int, order: int) -> tuple[tuple[Range, ...], Array]:
    """The range of the largest form, its ends moved to where the form is largest; or where it lies within the range."""
    number, part = search.best(whole.scores, place, order)
    feature, n = search.features[number], len(whole.scores)
    chosen, other = (feature.range_of(part, complement=complement) for complement in (False, True))
    if np.isfinite([chosen.above, chosen.up_to]).all():
        chosen, other = _with_one_end(feature, chosen, whole)
    chosen = max(chosen, other, key=lambda each: whole.size(feature.holds(each)))
    if feature.is_ordered:
        chosen = _rounded(feature, _sharpened(feature, chosen, whole), np.ones(n, dtype=bool))
    inside = feature.holds(chosen)
    held = inside[:, None] * np.hstack([np.ones((n, 1)), whole.centred, whole.variance])
    total = held.sum(axis=0)
    gains: list[tuple[float, Range | None, Feature]] = [(0.0, None, feature)]
    for second in (each for each in search.features if each is not feature):
        for complement in (False,) if second.is_ordered else (False, True):
            sums = total - second.sums(held) if complement else second.sums(held)
            forms = whole.forms(*np.split(sums[:, 1:], 2, axis=1)).sum(axis=1)
            forms[(sums[:, 0] < FEWEST) | (sums[:, 0] > _MOST_KEPT * total[0])] = 0.0
            part = int(np.argmax(forms))
            gains.append((float(forms[part]), second.range_of(part, complement=complement), second))
    alone = float(whole.forms(*np.split(total[None, 1:], 2, axis=1)).sum())
    largest, narrower, second = max(gains, key=lambda each: each[0])
    if narrower is None or largest - alone < _NARROWER:
        return (chosen,), inside
    narrower = _rounded(second, narrower, inside)
    both = inside & second.holds(narrower)
    return ((chosen,), inside) if _is_wrong_alike(whole.scores, inside, both) else ((chosen, narrower), both)


def _with_one_end(feature: Feature, chosen: Range, whole: Sums) -> tuple[Range, Range]:
    """The range without the end that adds less, and what lies outside; as it is, twice, where both ends add much."""
    up_to = replace(chosen, above=-np.inf), replace(chosen, above=chosen.up_to, up_to=np.inf)
    above = replace(chosen, up_to=np.inf), replace(chosen, above=-np.inf, up_to=chosen.above)
    simpler = max(up_to, above, key=lambda each: whole.form(feature.holds(each[0])))
    one_end, both_ends = (whole.form(feature.holds(each)) for each in (simpler[0], chosen))
    return simpler if one_end > both_ends - _SIMPLER else (chosen, chosen)


def _judged_by(search: Search, ranges: tuple[Range, ...], rows: Sums) -> Array:
    """See ``FoundSegment.judged_by``; all rows where the ends hang on so few that these would be other rows."""
    by_name = {feature.name: feature for feature in search.features}
    n = len(rows.scores)
    chosen, folds = np.zeros(n, dtype=bool), np.arange(n) % _FOLDS
    for fold in range(_FOLDS):
        inside, others = np.ones(n, dtype=bool), folds != fold
        for part in ranges:
            feature = by_name[part.feature]
            if feature.is_ordered:
                seen = np.flatnonzero(others & inside)
                known = Sums(rows.scores[seen], rows.variance[seen])
                part = _sharpened(replace(feature, values=feature.values[seen]), part, known)
            inside &= feature.holds(part)
        chosen |= inside & ~others
    whole = np.logical_and.reduce([by_name[part.feature].holds(part) for part in ranges])
    same = np.count_nonzero(chosen & whole) >= _SAME * np.count_nonzero(chosen | whole)
    return np.flatnonzero(chosen if same else whole)


def _is_wrong_alike(scores: Array, inside: Array, both: Array) -> bool:
    """Whether the rows of a range that a second one leaves out are wrong, too, in the way of those that it keeps.

    They are set against the rows outside, not against the mean of all, to which the fault itself belongs: what was left
    out looked right beside that, and a slice that is wrong as a whole was named with a range of an input.
    """
    outside = scores[~inside].mean(axis=0)
    rest = inside & ~both
    kept, left = scores[both].mean(axis=0) - outside, scores[rest].mean(axis=0) - outside
    order = int(np.argmax(np.abs(kept)))
    along = float(left @ kept) / float(np.linalg.norm(kept)) * np.sqrt(np.count_nonzero(rest))
    return along > _BEYOND_CHANCE and float(left[order] / kept[order]) > _ALIKE


def _sharpened(feature: Feature, chosen: Range, whole: Sums) -> Range:
    """The range with each end that it has moved to where the form is largest."""
    for is_low in (True, False):
        if np.isinf(chosen.above if is_low else chosen.up_to):
            continue
        free = replace(chosen, above=-np.inf) if is_low else replace(chosen, up_to=np.inf)
        rows = np.flatnonzero(feature.holds(free))
        rows = rows[np.argsort(feature.values[rows] * (-1.0 if is_low else 1.0), kind="stable")]
        values = feature.values[rows]
        sums, spreads = (np.cumsum(each[rows], axis=0) for each in (whole.centred, whole.variance))
        forms = whole.forms(sums, spreads).sum(axis=1)[:-1]
        forms[: FEWEST - 1] = 0.0
        forms[max(len(whole.scores) - FEWEST, 0) :] = 0.0
        forms[values[1:] == values[:-1]] = 0.0
        if forms.any():
            cut = int(np.argmax(forms))
            middle = float(0.5 * (values[cut] + values[cut + 1]))
            chosen = replace(chosen, above=middle) if is_low else replace(chosen, up_to=middle)
    return chosen


def _rounded(feature: Feature, chosen: Range, among: Array) -> Range:
    """The range as it is written: with the fewest digits, three or more, that move a fiftieth of its rows at most.

    The rows of a segment are those of the ends that a reader sees.
    """
    held = among & feature.holds(chosen)
    for digits in range(_FEWEST_DIGITS, _MOST_DIGITS) if feature.is_ordered else ():
        above, up_to = (float(f"{end:.{digits}g}") for end in (chosen.above, chosen.up_to))
        found = replace(chosen, above=above, up_to=up_to)
        if np.isfinite(up_to) and np.any(feature.values[among] == above):
            continue  # "0.3 to 0.7" would have the rows of 0.3 in it
        if np.count_nonzero((among & feature.holds(found)) != held) <= _MOVED * np.count_nonzero(held):
            return found
    return chosen
