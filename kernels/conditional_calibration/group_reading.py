"""What is wrong in a group of labelled rows: mean PIT scores, whose spread under a true model is known, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.calibration.pit import require_pit
from congruence.kernels.calibration.pit_scores import ORDERS, pit_scores
from congruence.kernels.conditional_calibration.count_scores import JumpScores
from congruence.kernels.conditional_calibration.faults import BIAS, SPREAD, Faults, faults, shift_and_factor
from congruence.kernels.conditional_calibration.local_reading import combined_p_values
from congruence.kernels.congruence.outcome import benjamini_hochberg
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, DependentBlocks, t_quantile, two_sided_p_value
from congruence.kernels.errors import InvalidInputError

_TINY = 1e-12
_BLOCK_ROWS = 2**16


@dataclass(frozen=True)
class GroupReading:
    """What is wrong in a group of labelled rows: a slice, a region, a whole split.

    Attributes:
        rows: how many they are.
        share: of the split.
        p_value: of the group over all four orders.
        order_p_values: of each order, (4,).
        score_errors: standard errors of the mean scores as they are, true model or not, (4,).
        fault: one place: dominant fault, shift, factor.
        shift_interval, factor_interval: 95 %.
    """

    rows: int
    share: float
    p_value: float
    order_p_values: Array
    score_errors: Array
    fault: Faults
    shift_interval: tuple[float, float]
    factor_interval: tuple[float, float]

    @property
    def dominant(self) -> str:
        """The name of the dominant fault."""
        return self.fault.names[0]

    @property
    def strength(self) -> float:
        """See ``Faults``."""
        return float(self.fault.strength[0])

    @property
    def shift(self) -> float:
        """See ``Faults``."""
        return float(self.fault.shift[0])

    @property
    def factor(self) -> float:
        """See ``Faults``."""
        return float(self.fault.factor[0])

    def second(self) -> str | None:
        """Another fault that the dominant one leaves unexplained by more than 3.3 standard errors, if any."""
        left = np.abs(self.fault.unexplained[0]) / self.score_errors
        left[ORDERS.index(self.dominant)] = 0.0
        return ORDERS[int(np.argmax(left))] if left.max() > 3.3 else None


def group_reading(
    pit: Any, rows: Any | None = None, *, mixing: float = 0.0, blocks: DependentBlocks | None = None
) -> GroupReading:
    """Read the scores of some rows by their plain means, whose spread under the truth is known.

    Of rows that depend on each other it is that of sums within blocks; p-values are 1 where the group has fewer than
    ten of them, since so few say nothing.

    Args:
        pit: PIT values of all n reference rows; of counts their ``JumpScores``, which take no random number.
        rows: row numbers or a mask; all by default.
        mixing: variance of the spread score over the places that the group holds, see ``faults``.
        blocks: of all n rows, where they depend on each other.

    Raises:
        InvalidInputError: fewer than two rows, or values that are no probabilities.
    """
    values = pit if isinstance(pit, JumpScores) else require_pit(pit)
    some = values if rows is None else values[np.asarray(rows)]
    count = len(some)
    if count < 2:
        raise InvalidInputError(f"rows: a group of {count} rows; a reading needs at least 2, and some 30 to say much")
    mean, sample_covariance = _moments(some)
    quantile = t_quantile(None)
    if blocks is None:
        if_true = np.ones(len(ORDERS))
        if isinstance(some, JumpScores):
            if_true = np.maximum(some.variance.mean(axis=0), _TINY)
        p_values = 2.0 * ndtr(-np.abs(mean) * np.sqrt(count / if_true))
        # Of few rows that happen to agree, the sample spread says nothing: then the truth's.
        covariance = (sample_covariance * (count - 1.0) + 4.0 * np.diag(if_true)) / (count + 3.0) / count
    else:
        own = blocks if rows is None else blocks.of_rows(np.asarray(rows))
        scores = some.values if isinstance(some, JumpScores) else pit_scores(some)
        covariance = mean_covariance(scores, own)
        known = own.count >= FEWEST_BLOCKS
        ratios = np.abs(mean) / np.sqrt(np.diag(covariance))
        p_values = np.array([two_sided_p_value(ratio, own.count) if known else 1.0 for ratio in ratios])
        quantile = t_quantile(max(own.count, 2))
    fault = faults(mean[None, :], mixing=mixing)
    return GroupReading(
        count,
        count / len(values),
        float(combined_p_values(p_values[None, :])[0]),
        p_values,
        np.sqrt(np.diag(covariance)),
        fault,
        *_intervals(fault, covariance[:2, :2], quantile),
    )


def _moments(some: Array | JumpScores) -> tuple[Array, Array]:
    """Mean and sample covariance of the scores, (4,) and (4, 4); of many rows those of a block at a time are made."""
    count, total, products = len(some), np.zeros(len(ORDERS)), np.zeros((len(ORDERS), len(ORDERS)))
    for rows in row_slices(count, _BLOCK_ROWS):
        scores = some.values[rows] if isinstance(some, JumpScores) else pit_scores(some[rows])
        total += scores.sum(axis=0)
        products += scores.T @ scores
    mean = total / count
    return mean, (products - count * np.outer(mean, mean)) / (count - 1.0)


def mean_covariance(values: Array, blocks: DependentBlocks) -> Array:
    """Of the means of columns (n, c) whose rows depend on each other within blocks, (c, c)."""
    sums = blocks.sums(values - values.mean(axis=0))
    count = blocks.count
    # Of few blocks that happen to agree, as much again as independent rows of a true version would have.
    prior = 4.0 * len(values) / count * np.eye(values.shape[1])
    return np.asarray((sums.T @ sums + prior) * (count / (count + 3.0)) / len(values) ** 2)


def group_readings(
    pit: Any, groups: Mapping[str, Any], blocks: DependentBlocks | None = None
) -> tuple[dict[str, GroupReading], dict[str, float]]:
    """``group_reading`` of named groups of rows, and q-values over them.

    Groups of fewer than two rows are left out.
    """
    values = pit if isinstance(pit, JumpScores) else require_pit(pit)
    if isinstance(values, JumpScores):
        values.variance  # noqa: B018 - of all rows once, not for each group that holds them
    chosen = {name: np.asarray(rows) for name, rows in groups.items()}
    sizes = {name: np.count_nonzero(rows) if rows.dtype == bool else len(rows) for name, rows in chosen.items()}
    readings = {name: group_reading(values, rows, blocks=blocks) for name, rows in chosen.items() if sizes[name] >= 2}
    if not readings:
        return {}, {}
    q_values = benjamini_hochberg(np.array([reading.p_value for reading in readings.values()]))
    return readings, dict(zip(readings, q_values.tolist(), strict=True))


def _intervals(fault: Faults, covariance: Array, quantile: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """95 % intervals of shift and factor: the scores' error ellipse carried through the inversion (delta method)."""
    center = fault.scores[0, [BIAS, SPREAD]]
    steps = 0.25 * np.sqrt(np.diag(covariance))
    moved = center + np.array([[1, 0], [-1, 0], [0, 1], [0, -1]]) * steps
    shift, factor = shift_and_factor(moved[:, 0], moved[:, 1])
    slopes = [np.array([v[0] - v[1], v[2] - v[3]]) / (2.0 * steps) for v in (shift, np.log(factor))]
    errors = [quantile * float(np.sqrt(slope @ covariance @ slope)) for slope in slopes]
    b, c = float(fault.shift[0]), float(fault.factor[0])
    return (b - errors[0], b + errors[0]), (c * float(np.exp(-errors[1])), c * float(np.exp(errors[1])))
