r"""What is wrong around each point: smoothed PIT scores with their exact spread under a true model, and their reading.

Significance and size are two questions. The first is asked of

.. math::  s_j(x) = \sum_i a_i(x) \phi_j(u_i), \qquad  \mathrm{sd}\, s_j(x) = \sqrt{\textstyle\sum_i a_i(x)^2}
   \text{ exactly, if the model is the truth,}

with the weights a(x) = A^-1 k(x) of the protocol. A weighted sum of bounded terms is close to normal wherever several
rows share the weight, and its tails are lighter where they do not, so p-values are normal ones; the four orders, which
are uncorrelated under the truth, share a point's p-value after Sidak, and Benjamini and Hochberg's false discovery rate
runs over the points. The second is asked of local means whose weights sum to 1 (see ``smoothing``), translated by
``faults``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import require_pit
from congruence.kernels.conditional_calibration.faults import BIAS, SPREAD, Faults, faults, shift_and_factor
from congruence.kernels.conditional_calibration.pit_scores import ORDERS, pit_scores
from congruence.kernels.conditional_calibration.smoothing import chosen_local_mean
from congruence.kernels.congruence.test import benjamini_hochberg
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.spectrum import SpectralSmoother
from congruence.kernels.printed import printed

if TYPE_CHECKING:
    import pandas as pd

EVIDENCE = 9.0
"""Three standard errors: a point next to a region that is wrong is smoothed from that region, too, and is not named
unless a sharper look at it sees the fault."""

_QUANTILE_95 = 1.959963984540054


@dataclass(frozen=True, repr=False)
class LocalReading:
    """What is wrong around each of m points, labelled or not.

    Attributes:
        scores: smoothed scores s_j(x), (m, 4), in the order of ``ORDERS``.
        null_std: their standard deviation if the model is the truth, the same for every order, (m,).
        p_values: of each score, two-sided, (m, 4).
        q_values: of each point over all four orders, adjusted for the number of points, (m,).
        order_q_values: of each order by itself, adjusted alike, (m, 4).
        faults: dominant fault, shift and factor of each point, significant or not.
        evidence: what the dominant fault explains of the local means, in their squared standard errors, (m,).
    """

    scores: Array = field(repr=False)
    null_std: Array = field(repr=False)
    p_values: Array = field(repr=False)
    q_values: Array = field(repr=False)
    order_q_values: Array = field(repr=False)
    faults: Faults
    evidence: Array = field(repr=False)

    def __repr__(self) -> str:
        found = np.array(self.faults.names)[self.significant()]
        counted = {order: int(np.count_nonzero(found == order)) for order in ORDERS}
        return printed(self, points=len(self.q_values), found_wrong=len(found), **counted)

    def significant(self, level: float = 0.05) -> Array:
        """Points at which the model is wrong, (m,) booleans: q at most ``level``, and evidence of ``EVIDENCE``."""
        return (self.q_values <= level) & (self.evidence >= EVIDENCE)

    @property
    def mixing(self) -> float:
        """Variance of the local spread scores over the points, see ``faults``."""
        return float(np.var(self.faults.scores[:, SPREAD]))

    def to_frame(self, level: float = 0.05) -> pd.DataFrame:
        """A table with a row a point, in their order, and the columns of an evaluation's scores.

        ``calibration_bias``, ``_spread``, ``_skew``, ``_tails``: smoothed scores in their standard deviations if the
        model is the truth; 0 where no labelled row is near. ``calibration_q_value``: of the point over all four.
        ``calibration_fault``: the dominant fault, "" where none is significant at ``level``. ``calibration_shift``:
        how far the targets lie above the predictions, in predicted spreads. ``calibration_factor``: the targets' spread
        over the predicted one.
        """
        import pandas as pd

        return pd.DataFrame(self.columns(level))

    def columns(self, level: float = 0.05) -> dict[str, Array]:
        """The columns of ``to_frame``, (m,) each, for tables and stores."""
        named = np.where(self.significant(level), np.array(self.faults.names), "")
        known = self.null_std > 0.0  # elsewhere no reference row is near, and the scores are 0, too
        spread = np.where(known, self.null_std, 1.0)
        smoothed = {f"calibration_{order}": self.scores[:, j] / spread for j, order in enumerate(ORDERS)}
        return {
            **smoothed,
            "calibration_q_value": self.q_values,
            "calibration_fault": named,
            "calibration_shift": self.faults.shift,
            "calibration_factor": self.faults.factor,
        }


def local_reading(smoother: SpectralSmoother, pit: Any) -> LocalReading:
    """Read PIT values around every point of a smoother.

    Args:
        smoother: k(x)' A^-1 at m points, as ``PreparedCongruence.smoother`` has it.
        pit: PIT values of the n reference rows, randomised where the laws jump.

    Raises:
        InvalidInputError: values that are no probabilities, or another number of rows.
    """
    values = scores_of_rows(pit, len(smoother.analysis))
    smoothed = smoother(values.astype(np.float32)).astype(np.float64)
    spread = np.sqrt(smoother.sum_of_squares)
    # Where no reference row is near, both are 0: nothing is known, and nothing is found.
    ratio = np.divide(smoothed, spread[:, None], out=np.zeros_like(smoothed), where=spread[:, None] > 0.0)
    p_values = 2.0 * ndtr(-np.abs(ratio))
    means = [chosen_local_mean(smoother, column) for column in values.T]
    local = np.column_stack([mean(column[:, None])[:, 0] for mean, column in zip(means, values.T, strict=True)])
    errors = np.sqrt(np.mean([mean.squared_weights() for mean in means], axis=0))
    found = faults(local, errors, mixing=float(np.var(local[:, SPREAD])))
    evidence = np.sum(local**2 - found.unexplained**2, axis=1) / errors**2
    return LocalReading(
        smoothed,
        spread,
        p_values,
        benjamini_hochberg(combined_p_values(p_values)),
        np.column_stack([benjamini_hochberg(column) for column in p_values.T]),
        found,
        evidence,
    )


def combined_p_values(p_values: Array) -> Array:
    """1 - (1 - min p)^k of k uncorrelated p-values (n, k) each (Sidak 1967): (n,)."""
    smallest = np.min(p_values, axis=1)
    return np.asarray(-np.expm1(p_values.shape[1] * np.log1p(-np.minimum(smallest, 1.0 - 1e-16))))


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


def group_reading(pit: Any, rows: Any | None = None, *, mixing: float = 0.0) -> GroupReading:
    """Read the PIT values of some rows by their plain means, whose spread under the truth is exactly 1 / sqrt(rows).

    Args:
        pit: PIT values of all n reference rows.
        rows: row numbers or a mask; all by default.
        mixing: variance of the spread score over the places that the group holds, see ``faults``.

    Raises:
        InvalidInputError: fewer than two rows, or values that are no probabilities.
    """
    values = require_pit(pit)
    chosen = pit_scores(values if rows is None else values[np.asarray(rows)])
    count = len(chosen)
    if count < 2:
        raise InvalidInputError(f"rows: a group of {count} rows; a reading needs at least 2, and some 30 to say much")
    mean = chosen.mean(axis=0)
    p_values = 2.0 * ndtr(-np.abs(mean) * np.sqrt(count))
    # Of few rows that happen to agree, the sample spread says nothing: then the truth's, 1.
    covariance = (np.cov(chosen.T) * (count - 1.0) + 4.0 * np.eye(len(ORDERS))) / (count + 3.0) / count
    fault = faults(mean[None, :], mixing=mixing)
    return GroupReading(
        count,
        count / len(values),
        float(combined_p_values(p_values[None, :])[0]),
        p_values,
        np.sqrt(np.diag(covariance)),
        fault,
        *_intervals(fault, covariance[:2, :2]),
    )


def group_readings(pit: Any, groups: Mapping[str, Any]) -> tuple[dict[str, GroupReading], dict[str, float]]:
    """``group_reading`` of named groups of rows, and q-values over them.

    Groups of fewer than two rows are left out.
    """
    values = require_pit(pit)
    chosen = {name: np.asarray(rows) for name, rows in groups.items()}
    sizes = {name: np.count_nonzero(rows) if rows.dtype == bool else len(rows) for name, rows in chosen.items()}
    readings = {name: group_reading(values, rows) for name, rows in chosen.items() if sizes[name] >= 2}
    if not readings:
        return {}, {}
    q_values = benjamini_hochberg(np.array([reading.p_value for reading in readings.values()]))
    return readings, dict(zip(readings, q_values.tolist(), strict=True))


def scores_of_rows(pit: Any, n: int) -> Array:
    """PIT scores (n, 4).

    Raises:
        InvalidInputError: values that are no probabilities, or another number of them than n.
    """
    values = pit_scores(pit)
    if len(values) != n:
        raise InvalidInputError(f"pit: {len(values)} values for {n} reference rows; give one PIT value per row")
    return values


def _intervals(fault: Faults, covariance: Array) -> tuple[tuple[float, float], tuple[float, float]]:
    """95 % intervals of shift and factor: the scores' error ellipse carried through the inversion (delta method)."""
    center = fault.scores[0, [BIAS, SPREAD]]
    steps = 0.25 * np.sqrt(np.diag(covariance))
    moved = center + np.array([[1, 0], [-1, 0], [0, 1], [0, -1]]) * steps
    shift, factor = shift_and_factor(moved[:, 0], moved[:, 1])
    slopes = [np.array([v[0] - v[1], v[2] - v[3]]) / (2.0 * steps) for v in (shift, np.log(factor))]
    errors = [_QUANTILE_95 * float(np.sqrt(slope @ covariance @ slope)) for slope in slopes]
    b, c = float(fault.shift[0]), float(fault.factor[0])
    return (b - errors[0], b + errors[0]), (c * float(np.exp(-errors[1])), c * float(np.exp(errors[1])))
