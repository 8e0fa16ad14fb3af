r"""What is said of a version on a split: its CCE, what a true version would have there, and the test of congruence.

Is one version closer to the truth than another? Paired differences of CCE, with the targets as what is random.

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

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from congruence.kernels.arrays import Array, mean_over, printed
from congruence.kernels.dependence.blocks import DependentBlocks, p_value_kind, t_quantile, two_sided_p_value
from congruence.kernels.engine.congruence_test import CongruenceTest
from congruence.kernels.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

BoundKind = Literal["computed", "sampled"]


@dataclass(frozen=True)
class CongruenceInfluence:
    """What each reference row contributes to the two means of a version.

    Attributes:
        squared_mean: mean over the points of CCE^2, less the Monte-Carlo term of a finite ensemble.
        mean: mean CCE.
        squared: influence of each reference row on ``squared_mean``, (n,).
        root: influence on ``mean``, (n,).
        noise: mean over the points of |s_b|^2 for each draw b of the signs, (B,); the same signs for every version.
    """

    squared_mean: float
    mean: float
    squared: Array = field(repr=False)
    root: Array = field(repr=False)
    noise: Array = field(repr=False)


@dataclass(frozen=True)
class CongruenceUncertainty:
    """How a version's means would vary with new targets at the same inputs.

    Attributes:
        influence: of each reference row.
        standard_error: of the mean CCE.
        squared_standard_error: of the mean CCE^2.
        noise_standard_error: of the mean CCE^2 of the same noise around no error at all.
        noise_means: mean CCE of the same noise around no error, for each draw of the blocks' signs, (B,); None of
            independent rows.
    """

    influence: CongruenceInfluence = field(repr=False)
    standard_error: float
    squared_standard_error: float
    noise_standard_error: float
    noise_means: Array | None = field(default=None, repr=False)


@dataclass(frozen=True, repr=False)
class ExpectedCongruence:
    """The mean CCE of a true version: on average, and the bounds that 95 of 100 splits keep."""

    mean: float
    low: float
    high: float

    def __repr__(self) -> str:
        return printed(self, mean=self.mean, band=(self.low, self.high))


@dataclass(frozen=True)
class TargetVariation:
    """How a mean CCE varies with the targets.

    Attributes:
        uncertainty: of the version's own; None where it was not asked for.
        band: of the mean CCE of a true version; None where it was not asked for, or rows depend in too few blocks.
    """

    uncertainty: CongruenceUncertainty | None
    band: ExpectedCongruence | None


@dataclass(frozen=True, repr=False)
class CongruenceResult:
    """CCE of a version at m points, beside what a true version would have there.

    Attributes:
        values: CCE(x_j), (m,); this and all that is of single points is empty where columns lie elsewhere.
        noise_floor_values: root of E[CCE(x_j)^2] if the model were the truth, (m,).
        error_bound: bound on |computed - exact| CCE at every point; exact is what the definition gives for the inputs
            as they are, in any precision.
        mean_error_bound: bound on |computed - exact| mean CCE, which is much smaller.
        bound_kind: how well the bounds are known. "computed": from a residual that was computed. "sampled": from
            residuals at random rows with a margin, which is not a proof.
        made: the ``variation``, or what makes it when it is first read.
        test: of "the version is the truth"; None where it was not asked for.
        weights: what each point counts in means over them, (m,), of mean 1; None where they count equally.
        means: mean CCE in each repeat of a protocol that has them, (repeats,); None for one evaluation.
        mean_squares: mean of CCE(x_j)^2 over the repeats, (m,); the square of the mean is smaller by their variance.
        solver: what solved the system, in words.
        output_kernel: k_Y with its resolved bandwidth.
        inference: by what blocks of rows a version is judged; None where rows are independent.
        reason: why that solver, in one sentence.
    """

    values: Array = field(repr=False)
    noise_floor_values: Array = field(repr=False)
    error_bound: float
    mean_error_bound: float
    bound_kind: BoundKind
    made: TargetVariation | Callable[[], TargetVariation] = field(repr=False)
    test: CongruenceTest | None = None
    weights: Array | None = field(default=None, repr=False)
    means: Array | None = field(default=None, repr=False)
    mean_squares: Array | None = field(default=None, repr=False)
    solver: str = "exact"
    output_kernel: dict[str, Any] = field(default_factory=dict)
    inference: BlocksInference | None = None
    reason: str = ""

    def __repr__(self) -> str:
        repeats = {} if self.means is None else {"std": self.std, "repeats": len(self.means)}
        band = None if self.band is None else (self.band.low, self.band.high)
        return printed(self, mean=self.mean, interval=self.interval(), expected=self.expected, band=band,
                       excess=self.excess, p_value=self.p_value, mean_error_bound=self.mean_error_bound,
                       points=len(self.values), **repeats)  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"made": self.variation}  # rather than the split that it is made from

    @cached_property
    def variation(self) -> TargetVariation:
        """``uncertainty`` and ``band``."""
        return self.made() if callable(self.made) else self.made

    @property
    def uncertainty(self) -> CongruenceUncertainty:
        """Standard errors and what each reference row contributes."""
        assert self.variation.uncertainty is not None, "no standard errors were asked for"
        return self.variation.uncertainty

    @property
    def band(self) -> ExpectedCongruence | None:
        """Of the mean CCE of a true version: its expectation and the bounds of 95 of 100 splits.

        None where rows depend on each other in too few blocks.
        """
        return self.variation.band

    def to_frame(self) -> pd.DataFrame:
        """Returns a table with a row a point, in their order.

        ``cce``: CCE there. ``cce_noise_floor``: root of its expected square if the model were the truth.
        ``cce_excess``: what CCE has beyond the expected one, see ``excess_values``. With the test, ``p_value`` and
        ``q_value``; over repeats, ``cce_std``: the standard deviation over them (ddof 1).
        """
        import pandas as pd

        table = pd.DataFrame(
            {"cce": self.values, "cce_noise_floor": self.noise_floor_values, "cce_excess": self.excess_values}
        )
        if self.test is not None:
            tested = self.test.to_frame()
            table = table.assign(p_value=tested["p_value"], q_value=tested["q_value"])
        if self.means is None or self.mean_squares is None:
            return table
        count = len(self.means)
        variance = np.maximum(self.mean_squares - self.values**2, 0.0) * (count / (count - 1.0) if count > 1 else 0.0)
        return table.assign(cce_std=np.sqrt(variance))

    @property
    def mean(self) -> float:
        """Mean CCE over the points (the mean of the root, as the papers report it)."""
        return mean_over(self.values, self.weights)

    @property
    def std(self) -> float:
        """Standard deviation of the mean CCE over the repeats (ddof 1); 0 for one."""
        return float(np.std(self.means, ddof=1)) if self.means is not None and len(self.means) > 1 else 0.0

    @property
    def standard_error(self) -> float:
        """Of the mean CCE, with new targets at the same inputs."""
        return self.uncertainty.standard_error

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the mean CCE that targets at these inputs have on average, by its standard error."""
        reach = self._quantile(level) * self.uncertainty.standard_error
        return max(0.0, self.mean - reach), self.mean + reach

    def squared_mean_interval(self, level: float = 0.95) -> tuple[float, float, float]:
        """Mean CCE^2 less the Monte-Carlo term of a finite ensemble, with its confidence interval: value, low, high."""
        known = self.uncertainty
        value, reach = known.influence.squared_mean, self._quantile(level) * known.squared_standard_error
        return value, value - reach, value + reach

    def _quantile(self, level: float) -> float:
        if not 0.0 < level < 1.0:
            raise InvalidInputError(f"level: is {level}, expected a probability inside (0, 1)")
        return t_quantile(None if self.inference is None else self.inference.effective, level)

    @property
    def noise_floor(self) -> float:
        """Root of the expected squares if the model were the truth, meant over the points.

        A mean of roots lies below a root of means: ``expected`` is what the mean CCE itself would be.
        """
        return mean_over(self.noise_floor_values, self.weights)

    @property
    def expected(self) -> float:
        """What the mean CCE would be on average if the version were the truth; the floor where no band is known."""
        return self.noise_floor if self.band is None else self.band.mean

    @property
    def excess(self) -> float:
        """What the mean CCE has beyond the expected one, see ``excess_over``."""
        return excess_over(self.mean, self.expected)

    def excess_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of ``excess``, from that of the mean CCE."""
        return excess_interval(self.interval(level), self.expected)

    @property
    def squared_values(self) -> Array:
        """CCE(x_j)^2, (m,), averaged over repeats, as the squared noise floor is."""
        return np.asarray(self.values**2 if self.mean_squares is None else self.mean_squares)

    @property
    def expected_values(self) -> Array:
        """What CCE would be at each point if the version were the truth, (m,): as the noise floor is to its mean."""
        floor = self.noise_floor
        return self.noise_floor_values * (self.expected / floor if floor > 0.0 else 1.0)

    @property
    def excess_values(self) -> Array:
        """sqrt(max(0, CCE^2 - expected^2)) point by point, (m,)."""
        return np.asarray(np.sqrt(np.maximum(self.squared_values - self.expected_values**2, 0.0)))

    @property
    def p_value(self) -> float | None:
        """Of "the version is the truth"; None where it was not asked for."""
        return None if self.test is None else self.test.p_value

    @property
    def p_value_kind(self) -> str | None:
        """ "exact" at any number of rows, or "asymptotic in B blocks" of rows that depend on each other."""
        return None if self.test is None else self.test.p_value_kind


def excess_over(mean: float, expected: float) -> float:
    """Returns sqrt(max(0, mean^2 - expected^2)): what a mean CCE has beyond the one expected of a true version.

    Both are means over the same points of the same distance, and independent errors add in squares; so the excess is
    never above the mean CCE, comes back with ``expected`` to it (mean^2 = expected^2 + excess^2), and does not shrink
    as a split grows. Of a true version it is 0 in about half of the splits.
    """
    return math.sqrt(max(0.0, mean * mean - expected * expected))


def excess_interval(interval: tuple[float, float], expected: float) -> tuple[float, float]:
    """Confidence interval of the excess over ``expected`` from the ``interval`` of the mean CCE, of which it rises."""
    low, high = (excess_over(end, expected) for end in interval)
    return low, high


@dataclass(frozen=True)
class BlocksInference:
    """By what blocks of rows a version is judged.

    Attributes:
        kind: "groups" or "time", as the split names the column.
        blocks: how many are taken as independent; None where every row is one of its own, or there are too few.
        refused: why there is no p-value and no interval; "" where there are.
        effective: as many equal blocks as know an error as well; None where ``blocks`` is.
    """

    kind: str
    blocks: int | None
    refused: str = ""
    effective: float | None = None


@dataclass(frozen=True)
class ErrorBounds:
    """Bounds on the error of a norm at every point and in its mean over them, and how they are known."""

    at_point: float
    in_mean: float
    kind: BoundKind


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
    count = None if blocks is None else blocks.effective
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
        blocks=None if blocks is None else blocks.count,
    )


def _error_of_sum(influence: Array, blocks: DependentBlocks | None) -> float:
    return float(np.linalg.norm(influence)) if blocks is None else blocks.error_of_sum(influence)
