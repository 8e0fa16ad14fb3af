"""The outcome of the congruence test: p-values of a split and of its points, and false discovery rates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import p_value_kind
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.printed import printed

if TYPE_CHECKING:
    import pandas as pd

TIE = 1.0 - 1e-5  # single precision must not make a tie with the observed value look smaller than it


@dataclass(frozen=True, repr=False)
class CongruenceTest:
    """A Monte-Carlo test of congruence at m points.

    Attributes:
        statistic: T, the mean over the points of the smoothed error of the observed targets.
        p_value: of the whole split; at least 1 / (draws + 1).
        point_p_values: of each point's neighbourhood, (m,), under "the model is the truth everywhere".
        point_statistics: the smoothed error at each point, (m,).
        null_statistics: T* of the drawn targets, (draws,).
        blocks: how many blocks of rows are taken as independent; None where all rows are.
    """

    statistic: float
    p_value: float
    point_p_values: Array = field(repr=False)
    point_statistics: Array = field(repr=False)
    null_statistics: Array = field(repr=False)
    blocks: int | None = None

    def __repr__(self) -> str:
        return printed(self, statistic=self.statistic, expected=self.expected, band=self.band, p_value=self.p_value,
                       p_value_kind=self.p_value_kind, draws=self.draws, points=len(self.point_p_values))  # fmt: skip

    def to_frame(self) -> pd.DataFrame:
        """A table with a row a point, in their order.

        ``statistic``: the smoothed error there. ``p_value``: of the point's neighbourhood. ``q_value``: the same
        adjusted for the number of points (Benjamini and Hochberg 1995).
        """
        import pandas as pd

        q_values = benjamini_hochberg(self.point_p_values)
        return pd.DataFrame({"statistic": self.point_statistics, "p_value": self.point_p_values, "q_value": q_values})

    @property
    def expected(self) -> float:
        """What the statistic would be on average if the model were the truth: the mean of the null statistics."""
        return float(np.mean(self.null_statistics))

    @property
    def band(self) -> tuple[float, float]:
        """Where the statistic lies in 95 of 100 splits if the model is the truth."""
        low, high = np.quantile(self.null_statistics, (0.025, 0.975))
        return float(low), float(high)

    @property
    def p_value_kind(self) -> str:
        """ "exact", or "asymptotic in B blocks" of rows that depend on each other."""
        return p_value_kind(self.blocks)

    @property
    def draws(self) -> int:
        """Number of simulated sets of targets B."""
        return len(self.null_statistics)

    def significant_points(self, level: float = 0.05) -> Array:
        """Points around which the model is wrong, with a false discovery rate of at most ``level``: (m,) booleans.

        What is tested at a point is the smoothed error there against a model that is the truth *everywhere*: a point
        next to a region where the model is wrong is smoothed from that region's targets too, and may be found though
        the model is right at the point itself. Read them as places to look around, not as verdicts on single points.
        """
        return benjamini_hochberg(self.point_p_values) <= level


def benjamini_hochberg(p_values: Array) -> Array:
    """Adjusted p-values (q-values): rejecting where q <= level keeps the false discovery rate at ``level``.

    q_(i) = min over j >= i of m p_(j) / j (Benjamini and Hochberg 1995). Valid for p-values that are independent or
    positively dependent, as those of neighbouring points are.

    Raises:
        InvalidInputError: not a vector of probabilities.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not np.all((p >= 0.0) & (p <= 1.0)):
        raise InvalidInputError("p_values: expected a vector of probabilities inside [0, 1]")
    from scipy.stats import false_discovery_control  # a second of imports

    return np.asarray(false_discovery_control(p))


def judged(
    statistic: float,
    null: Array,
    point_statistics: Array | None = None,
    reached: Array | None = None,
    *,
    blocks: int | None = None,
) -> CongruenceTest:
    """The test from the statistic and the drawn ones, and the points' where they are here."""
    draws = len(null)
    point_statistics, reached = (np.empty(0) if each is None else each for each in (point_statistics, reached))
    p_value = (1 + int(np.count_nonzero(null >= TIE * statistic))) / (draws + 1)
    return CongruenceTest(statistic, p_value, (1 + reached) / (draws + 1), point_statistics, null, blocks)
