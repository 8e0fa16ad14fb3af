r"""Is one version closer to the truth than another? Paired differences of CCE, with the targets as what is random.

Two versions on one split share their targets, so what is common to both (the noise floor) cancels: with
d_j = e_j^A - e_j^B = sum_i a_i(x_j) (E_B psi_i - E_A psi_i), which no target enters,

.. math::  D = \frac1m \sum_j |e^A_j|^2 - |e^B_j|^2 = \frac1m \sum_j \langle d_j, e^A_j + e^B_j \rangle

is linear in the targets: a sum of independent terms, unbiased for the difference of the two squared congruence errors,
whose variance is the sum of the squared influences of the reference rows (see ``uncertainty``; of ensembles, less what
their own errors make it count twice). Resampling or flipping
*points* instead rejects two models that are exactly equally wrong in most splits, because neighbouring points share
their targets.

Each version's influence is a column of its own, so versions that were evaluated apart are compared by two columns.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from congruence.kernels.arrays import Array, printed
from congruence.kernels.dependence.blocks import DependentBlocks, p_value_kind, t_quantile, two_sided_p_value
from congruence.kernels.engine.results import CongruenceInfluence
from congruence.kernels.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, repr=False)
class CongruenceDifference:
    """How much further the first version is from the truth than the second: negative where it is closer.

    Attributes:
        difference: of the mean CCE^2, first - second; unbiased for the difference of the squared congruence errors.
        standard_error: of ``difference``, with new targets at the same inputs.
        low, high: its 95 % interval.
        p_value: two-sided, of "both are equally far from the truth", by the normal approximation.
        mean_difference: of the mean CCE, first - second.
        mean_standard_error, mean_low, mean_high: of ``mean_difference``, to first order.
        blocks: how many blocks of rows are taken as independent, by which intervals and p-value are Student's t; None
            where all rows are.
    """

    difference: float
    standard_error: float
    low: float
    high: float
    p_value: float
    mean_difference: float
    mean_standard_error: float
    mean_low: float
    mean_high: float
    blocks: int | None = None

    @property
    def p_value_kind(self) -> str:
        """How far the p-value holds: in the limit of many rows, or of so many blocks of rows."""
        return p_value_kind(self.blocks, "asymptotic in rows")

    def __repr__(self) -> str:
        return printed(self, difference=self.difference, interval=(self.low, self.high), p_value=self.p_value,
                       mean_difference=self.mean_difference,
                       mean_interval=(self.mean_low, self.mean_high))  # fmt: skip

    def to_frame(self) -> pd.DataFrame:
        """A table of one row, with a column for each attribute; ``pandas.concat`` joins those of several versions."""
        import pandas as pd

        return pd.DataFrame([asdict(self)])


def difference_of_influences(
    first: CongruenceInfluence,
    second: CongruenceInfluence,
    blocks: DependentBlocks | None = None,
    *,
    shares_signs: bool = True,
    shares_targets: bool = True,
) -> CongruenceDifference:
    """The paired difference of two versions from what the same reference rows contribute to each.

    Args:
        first, second: of the versions.
        blocks: of rows that depend on each other.
        shares_signs: whether the noise of both is under the same signs; if not, what is quadratic in the noise counts
            twice, which is on the safe side.
        shares_targets: whether both are measured on the same targets, whose noise then cancels. Those of stated cells
            are put into the cells of their own version; what their noise adds to each is then taken off.

    Raises:
        InvalidInputError: influences of another number of rows.
    """
    if len(first.squared) != len(second.squared):
        raise InvalidInputError(
            f"influence: {len(first.squared)} and {len(second.squared)} reference rows; both versions must be "
            "evaluated on one reference split"
        )
    difference = first.squared_mean - second.squared_mean
    count = None if blocks is None else blocks.count
    variance = _error_of_sum(np.subtract(first.squared, second.squared, dtype=np.float64), blocks) ** 2
    # What is quadratic in the noise (ensembles' own errors) is counted twice in the influences, and once here.
    quadratic = 0.0
    if shares_signs:
        quadratic = float(np.var(np.subtract(first.noise, second.noise, dtype=np.float64), ddof=1))
    # That estimate is unbiased; half of the quadratic part keeps chance from making it vanish.
    error = float(np.sqrt(max(variance - quadratic, quadratic / 2.0)))
    mean_difference = first.mean - second.mean
    if not shares_targets:
        of_noise = float(np.mean(first.noise) - np.mean(second.noise))
        difference -= of_noise
        mean_difference -= of_noise / max(first.mean + second.mean, _TINY)  # |a| - |b| = (|a|^2 - |b|^2) / (|a| + |b|)
    mean_error = _error_of_sum(np.subtract(first.root, second.root, dtype=np.float64), blocks)
    reach = t_quantile(count, LEVEL)
    return CongruenceDifference(
        difference=difference,
        standard_error=error,
        low=difference - reach * error,
        high=difference + reach * error,
        p_value=float(difference == 0.0) if error == 0.0 else two_sided_p_value(difference / error, count),
        mean_difference=mean_difference,
        mean_standard_error=mean_error,
        mean_low=mean_difference - reach * mean_error,
        mean_high=mean_difference + reach * mean_error,
        blocks=count,
    )


def _error_of_sum(influence: Array, blocks: DependentBlocks | None) -> float:
    return float(np.linalg.norm(influence)) if blocks is None else blocks.error_of_sum(influence)
