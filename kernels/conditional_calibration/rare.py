r"""What smooth scores of PIT values do not see: targets far out in the tails, and values that many targets share.

*Extremes.* One target in a hundred that lies eight predicted spreads away leaves the means of PIT scores where they
are. So targets are counted whose tail probability min(P(Y <= y), P(Y >= y)) is at most a, for a few small a, beside the
sum of the probabilities of that under the predictions (2 a for a continuous one).

*Masses.* At each value v that at least 1 % of the targets, and ten, share, their number is set beside the sum of
P(v - delta / 2 < Y <= v + delta / 2), with the step delta to which targets are rounded: of rounded targets of a
continuous distribution the two agree, and of targets that are exactly 0 under a continuous prediction they do not.
Between the levels at which quantiles are stated the same is asked of each cell: one level that is wrong moves two of
them.

Both numbers are sums of independent events with probabilities p_i if the predictions are true. Their tails are bounded
by those of a binomial distribution with the mean of the p_i (Hoeffding 1956): exact where all p_i are equal, and at
most too large elsewhere. Over levels and over values by Bonferroni.

What a prediction does not state is not asked of it. The rank among m draws has tail probabilities in steps of
1 / (m + 1); K levels state those of their cells; masses on the values of a weighted sample are those of an
interpolation, whose tails nobody states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import bdtr, bdtrc, ndtr, ndtri

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, DependentBlocks, two_sided_p_value
from congruence.kernels.distributions import Distribution
from congruence.kernels.pit import cell_step

TAIL_LEVELS = (1e-3, 1e-4, 1e-6, 1e-9)
"""Of tail probabilities, at which targets are counted."""

SHARE, FEWEST = 0.01, 10
"""Of the targets, that share a value at which masses are compared."""

MOST_ROWS = 100_000
"""Of more rows, evenly spread ones show the masses: shares are then known to .1 %."""

WORTH_NAMING = 0.05
"""A relative difference of shares below which a mass, however certain, hardly matters."""

_LOCAL, _LOCAL_LEVEL = 1.5, 1e-3
"""By which factor, and beyond what chance, targets at a value differ from those at its neighbours on the grid where the
value itself is at fault, and not a bias or a spread."""

_LONELY = 0.9  # of what is expected at a value and its neighbours, from which the neighbours say nothing

_CLEAR = 0.01  # of the targets beyond a level, up to which chance puts none there
_SAME = 1e-9  # relative, of a probability that is a level, and of a value that targets share
_BLOCK = 2**16
_ENTRIES = 2**22
_NAMED = 20


@dataclass(frozen=True)
class TailCount:
    """Targets beyond one level of tail probability.

    Attributes:
        level: a.
        observed: how many targets have a tail probability of at most a.
        expected: how many were to be expected.
        p_value: of at least as many.
    """

    level: float
    observed: int
    expected: float
    p_value: float


@dataclass(frozen=True)
class Extremes:
    """Targets in the far tails of their predictions, at the levels that these state.

    Attributes:
        counts: by level, from the largest on; none where no level is stated.
        rows: that were looked at.
        farthest: numbers of the rows with the smallest tail probabilities, the smallest first, at most 20.
        above: how many of the targets beyond the largest level lie above their predictions.
        blocks: of rows that depend on each other, of which those with such a target are counted; None of independent
            rows.
    """

    counts: tuple[TailCount, ...]
    rows: int
    farthest: Array = field(repr=False)
    above: int = 0
    blocks: int | None = None

    @property
    def p_value(self) -> float | None:
        """Over all levels (Bonferroni); None where none is stated."""
        return min(1.0, len(self.counts) * min(count.p_value for count in self.counts)) if self.counts else None

    @property
    def most(self) -> TailCount | None:
        """The level at which the most is wrong."""
        return min(self.counts, key=lambda count: (count.p_value, -count.level), default=None)

    def beyond(self, shift: float, factor: float, level: float = 1e-3) -> TailCount | None:
        """The level at which ``shift`` and ``factor`` of a normal distribution leave the most unexplained, if any.

        A version whose spread is too small by a half has many targets far out, and no outliers.
        """
        found, clear = [], []
        for count in self.counts:
            reach = -ndtri(count.level)
            chance = float(ndtr((-reach - shift) / factor) + ndtr((shift - reach) / factor))
            chance = max(chance, count.expected / self.rows)
            found.append((_at_least(count.observed, self.rows, chance), count))
            if found[-1][0] <= level and chance * self.rows <= _CLEAR * count.observed:
                clear.append(count)
        if clear:  # of levels at which chance puts none, that which most are beyond, and the smallest of these
            return max(clear, key=lambda count: (count.observed, -count.level))
        p_value, most = min(found, key=lambda each: (each[0], -each[1].level), default=(1.0, None))
        return most if p_value <= level else None


def extremes(
    y: Array,
    predictive: Distribution,
    step: float | None = None,
    blocks: DependentBlocks | None = None,
    beside: Sequence[Mass] = (),
) -> Extremes:
    """Count the targets in the far tails of their predictions.

    Of rows that depend on each other whole blocks are counted that hold one: a block's probability of it is at most the
    sum of its rows', however these depend on each other.

    Args:
        y: targets (n,).
        predictive: n distributions.
        step: to which targets are rounded (``rounding.resolution``): a target is as near as its cell. Of draws its tail
            probabilities are those of its rank, and of stated cells those up to the ends of its own.
        blocks: of rows that depend on each other.
        beside: values at which too many targets lie (``Masses.faults``): these are not counted again here.
    """
    levels = np.array(TAIL_LEVELS if predictive.states_tails else [])
    half = 0.0 if step is None or predictive.has_steps else step / 2.0
    chances, tails, are_above = [np.empty((0, len(levels)))], np.empty(len(y)), np.empty(len(y), dtype=bool)
    for rows in row_slices(len(y), _BLOCK):
        predicted = predictive[rows]
        chance = _tail_chances(predicted, y[rows], levels)
        chances.append(chance if blocks is not None else chance.sum(axis=0, keepdims=True))
        below, above = predicted.pit_range(y[rows] + half)[1], 1.0 - predicted.pit_range(y[rows] - half)[0]
        tails[rows], are_above[rows] = np.minimum(below, above), above < below
    tails[np.isin(y, [mass.value for mass in beside])] = 1.0
    counts = []
    for level, chance in zip(levels, np.concatenate(chances).T, strict=True):
        if np.any(chance > 0.0):
            found = tails <= level * (1.0 + _SAME)
            counts.append(_tail_count(float(level), found, chance, blocks))
    beyond = tails <= TAIL_LEVELS[0]
    far = np.flatnonzero(beyond) if counts else np.empty(0, dtype=np.intp)
    far = far[np.argsort(tails[far], kind="stable")[:_NAMED]]
    kept = None if blocks is None else blocks.count
    return Extremes(tuple(counts), len(y), far, int(np.count_nonzero(are_above & beyond)), kept)


def _tail_chances(predicted: Distribution, y: Array, levels: Array) -> Array:
    """P(tail probability <= level) at each level, (n, L), if predictions are true; 0 where these do not state it."""
    if predicted.draws is not None:
        places = predicted.draws.shape[1] + 1.0
        return np.broadcast_to(2.0 * np.floor(levels * places * (1.0 + _SAME)) / places, (len(y), len(levels)))
    reached = levels * (1.0 + _SAME)
    cells = predicted.cells(y)
    if cells is not None:
        below = np.where(cells.ends[:, None] <= reached[:, None], cells.ends[:, None], 0.0).max(axis=2)
        above = np.where(1.0 - cells.starts[:, None] <= reached[:, None], 1.0 - cells.starts[:, None], 0.0).max(axis=2)
        return np.broadcast_to(below + above, (len(y), len(levels)))
    if not predicted.may_jump:
        return np.broadcast_to(2.0 * levels, (len(y), len(levels)))
    first, last = predicted.quantile(levels[None, :]), predicted.quantile(1.0 - levels[None, :])
    below, above = predicted.cdf(first), 1.0 - predicted.cdf_left(last)
    below = np.where(below <= reached, below, predicted.cdf_left(first))
    return np.asarray(below + np.where(above <= reached, above, 1.0 - predicted.cdf(last)))


def _tail_count(level: float, found: Array, chance: Array, blocks: DependentBlocks | None) -> TailCount:
    observed, expected = int(np.count_nonzero(found)), float(np.sum(chance))
    if blocks is None:
        return TailCount(level, observed, expected, _at_least(observed, len(found), expected / len(found)))
    held = int(np.count_nonzero(blocks.sums(found)))
    chances = np.minimum(blocks.sums(chance), 1.0)
    return TailCount(level, observed, expected, _at_least(held, blocks.count, float(np.mean(chances))))


def _at_least(observed: int, n: int, chance: float) -> float:
    """A bound of P(N >= observed) for a sum N of n independent events with the mean probability ``chance``."""
    if observed < n * chance + 1.0:  # where the binomial distribution bounds nothing: of one alone, Boole's inequality
        return min(1.0, n * chance) if observed > 0 else 1.0
    return float(bdtrc(observed - 1, n, chance))


def _at_most(observed: int, n: int, chance: float) -> float:
    """The same of P(N <= observed)."""
    return 1.0 if observed > n * chance - 1.0 else float(bdtr(observed, n, chance))


@dataclass(frozen=True)
class Mass:
    """How many targets share a value, and how many the predictions put there.

    Attributes:
        value: v.
        observed, expected: numbers of targets.
        rows: of how many.
        p_value: of this value alone, two-sided.
        is_local: whether its neighbours on the grid of the targets are not wrong alike.
    """

    value: float
    observed: int
    expected: float
    rows: int
    p_value: float
    is_local: bool

    @property
    def observed_share(self) -> float:
        """Of the targets."""
        return self.observed / self.rows

    @property
    def expected_share(self) -> float:
        """Of the targets, by the predictions."""
        return self.expected / self.rows


@dataclass(frozen=True)
class Masses:
    """The values that many targets share, the largest difference of shares first.

    Attributes:
        at: each of them.
        tried: values over which p-values are corrected.
        cells: p-value of each cell between stated levels, where all rows have the same; none of other predictions.
        blocks: of rows that depend on each other; None of independent rows.
    """

    at: tuple[Mass, ...]
    tried: int
    cells: tuple[float, ...] = ()
    blocks: int | None = None

    @property
    def p_value(self) -> float | None:
        """Over all values and cells (Bonferroni); None where there are none of either."""
        found = [mass.p_value for mass in self.at] + list(self.cells)
        return min(1.0, (self.tried * bool(self.at) + len(self.cells)) * min(found)) if found else None

    def faults(self, level: float = 0.05) -> tuple[Mass, ...]:
        """Those that differ by more than chance, by enough to be named, and from their neighbours."""
        return tuple(
            mass
            for mass in self.at
            if self.tried * mass.p_value <= level
            and abs(mass.observed - mass.expected) >= WORTH_NAMING * max(mass.expected, WORTH_NAMING * mass.rows)
            and mass.is_local
        )


def masses(
    y: Array, predictive: Distribution, step: float | None = None, blocks: DependentBlocks | None = None
) -> Masses | None:
    """Compare the masses at the values that many targets share; None where the predictions state none.

    Args:
        y: targets (n,).
        predictive: n distributions.
        step: to which targets are rounded (``rounding.resolution``).
        blocks: of rows that depend on each other: p-values are then those of sums over blocks.
    """
    if predictive.stated == "cells" and predictive.quantile_levels is None:
        return None
    if len(y) > MOST_ROWS:
        chosen = np.linspace(0, len(y) - 1, MOST_ROWS).astype(np.intp)
        y, predictive, blocks = y[chosen], predictive[chosen], None if blocks is None else blocks.of_rows(chosen)
    found, counts = np.unique(y, return_counts=True)
    least = max(FEWEST, SHARE * len(y))
    shared = found[counts >= least]
    tried = int(np.count_nonzero(counts >= least / 4.0))
    near = _SAME * max(1e-300, float(np.max(np.abs(y), initial=0.0)))
    half = near if step is None else step / 2.0
    values = shared if step is None else np.unique(np.concatenate([shared, shared - step, shared + step]))
    values = values[np.concatenate([[True], np.diff(values) > near])] if len(values) else values
    sums = np.zeros((3, len(values)))  # observed, and the least and the most that is expected
    by_block = np.zeros((2, 0 if blocks is None else blocks.count, len(values)))
    entries = len(values) * (1 if predictive.quantile_levels is None else len(predictive.quantile_levels))
    for rows in row_slices(len(y), _ENTRIES / entries) if len(values) else ():
        part, predicted = y[rows], predictive[rows]
        is_there = np.abs(part[:, None] - values) <= (near if step is None else half * (1.0 - 1e-6))
        least_chance, most_chance = _chances(predicted, values, half, is_there)
        sums += [is_there.sum(axis=0), least_chance.sum(axis=0), most_chance.sum(axis=0)]
        if blocks is not None:
            for total, chance in zip(by_block, (least_chance, most_chance), strict=True):
                np.add.at(total, blocks.labels[rows], is_there - chance)
    expected = _expected(predictive, sums)
    made = []
    for value in shared:
        place = int(np.argmin(np.abs(values - value)))
        observed, low, high = int(sums[0, place]), float(sums[1, place]), float(sums[2, place])
        p_value = _p_value(observed, low, high, len(y), None if blocks is None else by_block[:, :, place])
        local = step is None or _is_local(values, value, step, sums[0], expected)
        stated = float(expected[place])
        if predictive.quantile_levels is not None:  # between two bounds: the nearer one
            stated = min(max(float(observed), low), high)
        made.append(Mass(float(value), observed, stated, len(y), p_value, local))
    made.sort(key=lambda mass: -abs(mass.observed - mass.expected))
    cells = _cells(y, predictive) if blocks is None else ()
    return Masses(tuple(made), tried, cells, None if blocks is None else blocks.count)


def _cells(y: Array, predictive: Distribution) -> tuple[float, ...]:
    """The p-value of the number of targets in each cell; none where cells differ by row, as beside atoms."""
    cells = predictive.cells(y, cell_step(y, predictive))
    if cells is None or len(cells.ends) != 1 or len(y) == 0:
        return ()
    chances, n = np.diff(cells.ends[0], prepend=0.0), len(y)
    counts = np.bincount(cells.place, minlength=len(chances))
    return tuple(_p_value(int(k), n * float(p), n * float(p), n, None) for k, p in zip(counts, chances, strict=True))


def _chances(predicted: Distribution, values: Array, half: float, is_there: Array) -> tuple[Array, Array]:
    """The least and the most that each row says of P(v - half < Y <= v + half), (n, k) each.

    Of m draws the probability that the target is the one of m + 1 that lies there, given how many of them do: draws and
    target are exchangeable.
    """
    if predicted.draws is not None:
        there = sum(np.abs(column[:, None] - values) <= half for column in predicted.draws.T)
        chance = (there + is_there) / (predicted.draws.shape[1] + 1.0)
        return chance, chance
    levels = predicted.quantile_levels
    if levels is None:
        chance = np.maximum(predicted.cdf((values + half)[None, :]) - predicted.cdf((values - half)[None, :]), 0.0)
        return chance, chance
    at = predicted.quantile(levels[None, :])[:, None, :]
    low, high = (values - half)[:, None], (values + half)[:, None]
    padded = np.concatenate([[0.0], levels, [1.0]])
    up_to_high, below_low = np.count_nonzero(at <= high, axis=2), np.count_nonzero(at <= low, axis=2)
    return np.maximum(padded[up_to_high] - padded[below_low + 1], 0.0), padded[up_to_high + 1] - padded[below_low]


def _expected(predictive: Distribution, sums: Array) -> Array:
    """Numbers of targets that the predictions put at each value, (k,)."""
    if predictive.draws is None:
        return np.asarray((sums[1] + sums[2]) / 2.0)
    members = predictive.draws.shape[1]
    return np.asarray(np.maximum((sums[1] * (members + 1.0) - sums[0]) / members, 0.0))


def _p_value(observed: int, low: float, high: float, n: int, by_block: Array | None) -> float:
    """Two-sided, that the number is between what is expected at least and at most."""
    if by_block is None:
        return min(1.0, 2.0 * min(_at_least(observed, n, min(high / n, 1.0)), _at_most(observed, n, low / n)))
    count = by_block.shape[1]
    if count < FEWEST_BLOCKS or low <= observed <= high:
        return 1.0
    sums = by_block[1 if observed > high else 0]
    error = float(np.sqrt(np.sum((sums - sums.mean()) ** 2) * count / (count - 1.0)))
    return two_sided_p_value(float(np.sum(sums)) / max(error, 1e-300), count)


def _is_local(values: Array, value: float, step: float, observed: Array, expected: Array) -> bool:
    """Whether the targets at a value are more or fewer than its share of those there and at its neighbours."""
    there = np.abs(values - value) < step / 4.0
    near = np.abs(values - value) < 1.25 * step
    found, among = int(observed[there].sum()), int(observed[near].sum())
    share = float((expected[there].sum() + 1e-3) / (expected[near].sum() + 1e-3))
    if found == among or share >= 1.0:
        return found < among or share < _LONELY
    odds = found / (among - found) / (share / (1.0 - share))
    by_chance = min(float(bdtrc(found - 1, among, share)), float(bdtr(found, among, share)))
    return not 1.0 / _LOCAL < odds < _LOCAL and by_chance <= _LOCAL_LEVEL
