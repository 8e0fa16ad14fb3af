"""Groups of labelled rows, read by their mean PIT scores, whose spread under a true model is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import JumpScores, by_group
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
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, DependentBlocks, t_quantile, two_sided_p_value
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import ORDERS, pit_scores, require_pit

_TINY = 1e-12
_TURNS = 32
_LARGEST_BIAS = np.sqrt(3.0)


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
        p_values = np.array([two_sided_p_value(ratio, own.count) if known else 1.0 for ratio in ratios])
        quantile = t_quantile(max(own.count, 2))
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


def sidak(smallest: Any, count: int) -> Array:
    """1 - (1 - p)^count of p-values, each the smallest of ``count`` uncorrelated ones (Sidak 1967)."""
    return np.asarray(-np.expm1(count * np.log1p(-np.minimum(smallest, 1.0 - 1e-16))))
