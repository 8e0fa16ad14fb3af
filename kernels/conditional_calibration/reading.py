"""Groups of labelled rows, read by their mean PIT scores, whose spread under a true model is known.

Quantiles are read in their own terms, too: how many targets lie at or below each, and between two. A version that
states quantiles at K levels is right where P(Y <= q_k | x) is the level tau_k at every input. So the share of the
targets at or below each quantile is set beside its level, and the share between two quantiles of levels tau and 1 - tau
beside 1 - 2 tau. Whether a group of rows is wrong at all is asked by its mean scores of cells (``JumpScores``), over
all levels together; its coverage says what the fault is.

A target that is equal to a quantile is at or below it. Where many are (zeros, a cap), P(Y <= q_k) is above tau_k even
if q_k is right, and rows whose quantile is such a value do not count for its level (see ``distributions.cells``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import JumpScores, Tally, by_group
from congruence.kernels.conditional_calibration.faults import (
    BIAS,
    MIXED_TAILS,
    SPREAD,
    TAILS,
    Faults,
    faults,
    rank_shift_and_factor,
    scores_of_normals,
)
from congruence.kernels.conditional_calibration.local_reading import sidak
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, DependentBlocks, t_quantile, two_sided_p_value
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import ORDERS, pit_scores, require_pit

_TINY = 1e-12
_TURNS = 32
_LARGEST_BIAS = np.sqrt(3.0)
_LEVEL = 0.05
_SAME = 1e-9  # levels that differ by no more are one
SIMPLEST = 0.8
"""An interval is named before a level whose fault is up to 1 / .8 times as certain: it is what people know."""


@dataclass(frozen=True)
class Place:
    """A slice, region or target, and what its rows say; ``q_value`` over all places that were read."""

    name: str
    q_value: float
    reading: Any


@dataclass(frozen=True)
class GroupReading:
    """What is wrong in a group of labelled rows: a slice, a region, a whole split.

    Attributes:
        rows: how many they are.
        share: of the split.
        p_value: of the group over all four orders.
        order_p_values: of each order, (4,).
        score_errors: standard errors of the mean scores as they are, true model or not, (4,).
        dominant: the name of the dominant fault.
        strength, shift, factor: see ``Faults``.
        unexplained: the mean scores less what the dominant fault explains, (4,); of skew and tails less what shift and
            factor make together, and what places of various spreads do.
        shift_interval, factor_interval: 95 %.
    """

    rows: int
    share: float
    p_value: float
    order_p_values: Array
    score_errors: Array
    dominant: str
    strength: float
    shift: float
    factor: float
    unexplained: Array
    shift_interval: tuple[float, float]
    factor_interval: tuple[float, float]

    def second(self) -> str | None:
        """Another fault that the dominant one leaves unexplained by more than 3.3 standard errors, if any."""
        left = np.abs(self.unexplained) / self.score_errors
        left[ORDERS.index(self.dominant)] = 0.0
        return ORDERS[int(np.argmax(left))] if left.max() > 3.3 else None


def group_reading(
    pit: Any,
    rows: Any | None = None,
    *,
    mixing: float = 0.0,
    blocks: DependentBlocks | None = None,
    members: int | None = None,
) -> GroupReading:
    """Read the scores of some rows by their plain means, whose spread under the truth is known.

    Of rows that depend on each other it is that of sums within blocks; p-values are 1 where the group has fewer than
    ten of them, since so few say nothing.

    Args:
        pit: PIT values of all n reference rows; of counts their ``JumpScores``, which take no random number.
        rows: row numbers or a mask; all by default.
        mixing: variance of the spread score over the places that the group holds, see ``faults``.
        blocks: of all n rows, where they depend on each other.
        members: where the PIT values are those of ranks among so many draws, see ``faults``.

    Raises:
        InvalidInputError: fewer than two rows, or values that are no probabilities.
    """
    values = pit if isinstance(pit, JumpScores) else require_pit(pit)
    some = values if rows is None else values[np.asarray(rows)]
    count = len(some)
    if count < 2:
        raise InvalidInputError(f"rows: a group of {count} rows; a reading needs at least 2, and some 30 to say much")
    scores = some.values if isinstance(some, JumpScores) else pit_scores(some)
    mean, quantile = scores.mean(axis=0), t_quantile(None)
    if blocks is None:
        if_true = np.ones(len(ORDERS))
        if isinstance(some, JumpScores):
            if_true = np.maximum(some.variance.mean(axis=0), _TINY)
        p_values = 2.0 * ndtr(-np.abs(mean) * np.sqrt(count / if_true))
        # Of few rows that happen to agree, the sample spread says nothing: then the truth's.
        squares = scores.T @ scores - count * np.outer(mean, mean)
        covariance = (squares + 4.0 * np.diag(if_true)) / (count + 3.0) / count
    else:
        own = blocks if rows is None else blocks.of_rows(np.asarray(rows))
        covariance = mean_covariance(scores, own)
        known = own.count >= FEWEST_BLOCKS
        ratios = np.abs(mean) / np.sqrt(np.diag(covariance))
        p_values = np.array([two_sided_p_value(ratio, own.effective) if known else 1.0 for ratio in ratios])
        quantile = t_quantile(own.effective)
    # Ranks among few draws tell shapes from spreads less than the scores of a distribution do.
    doubt = 0.0 if members is None else float(np.sqrt(np.mean(np.diag(covariance))))
    fault = faults(mean[None, :], doubt, mixing=mixing, members=members)
    counted = None if members is not None or isinstance(some, JumpScores) else some
    if fault.names == ["tails"] and not _are_tails(counted, fault.strength[0]):
        # Rows that are too wide in some places have such scores, and fewer targets far out.
        fault = faults(mean[None, :], doubt, mixing=np.inf)
    unexplained = fault.unexplained[0]
    if fault.dominant[0] in (BIAS, SPREAD):
        unexplained = mean - _of_shift_and_factor(fault, members)
    unexplained[TAILS] -= np.clip(unexplained[TAILS], 0.0, MIXED_TAILS * mixing)
    if not _are_tails(counted, unexplained[TAILS]):
        unexplained[TAILS] = 0.0
    return GroupReading(
        count,
        count / len(values),
        float(sidak(np.min(p_values), len(ORDERS))),
        p_values,
        np.sqrt(np.diag(covariance)),
        fault.names[0],
        float(fault.strength[0]),
        float(fault.shift[0]),
        float(fault.factor[0]),
        unexplained,
        *_intervals(fault, covariance[:2, :2], quantile, members),
    )


def _of_shift_and_factor(fault: Faults, members: int | None) -> Array:
    """What a shift or a spread explains of four scores, (4,): bias and spread by itself, skew and tails with the other.

    The two together make shapes that neither has alone. The nearest point to all scores would be of another shift where
    the spread is wrong, too.
    """
    shift, factor = float(fault.shift[0]), float(fault.factor[0])
    alone = (shift, 1.0) if fault.dominant[0] == BIAS else (0.0, factor)
    both, own = scores_of_normals(np.array([shift, alone[0]]), np.array([factor, alone[1]]), members)
    return np.asarray(np.where(np.isin(np.arange(len(ORDERS)), (BIAS, SPREAD)), own, both))


def mixed_scores(groups: Sequence[GroupReading], members: int | None = None, *, shifts_alone: bool = False) -> Array:
    """Returns the mean PIT scores of several groups together, (4,), if each were normal with its shift and factor.

    Groups that are too high and too low are wide and have light tails together, groups of various spreads heavy ones.
    """
    shares = np.array([group.share for group in groups])
    factors = np.array([1.0 if shifts_alone else group.factor for group in groups])
    of_each = scores_of_normals(np.array([group.shift for group in groups]), factors, members)
    return np.asarray(shares / shares.sum() @ of_each)


def _are_tails(pit: Array | None, strength: float) -> bool:
    """Whether more values lie beyond the 98 % interval than should, or fewer beyond the 90 % one, if that is known."""
    if pit is None:
        return True
    apart = 2.0 * np.abs(pit - 0.5)
    return bool(np.mean(apart > 0.98) > 0.02 if strength > 0 else np.mean(apart > 0.9) < 0.1)


def mean_covariance(values: Array, blocks: DependentBlocks) -> Array:
    """Of the means of columns (n, c) whose rows depend on each other within blocks, (c, c)."""
    sums = blocks.sums(values - values.mean(axis=0))
    count = blocks.count
    # Of few blocks that happen to agree, as much again as independent rows of a true version would have.
    prior = 4.0 * len(values) / count * np.eye(values.shape[1])
    return np.asarray((sums.T @ sums + prior) * (count / (count + 3.0)) / len(values) ** 2)


def group_readings(
    pit: Any, groups: Mapping[str, Any], blocks: DependentBlocks | None = None, members: int | None = None
) -> tuple[dict[str, GroupReading], dict[str, float]]:
    """``group_reading`` of named groups of rows, and q-values over them.

    Groups of fewer than two rows are left out.
    """
    values = pit if isinstance(pit, JumpScores) else require_pit(pit)
    if isinstance(values, JumpScores):
        values.variance  # noqa: B018 - of all rows once, not for each group that holds them
    return by_group(lambda rows: group_reading(values, rows, blocks=blocks, members=members), groups, 2)


def _intervals(
    fault: Faults, covariance: Array, quantile: float, members: int | None
) -> tuple[tuple[float, float], tuple[float, float]]:
    """95 % intervals of shift and factor: their least and largest values on the ellipse of the scores' errors.

    Of a linear function these are its ends by the delta method. Points that no distribution has, with a bias score
    beyond those of targets that all lie on one side, are left out.
    """
    turns = np.linspace(0.0, 2.0 * np.pi, _TURNS, endpoint=False)
    ellipse = quantile * np.column_stack([np.cos(turns), np.sin(turns)]) @ np.linalg.cholesky(covariance).T
    points = fault.scores[0, [BIAS, SPREAD]] + np.vstack([np.zeros(2), ellipse])
    points[1:] = np.where(np.abs(points[1:, :1]) < _LARGEST_BIAS, points[1:], points[:1])
    ends = [(float(np.min(values)), float(np.max(values))) for values in rank_shift_and_factor(points, members)]
    return ends[0], ends[1]


@dataclass(frozen=True)
class Coverage:
    """Of a level, or of the interval between two: its probability, and how many targets it holds.

    Attributes:
        name: "the 90 % interval", "the 5 % quantile".
        probability: that is stated.
        tally: of the targets, among the rows that count.
        low, high: 95 % interval of their share (Wilson 1927; by blocks where rows depend on each other).
        is_interval: whether between two levels.
    """

    name: str
    probability: float
    tally: Tally
    low: float
    high: float
    is_interval: bool

    @property
    def observed(self) -> float:
        """The share of the targets."""
        return self.tally.observed_share

    @property
    def certainty(self) -> float:
        """The difference in standard errors of a right version."""
        return abs(self.tally.observed - self.tally.expected) / float(np.sqrt(max(self.tally.variance, 1e-300)))


@dataclass(frozen=True)
class LevelReading:
    """How predicted quantiles cover the targets in a group of rows.

    Attributes:
        rows: how many they are.
        share: of the split.
        p_value: of the group over all levels, by its scores.
        levels, intervals: their coverage, intervals the widest first. Those that no row counts for are left out.
    """

    rows: int
    share: float
    p_value: float
    levels: tuple[Coverage, ...]
    intervals: tuple[Coverage, ...]

    @property
    def faults(self) -> tuple[Coverage, ...]:
        """What is off by more than chance and by enough to be named, the most certain first; intervals before levels.

        Of levels one is named, and of intervals one: the others go with them.
        """
        level = _LEVEL / max(len(self.levels), 1)
        off = [
            max(some, key=lambda each: each.certainty)
            for some in (
                [each for each in self.intervals if each.tally.is_off(level)],
                [each for each in self.levels if each.tally.is_off(level)],
            )
            if some
        ]
        return tuple(sorted(off, key=lambda each: -each.certainty * (1.0 if each.is_interval else SIMPLEST)))

    @property
    def is_off(self) -> bool:
        """Whether there is a fault worth naming."""
        return bool(self.faults)

    @property
    def size(self) -> float:
        """What the fault weighs: its squared difference of shares, for the rows that it concerns."""
        return max((self.share * (each.observed - each.probability) ** 2 for each in self.faults), default=0.0)


def level_reading(jumps: JumpScores, chosen: Any | None = None, blocks: DependentBlocks | None = None) -> LevelReading:
    """Read some rows, by their numbers or a mask; all by default.

    Args:
        jumps: the scores of a version that states quantiles, over the cells between these.
        chosen: which of them.
        blocks: of all rows, where they depend on each other; p-values are 1 where the chosen have fewer than ten.
    """
    part = jumps if chosen is None else jumps[np.asarray(chosen)]
    own = blocks if blocks is None or chosen is None else blocks.of_rows(np.asarray(chosen))
    stated, cells = part.levels, part.cells
    assert stated is not None
    assert cells is not None
    end = cells.range[1]
    below = [end <= tau for tau in stated]
    counts = [np.broadcast_to(cells.ends[:, k] == tau, len(end)) for k, tau in enumerate(stated)]
    levels = [
        _coverage(f"the {100.0 * tau:.4g} % quantile", float(tau), below[k], counts[k], own, is_interval=False)
        for k, tau in enumerate(stated)
    ]
    intervals, gaps = [], np.abs(stated[:, None] + stated - 1.0)
    for low, high in enumerate(np.argmin(gaps, axis=1)):
        if low < high and gaps[low, high] <= _SAME:
            probability = float(stated[high] - stated[low])
            name, inside = f"the {100.0 * probability:.4g} % interval", below[high] & ~below[low]
            intervals.append(_coverage(name, probability, inside, counts[low] & counts[high], own, is_interval=True))
    read = group_reading(jumps, chosen, blocks=blocks)
    counted = (tuple(each for each in some if each.tally.rows) for some in (levels, intervals))
    return LevelReading(read.rows, read.share, read.p_value, *counted)


def _coverage(
    name: str, probability: float, found: Array, counts: Array, blocks: DependentBlocks | None, *, is_interval: bool
) -> Coverage:
    n, observed = int(np.count_nonzero(counts)), float(np.count_nonzero(found & counts))
    share, variance = observed / max(n, 1), n * probability * (1.0 - probability)
    effective, reach = float(n), t_quantile(None)
    if blocks is not None:
        squared = blocks.error_of_sum(counts * (found - share)) ** 2
        # Sums that are alike in all blocks, since an interval holds every target, say nothing of a right version.
        variance = max(variance, squared) if blocks.count >= FEWEST_BLOCKS else float(np.inf)
        reach = t_quantile(blocks.effective)
        # Rows that depend on each other say as much as fewer that do not: where nothing varies, as the blocks.
        apart = n * share * (1.0 - share)
        effective *= min(1.0, (apart + 1.0) / (squared + max(n, 1) / max(blocks.count, 1)))
    effective = max(effective, 1e-9)
    spread = reach**2 / effective
    half = reach * float(np.sqrt(share * (1.0 - share) / effective + spread / (4.0 * effective)))
    low, high = (max(0.0, min(1.0, (share + spread / 2.0 + end) / (1.0 + spread))) for end in (-half, half))
    return Coverage(name, probability, Tally(observed, n * probability, variance, n), low, high, is_interval)
