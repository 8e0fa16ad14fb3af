"""What a search for segments looks through: every range of every feature, and the trend along each (``segments``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix
from scipy.stats import rankdata

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import JumpScores
from congruence.kernels.dependence.blocks import DependentBlocks, enlargements
from congruence.kernels.pit import ORDERS, pit_scores
from congruence.kernels.rng import stream

FEWEST = 10
"""Rows of a segment, and beside it."""

TREND = -1
"""The size class of trends, which are of all rows."""

TINY = 1e-12
_COARSEST = 32  # cuts of a feature between its ends, where ranges are finer
_GROWTH = 1.4


@dataclass(frozen=True)
class Range:
    """``above`` < value <= ``up_to`` of a feature of numbers, or rows that have (or do not have) a word."""

    feature: str
    above: float = -np.inf
    up_to: float = np.inf
    word: str | None = None
    is_not: bool = False


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
        n, near = len(known), FEWEST * _GROWTH ** np.arange(64)
        near = near[near < n / _COARSEST * 2.0].astype(int)  # 10, 14, 20, ... from either end, and evenly between
        cuts = np.concatenate([near, n - near, np.linspace(0, n, _COARSEST + 1)[1:-1].astype(int)])
        cuts = cuts[(cuts >= FEWEST) & (cuts <= n - FEWEST)]
        ends = np.unique(np.append(known[cuts - 1], known[-1:]))
        return np.where(np.isnan(self.values), -1, np.searchsorted(ends, self.values)), ends

    @cached_property
    def parts(self) -> tuple[Array, Array]:
        """First and last cell of every range that is tried, (q,) each."""
        count = len(self.cells[1])
        if not self.is_ordered:
            return np.arange(count), np.arange(count)
        return np.triu_indices(count)

    @cached_property
    def ranks(self) -> Array:
        """u: the rank of each row among those that have a value, of mean 0 and variance 1; 0 of the others, (n,)."""
        known = ~np.isnan(self.values)
        found = np.zeros(len(self.values))
        found[known] = rankdata(self.values[known])
        found[known] -= found[known].mean() if known.any() else 0.0
        return found / max(float(np.sqrt(np.mean(found**2))), TINY)

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
        above = -np.inf
        if first:  # between values: of "0.3 to 0.7" a reader takes 0.3 as well
            following = self.values[self.values > ends[first - 1]].min()
            above = float(min(0.5 * (ends[first - 1] + following), np.nextafter(following, -np.inf)))
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


class Sums:
    """Scores of all rows (n, 4, ...) and their variances (n, 4), with what forms of some of the rows need of all."""

    def __init__(self, scores: Array, variance: Array) -> None:
        self.scores, self.variance = scores, variance
        self.centred = scores - scores.mean(axis=0)
        self.total = variance.sum(axis=0).reshape(-1, *(1,) * (scores.ndim - 2))
        self.ratio = np.sum(self.centred**2, axis=0) / self.total

    def forms(self, sums: Array, variance: Array) -> Array:
        """z^2 of each order from sums of scores and of variances, (q, 4, ...) each."""
        spread = variance.reshape(*variance.shape, *(1,) * (sums.ndim - 2))
        return np.asarray(sums**2 / np.maximum(spread * (1.0 - spread / self.total) * self.ratio, TINY))

    def form(self, inside: Array) -> float:
        """z^2 of all orders together, of the rows of a mask."""
        sums, variance = (values[inside].sum(axis=0)[None] for values in (self.centred, self.variance))
        return float(self.forms(sums, variance).sum())

    def size(self, inside: Array) -> float:
        """How large the mean scores of the rows of a mask are."""
        mean, variance = (values[inside].mean(axis=0) for values in (self.scores, self.variance))
        return float(np.sum(mean**2 / np.maximum(variance, TINY)))


class Search:
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
        self.ordered = [number for number, feature in enumerate(self.features) if feature.is_ordered]
        self._ranks = np.array([self.features[number].ranks for number in self.ordered], dtype=np.float32)
        trends = [[TREND]] if self.ordered else []
        self.classes = np.unique(np.concatenate([*trends, *self._classes])) if self._classes else np.empty(0, dtype=int)

    def forms(self, number: int, whole: Sums) -> Array:
        """z^2 of every range of a feature, (q, 5, D), for scores (n, 4, D): of each order, and of all together."""
        n, orders, draws = whole.centred.shape
        usable, variance = self._parts[number]
        sums = self.features[number].sums(whole.centred.reshape(n, -1))[usable].reshape(-1, orders, draws)
        squares = whole.forms(sums, variance)
        return np.concatenate([squares, squares.sum(axis=1, keepdims=True)], axis=1)

    def trends(self, whole: Sums) -> Array:
        """z^2 of the trend along every ordered feature, (k, 5, D), for scores (n, 4, D)."""
        n, orders, draws = whole.centred.shape
        sums = (self._ranks @ whole.centred.reshape(n, -1)).reshape(-1, orders, draws)
        spread = (self._ranks**2 @ self.variance)[:, :, None] * whole.ratio
        squares = np.asarray(sums**2 / np.maximum(spread, TINY), dtype=np.float64)
        return np.concatenate([squares, squares.sum(axis=1, keepdims=True)], axis=1)

    def largest(self, scores: Array) -> Array:
        """The largest form of each size class, trends first, (classes, 5, D)."""
        found = np.zeros((len(self.classes), len(ORDERS) + 1, scores.shape[2]))
        whole = Sums(scores, self.variance)
        if self.ordered:
            found[0] = self.trends(whole).max(axis=0)
        for number, classes in enumerate(self._classes):
            forms = self.forms(number, whole)
            for place, size in enumerate(self.classes):
                if np.any(classes == size):
                    found[place] = np.maximum(found[place], forms[classes == size].max(axis=0))
        return found

    def best(self, scores: Array, place: int, order: int) -> tuple[int, int]:
        """Number of the feature, and of its range, whose form of an order is the largest of a size class.

        Of trends the feature whose trend is the largest, and its range with one end.
        """
        found, whole = (-1.0, 0, 0), Sums(scores[:, :, None], self.variance)
        tried = {number: classes == self.classes[place] for number, classes in enumerate(self._classes)}
        if self.classes[place] == TREND:
            steepest = self.ordered[int(np.argmax(self.trends(whole)[:, order, 0]))]
            (first, last), ends = self.features[steepest].parts, self.features[steepest].cells[1]
            tried = {steepest: ((first == 0) != (last + 1 == len(ends)))[self._parts[steepest][0]]}
        for number, is_tried in tried.items():
            forms = self.forms(number, whole)[:, order, 0]
            forms[~is_tried] = -1.0
            part = int(np.argmax(forms))
            found = max(found, (float(forms[part]), number, int(self._parts[number][0][part])))
        return found[1], found[2]
