r"""Segments: ranges of features in which a version differs from what it is elsewhere, down to ten rows, with honest p.

Over every range S of a feature (an interval between two of its values, or one word) with m rows, sums of PIT scores are
set against their variance if the version is as right or wrong as everywhere,

.. math::  z_j(S)^2 = \frac{(\sum_{i \in S} (\phi_{ij} - \bar\phi_j))^2}{s_j^2 \, V_j(S) (1 - V_j(S) / V_j)}

with V the variances that the version states and s^2 the ratio of the scores' own to these. The largest over all ranges
of a size class (10 to 19 rows, 20 to 39, ...), of each order and of all four together, is put on one scale by the
moments of draws of the null, which go the same way: the scores of other rows, where a right version's are alike in all
rows, and scores drawn from the version's own distribution, where it predicts counts (both exact); the scores times one
sign a block for rows that depend on each other. The p-value is of the whole search.

The range that says most is found; its mean scores are taken out, and the search goes on with what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import JumpScores
from congruence.kernels.conditional_calibration.null import evidence_by_others
from congruence.kernels.dependence.blocks import DependentBlocks, enlargements
from congruence.kernels.pit import ORDERS, pit_scores
from congruence.kernels.rng import stream

FEWEST = 10
"""Rows of a segment, and beside it."""

DRAWS = 199
_AT_ONCE = 40
_COARSEST = 32  # cuts of a feature between its ends, where ranges are finer
_GROWTH = 1.4
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

_TINY = 1e-12


@dataclass(frozen=True)
class Range:
    """``above`` < value <= ``up_to`` of a feature of numbers, or rows that have (or do not have) a word."""

    feature: str
    above: float = -np.inf
    up_to: float = np.inf
    word: str | None = None
    is_not: bool = False


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


@dataclass(frozen=True)
class Feature:
    """A column of numbers (n,), NaN where missing, or of words.

    Attributes:
        name: of the column.
        values: numbers, or texts.
    """

    name: str
    values: Array = field(repr=False)

    @property
    def is_ordered(self) -> bool:
        """Whether it is of numbers."""
        return self.values.dtype.kind == "f"

    @cached_property
    def cells(self) -> tuple[Array, Array]:
        """The cell of each row, -1 where missing, (n,); and the largest value, or the word, of each cell."""
        if not self.is_ordered:
            words, codes = np.unique(self.values, return_inverse=True)
            return codes.reshape(-1), words
        known = np.sort(self.values[~np.isnan(self.values)])
        ends = known[_cuts(len(known)) - 1] if len(known) else known
        ends = np.unique(np.append(ends, known[-1:]))
        return np.where(np.isnan(self.values), -1, np.searchsorted(ends, self.values)), ends

    @cached_property
    def parts(self) -> tuple[Array, Array]:
        """First and last cell of every range that is tried, (q,) each."""
        count = len(self.cells[1])
        if not self.is_ordered:
            return np.arange(count), np.arange(count)
        return np.triu_indices(count)

    def sums(self, values: Array) -> Array:
        """Of values (n, r) over the rows of every range, (q, r)."""
        codes, ends = self.cells
        rows = np.flatnonzero(codes >= 0)
        table = csr_matrix((np.ones(len(rows), dtype=values.dtype), (codes[rows], rows)), (len(ends), len(codes)))
        totals = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(table @ values, axis=0, dtype=np.float64)])
        first, last = self.parts
        return np.asarray(totals[last + 1] - totals[first])

    def range_of(self, part: int, *, complement: bool) -> Range:
        """The range of a number, or what lies outside of it, of which it is one: of two words the other."""
        ends = self.cells[1]
        first, last = self.parts[0][part], self.parts[1][part]
        if not self.is_ordered and complement and len(ends) == 2:
            return Range(self.name, word=str(ends[1 - first]))
        if not self.is_ordered:
            return Range(self.name, word=str(ends[first]), is_not=complement)
        above = float(ends[first - 1]) if first else -np.inf
        up_to = float(ends[last]) if last + 1 < len(ends) else np.inf
        if complement and np.isinf(above) != np.isinf(up_to):
            above, up_to = (up_to, np.inf) if np.isinf(above) else (-np.inf, above)
        return Range(self.name, above, up_to)

    def holds(self, range_: Range) -> Array:
        """Which rows are in a range, (n,)."""
        if not self.is_ordered:
            return np.asarray((self.values == range_.word) != range_.is_not)
        with np.errstate(invalid="ignore"):
            return np.asarray((self.values > range_.above) & (self.values <= range_.up_to))


def _cuts(n: int) -> Array:
    """Numbers of sorted rows after which a feature is cut: 10, 14, 20, ... from either end, and evenly between."""
    near = FEWEST * _GROWTH ** np.arange(64)
    near = near[near < n / _COARSEST * 2.0].astype(int)
    found = np.concatenate([near, n - near, np.linspace(0, n, _COARSEST + 1)[1:-1].astype(int)])
    return np.unique(found[(found >= FEWEST) & (found <= n - FEWEST)])


@dataclass(frozen=True)
class SearchedRows:
    """The scores of n rows, their variances if the version is the truth, and draws of them.

    Attributes:
        scores: (n, 4).
        variance: (n, 4).
        draw: scores of some draws, (n, 4, D), from their number and the first of them.
    """

    scores: Array = field(repr=False)
    variance: Array = field(repr=False)
    draw: Callable[[int, int], Array] = field(repr=False)

    @classmethod
    def of(
        cls, pit: Array, jumps: JumpScores | None = None, blocks: DependentBlocks | None = None, *, seed: int = 0
    ) -> SearchedRows:
        """Of PIT values (n,), or the scores over the jumps or cells of what is stated; by blocks of dependent rows."""
        scores = pit_scores(pit) if jumps is None else jumps.values
        variance = np.ones_like(scores) if jumps is None else jumps.variance

        def drawn(count: int, first: int) -> Array:
            rng = stream(seed, "null of segments", first)
            if jumps is None or (jumps.cells is not None and len(jumps.cells.ends) == 1):
                return np.stack([scores[rng.permutation(len(scores))] for _ in range(count)], axis=2)
            return jumps.drawn(rng.random((len(scores), count)))

        if blocks is None:
            return cls(scores, variance, drawn)
        centred = scores - scores.mean(axis=0)
        apart = centred * enlargements(blocks.sums(centred))
        return cls(
            scores,
            variance,
            lambda count, first: apart[:, :, None] * blocks.signs(count, seed, first)[blocks.labels, None],
        )


@dataclass(frozen=True)
class _Sums:
    """What forms of any rows need of all: centred scores (n, 4, ...), and what they and their variances sum to."""

    centred: Array
    total: Array
    ratio: Array

    @classmethod
    def of(cls, scores: Array, variance: Array) -> _Sums:
        total = variance.sum(axis=0).reshape(-1, *(1,) * (scores.ndim - 2))
        centred = scores - scores.mean(axis=0)
        return cls(centred, total, np.sum(centred**2, axis=0) / total)

    def forms(self, sums: Array, variance: Array) -> Array:
        """z^2 of each order from sums of scores and of variances, (q, 4, ...) each."""
        spread = variance.reshape(*variance.shape, *(1,) * (sums.ndim - 2))
        return np.asarray(sums**2 / np.maximum(spread * (1.0 - spread / self.total) * self.ratio, _TINY))


class _Search:
    """Forms of every range of all features, for scores as observed or drawn."""

    def __init__(self, features: Sequence[Feature], variance: Array) -> None:
        rows = np.ones((len(variance), 1))
        self.features, self.variance = list[Feature](), variance
        self._parts: list[tuple[Array, Array]] = []
        self._classes: list[Array] = []
        for feature in features:
            count = feature.sums(rows)[:, 0]
            # What lies beside a larger range at an end is a smaller one; beside a word there are several.
            most = len(variance) // 2 if feature.is_ordered else len(variance) - FEWEST
            usable = np.flatnonzero((count >= FEWEST) & (count <= most))
            if len(usable):
                self.features.append(feature)
                self._parts.append((usable, feature.sums(variance)[usable]))
                smaller = np.minimum(count[usable], len(variance) - count[usable])
                self._classes.append(np.log2(smaller / FEWEST).astype(int))
        self.classes = np.unique(np.concatenate(self._classes)) if self._classes else np.empty(0, dtype=int)

    def forms(self, number: int, whole: _Sums) -> Array:
        """z^2 of every range of a feature, (q, 5, D), for scores (n, 4, D): of each order, and of all together."""
        n, orders, draws = whole.centred.shape
        usable, variance = self._parts[number]
        sums = self.features[number].sums(whole.centred.reshape(n, -1))[usable].reshape(-1, orders, draws)
        squares = whole.forms(sums, variance)
        return np.concatenate([squares, squares.sum(axis=1, keepdims=True)], axis=1)

    def largest(self, scores: Array) -> Array:
        """The largest form of each size class, (classes, 5, D)."""
        found = np.zeros((len(self.classes), len(ORDERS) + 1, scores.shape[2]))
        whole = _Sums.of(scores, self.variance)
        for number, classes in enumerate(self._classes):
            forms = self.forms(number, whole)
            for place, size in enumerate(self.classes):
                if np.any(classes == size):
                    found[place] = np.maximum(found[place], forms[classes == size].max(axis=0))
        return found

    def best(self, scores: Array, place: int, order: int) -> tuple[int, int]:
        """Number of the feature, and of its range, whose form of an order is the largest of a size class."""
        found, whole = (-1.0, 0, 0), _Sums.of(scores[:, :, None], self.variance)
        for number, classes in enumerate(self._classes):
            forms = self.forms(number, whole)[:, order, 0]
            forms[classes != self.classes[place]] = -1.0
            part = int(np.argmax(forms))
            found = max(found, (float(forms[part]), number, int(self._parts[number][0][part])))
        return found[1], found[2]


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
    search = _Search(features, rows.variance)
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
        ranges, inside = _segment(search, scores, rows.variance, int(place), int(order))
        judged_by = _judged_by(search, ranges, scores, rows.variance)
        found.append(FoundSegment(ranges, np.flatnonzero(inside), p_value, judged_by))
        outside = scores[~inside].mean(axis=0)
        scores[inside] += outside - scores[inside].mean(axis=0)
    return found


def _segment(
    search: _Search, scores: Array, variance: Array, place: int, order: int
) -> tuple[tuple[Range, ...], Array]:
    """The range of the largest form, its ends moved to where the form is largest; or where it lies within the range."""
    number, part = search.best(scores, place, order)
    feature = search.features[number]
    chosen, other = (feature.range_of(part, complement=complement) for complement in (False, True))
    if np.isfinite([chosen.above, chosen.up_to]).all():
        chosen, other = _with_one_end(feature, chosen, scores, variance)
    chosen = max(chosen, other, key=lambda each: _size(scores, variance, feature.holds(each)))
    if feature.is_ordered:
        everywhere = np.ones(len(scores), dtype=bool)
        chosen = _rounded(feature, _sharpened(feature, chosen, scores, variance), everywhere)
    inside, whole = feature.holds(chosen), _Sums.of(scores, variance)
    held = inside[:, None] * np.hstack([np.ones((len(scores), 1)), whole.centred, variance])
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
    return ((chosen,), inside) if _is_wrong_alike(scores, inside, both) else ((chosen, narrower), both)


def _with_one_end(feature: Feature, chosen: Range, scores: Array, variance: Array) -> tuple[Range, Range]:
    """The range without the end that adds less, and what lies outside; as it is, twice, where both ends add much."""
    whole = _Sums.of(scores, variance)

    def form(of: Range) -> float:
        held = feature.holds(of)
        return float(whole.forms(whole.centred[held].sum(axis=0)[None], variance[held].sum(axis=0)[None]).sum())

    up_to = replace(chosen, above=-np.inf), replace(chosen, above=chosen.up_to, up_to=np.inf)
    above = replace(chosen, up_to=np.inf), replace(chosen, above=-np.inf, up_to=chosen.above)
    simpler = max(up_to, above, key=lambda each: form(each[0]))
    return simpler if form(simpler[0]) > form(chosen) - _SIMPLER else (chosen, chosen)


def _judged_by(search: _Search, ranges: tuple[Range, ...], scores: Array, variance: Array) -> Array:
    """See ``FoundSegment.judged_by``; all rows where the ends hang on so few that these would be other rows."""
    by_name = {feature.name: feature for feature in search.features}
    chosen, folds = np.zeros(len(scores), dtype=bool), np.arange(len(scores)) % _FOLDS
    for fold in range(_FOLDS):
        inside, others = np.ones(len(scores), dtype=bool), folds != fold
        for part in ranges:
            feature = by_name[part.feature]
            if feature.is_ordered:
                seen = np.flatnonzero(others & inside)
                part = _sharpened(replace(feature, values=feature.values[seen]), part, scores[seen], variance[seen])
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


def _sharpened(feature: Feature, chosen: Range, scores: Array, variance: Array) -> Range:
    """The range with each end that it has moved to where the form is largest."""
    whole = _Sums.of(scores, variance)
    for is_low in (True, False):
        if np.isinf(chosen.above if is_low else chosen.up_to):
            continue
        free = replace(chosen, above=-np.inf) if is_low else replace(chosen, up_to=np.inf)
        rows = np.flatnonzero(feature.holds(free))
        rows = rows[np.argsort(feature.values[rows] * (-1.0 if is_low else 1.0), kind="stable")]
        values = feature.values[rows]
        forms = whole.forms(np.cumsum(whole.centred[rows], axis=0), np.cumsum(variance[rows], axis=0)).sum(axis=1)[:-1]
        forms[: FEWEST - 1] = 0.0
        forms[max(len(scores) - FEWEST, 0) :] = 0.0
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
        if np.count_nonzero((among & feature.holds(found)) != held) <= _MOVED * np.count_nonzero(held):
            return found
    return chosen


def _size(scores: Array, variance: Array, inside: Array) -> float:
    """How large the mean scores of some rows are."""
    return float(np.sum(scores[inside].mean(axis=0) ** 2 / np.maximum(variance[inside].mean(axis=0), _TINY)))
