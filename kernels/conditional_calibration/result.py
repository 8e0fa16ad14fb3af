"""The outcome of a test of conditional calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.effects import Effect
from congruence.kernels.conditional_calibration.settings import Null


@dataclass(frozen=True)
class ConditionalCalibrationTest:
    """A Monte-Carlo test of "given its input, every target follows its predicted law".

    Attributes:
        statistic: max over all hypotheses of the evidence s + log prior.
        p_value: of the whole test; at least 1 / (draws + 1).
        by_order: p-values of bias, spread, skew and tails, each for itself. A fault of one kind is often seen in
            several; which is the largest say the effects.
        by_basis: p-values of the input bases, each for itself: "constant" asks for faults on average alone.
        effects: by order, the share of the score's variance that the inputs explain (see ``effects``).
        means: by order, the mean score: its sign is the direction of what is wrong on average.
        draws: B.
        null: "exact", or "gaussian" for the limit of many rows.
        null_statistics: of the draws, (B,).
    """

    statistic: float
    p_value: float
    by_order: Mapping[str, float]
    by_basis: Mapping[str, float]
    effects: Mapping[str, Effect]
    means: Mapping[str, float]
    draws: int
    null: Null
    null_statistics: Array = field(repr=False)
