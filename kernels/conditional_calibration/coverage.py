"""What is wrong with predicted quantiles, in their own terms: how many targets lie at or below each, and between two.

A version that states quantiles at K levels is right where P(Y <= q_k | x) is the level tau_k at every input. So the
share of the targets at or below each quantile is set beside its level, and the share between two quantiles of levels
tau and 1 - tau beside 1 - 2 tau: over all rows, and in groups of them. Whether a group of rows is wrong at all is asked
by its mean scores of cells (``JumpScores``), over all levels together; its coverage says what the fault is.

A target that is equal to a quantile is at or below it. Where many are (zeros, a cap), P(Y <= q_k) is above tau_k even
if q_k is right, and rows whose quantile is such a value do not count for its level (see ``distributions.cells``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import JumpScores, Tally
from congruence.kernels.conditional_calibration.reading import group_reading
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, DependentBlocks, t_quantile
from congruence.kernels.distributions.cells import Cells

_LEVEL = 0.05
_SAME = 1e-9  # levels that differ by no more are one
SIMPLEST = 0.8
"""An interval is named before a level whose fault is up to 1 / .8 times as certain: it is what people know."""


@dataclass(frozen=True)
class LevelRows:
    """The rows of a version that states quantiles: their levels (K,), and in which cell each target lies."""

    levels: Array
    jumps: JumpScores = field(repr=False)

    @classmethod
    def of(cls, levels: Array | None, jumps: JumpScores | None) -> LevelRows | None:
        """Of the ``quantile_levels`` of a version; None of one that states anything else."""
        return None if levels is None or jumps is None or jumps.cells is None else cls(levels, jumps)

    @property
    def cells(self) -> Cells:
        """Of the rows."""
        assert self.jumps.cells is not None
        return self.jumps.cells

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The numbers of levels that are the ends of a central interval, the widest first."""
        gaps = np.abs(self.levels[:, None] + self.levels - 1.0)
        nearest = np.argmin(gaps, axis=1)
        return [(k, int(other)) for k, other in enumerate(nearest) if k < other and gaps[k, other] <= _SAME]

    def at_or_below(self, k: int) -> tuple[Array, Array]:
        """Which targets lie at or below the quantile of level k, and which rows count for it, (n,) both."""
        end = self.cells.range[1]
        return end <= self.levels[k], np.broadcast_to(self.cells.ends[:, k] == self.levels[k], len(end))

    def __len__(self) -> int:
        return len(self.jumps)

    def __getitem__(self, rows: Any) -> LevelRows:
        return LevelRows(self.levels, self.jumps[rows])


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


def level_reading(rows: LevelRows, chosen: Any | None = None, blocks: DependentBlocks | None = None) -> LevelReading:
    """Read some rows, by their numbers or a mask; all by default.

    Args:
        rows: of the version.
        chosen: which of them.
        blocks: of all rows, where they depend on each other; p-values are 1 where the chosen have fewer than ten.
    """
    part = rows if chosen is None else rows[np.asarray(chosen)]
    own = blocks if blocks is None or chosen is None else blocks.of_rows(np.asarray(chosen))
    known = [part.at_or_below(k) for k in range(len(part.levels))]
    levels = [
        _coverage(f"the {percent_of(tau)} quantile", float(tau), *known[k], own, is_interval=False)
        for k, tau in enumerate(part.levels)
    ]
    intervals = []
    for low, high in part.pairs:
        probability = float(part.levels[high] - part.levels[low])
        inside, counts = known[high][0] & ~known[low][0], known[low][1] & known[high][1]
        name = f"the {percent_of(probability)} interval"
        intervals.append(_coverage(name, probability, inside, counts, own, is_interval=True))
    read = group_reading(rows.jumps, chosen, blocks=blocks)
    counted = (tuple(each for each in some if each.tally.rows) for some in (levels, intervals))
    return LevelReading(read.rows, read.share, read.p_value, *counted)


def percent_of(share: float) -> str:
    """ "90 %", "2.5 %"."""
    return f"{100.0 * share:.4g} %"


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
        reach = t_quantile(max(blocks.count, 2))
        # Rows that depend on each other say as much as fewer that do not: where nothing varies, as the blocks.
        apart = n * share * (1.0 - share)
        effective *= min(1.0, (apart + 1.0) / (squared + max(n, 1) / max(blocks.count, 1)))
    effective = max(effective, 1e-9)
    spread = reach**2 / effective
    half = reach * float(np.sqrt(share * (1.0 - share) / effective + spread / (4.0 * effective)))
    low, high = (max(0.0, min(1.0, (share + spread / 2.0 + end) / (1.0 + spread))) for end in (-half, half))
    return Coverage(name, probability, Tally(observed, n * probability, variance, n), low, high, is_interval)
