"""A metric as one object, the rows that it is computed of, and how these make the metrics of ``definitions``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array, mean_over
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import FoundBlocks
from congruence.kernels.kernel_calibration.estimators import asymptotic_test, pair_estimate
from congruence.kernels.kernel_calibration.pairs import pair_terms
from congruence.kernels.kernel_calibration.prediction_kernels import (
    EqualPredictionsError,
    MaximumMeanDiscrepancy,
    Wasserstein,
)
from congruence.kernels.marginal_calibration import even_levels, has_total, poisson_deviances
from congruence.kernels.resampling import mean_of
from congruence.kernels.rng import stream
from congruence.kernels.scores import (
    central_intervals,
    covered,
    holds_interval,
    marginal_log_score,
    resolution,
    sharpness_of,
)
from congruence.tasks.runtime.lines import step

if TYPE_CHECKING:
    from congruence.kernels.score_parts import ScoreDecomposition


_WIDEST = 0.005
"""Of the gaps between the levels of quantiles that leave nothing to draw between them; beyond them a fifth of it."""


def scored_levels(predictive: Distribution) -> Array | None:
    """The levels of predicted quantiles by whose losses CRPS is; None of whole distributions.

    Hundreds of quantiles up to a thousandth from the ends are one: so those are read without a family.
    """
    levels = (predictive.recalibration or (predictive, None))[0].quantile_levels
    if levels is None or max(np.max(np.diff(levels)), 5.0 * max(levels[0], 1.0 - levels[-1])) <= _WIDEST:
        return None
    return levels


Better = Literal["lower", "higher", "neither"] | float
Group = Literal["Distance", "Score", "Sharpness", "Calibration", "Totals and counts", "Others"]

Place = Literal["headlines", "mlflow", "slices", "compared", "wins", "over_time"]
"""Where metrics are shown: the table of an evaluation in the terminal; the headline in MLflow, which is columns and
charts of the list, the note of a run, the logged model and the run that trained it; the table of slices; the tables and
the picture of a comparison; the sentences on who wins; the page of looks over time."""


@dataclass(frozen=True)
class Metric:
    """One number of a version on a split.

    It comes about in one of three ways. A *mean* is a ``reduction`` of means over rows: of a ``column`` of the scores,
    or of ``terms``; it has a bootstrap interval and a value in each slice, and ``compare`` gives its paired difference
    where lower is better. A *value* is made of all rows at once and has no interval. Any other is *measured*: the value
    comes with the measurement of CCE and calibration, and what is said of rows here serves slices alone.

    Attributes:
        name: by which it is logged.
        label: its name in a table.
        reading: how to read it, in a sentence or two.
        unit: what it is counted in.
        better: which direction is better, or the value that is best.
        interval: what its ``low`` and ``high`` speak of, where it has them.
        group: under which reports have it.
        asked: the name in the evaluation file's ``metrics:`` that asks for it; "" where it is always there.
        column: of the scores, from which it is made.
        column_label: what pages and pictures call the column; "" where they do not show it.
        point: makes the column, of targets (v,) or (v, q) and v laws: (v,), or None where it does not apply; None where
            the program's own scores have the column.
        prepare: what is taken of the column before the mean, (v,) or (v, k); by default the column itself.
        terms: what is meant in place of a column, (v,) or (v, k); None of rows that it does not apply to.
        reduction: makes the metric of the means, (..., k) to (...).
        centers: of a mean of absolute deviations, the k numbers from which the means deviate, in place of a reduction.
        bounds: between which the metric lies, whatever the rows.
        value: makes a value; None where it does not apply.
        measured: whether it is measured.
        influence: the column of what each row contributes to a measured metric, by which it is compared.
        margin: by how much it may be worse at the gate unless the file says so: a number, ``"5 %"`` or
            ``"5 % of skill"``; None where the gate does not compare it.
        marginal: makes the value that the law of all targets has on them, y (v,); None where there is none.
        shown: the places where it is shown, each with its number in the order there, from 1.
    """

    name: str
    label: str
    reading: str = ""
    unit: str = ""
    better: Better = "neither"
    interval: str = ""
    group: Group = "Others"
    asked: str = ""
    column: str = ""
    column_label: str = ""
    point: Callable[[Array, Distribution], Array | None] | None = None
    prepare: Callable[[Array], Array] | None = None
    terms: Callable[[Rows], Array | None] | None = None
    reduction: Callable[[Array], Array] = mean_of
    centers: tuple[float, ...] = ()
    bounds: tuple[float, float] = (-math.inf, math.inf)
    value: Callable[[Rows], float | None] | None = None
    measured: bool = False
    influence: str = ""
    margin: float | str | None = None
    marginal: Callable[[Array], float] | None = None
    shown: Mapping[Place, int] = field(default_factory=dict)

    @property
    def section(self) -> str:
        """Where MLflow shows it: its page groups metrics by what stands before "/"."""
        if "mlflow" in self.shown:
            return "headline"
        if self.group == "Sharpness" or self.asked == "coverage":
            return "coverage"
        return {"Score": "scores", "Totals and counts": "scores", "Others": "others"}.get(self.group, "calibration")

    @property
    def is_of_means(self) -> bool:
        """Whether it is a reduction of means over rows, in slices at least."""
        return self.value is None and (self.column != "" or self.terms is not None)

    @property
    def is_mean_of_column(self) -> bool:
        """Whether it is the mean of its column, and nothing else."""
        made = self.terms, self.prepare, self.value
        return self.column != "" and made == (None, None, None) and self.reduction is mean_of and not self.measured

    @property
    def is_compared(self) -> bool:
        """Whether two versions are compared in it by their columns alone."""
        return self.is_of_means and self.column != "" and self.better == "lower" and not self.measured

    @property
    def direction(self) -> str:
        """What is better, in a sentence; "" where nothing is."""
        if isinstance(self.better, str):
            return "" if self.better == "neither" else f"{self.better.capitalize()} is better."
        return f"{self.better:g} is best."

    def terms_of(self, rows: Rows) -> Array | None:
        """What is meant, (v,) or (v, k); None where it does not apply to the rows."""
        if self.terms is not None:
            return self.terms(rows)
        return self.prepared(rows.columns[self.column]) if self.column in rows.columns else None

    def prepared(self, column: Array) -> Array:
        """What is taken of the values of its column, (v,) or (v, k)."""
        return column if self.prepare is None else self.prepare(column)

    def reduced(self, means: Array) -> Array:
        """The metric of means (..., k), (...)."""
        if self.centers:
            return np.asarray(np.abs(means - np.array(self.centers)).mean(axis=-1))
        return self.reduction(means)


COVERAGE_LEVELS = (0.5, 0.8, 0.9, 0.95)
DECOMPOSED_ROWS = 10_000
PAIRED_ROWS = 50_000
"""Rows at the most that the kernel calibration error compares with each other."""

REACH = 2_048
INDEPENDENT = FoundBlocks()


@dataclass(frozen=True, repr=False)
class Rows:
    """The v valid rows of a version, or a block of them.

    Attributes:
        columns: scores of the rows, (v,) each: cce, nll, crps, pit, mean, std, ...
        targets: (v,) or (v, q).
        predictive: v laws.
        weights: what each row counts in means, (v,); None where all count alike.
        seed: of whatever is drawn.
        found: blocks of rows that depend on each other.
        floor_share: the mean CCE expected of a true version, as a share of the mean noise floor.
        keys: numbers that stand for the rows' keys, (v,); None where these are their places.
        labels: slice columns, (v, slices).
        dependence: which rows may depend on each other, as the split names it; None where it names nothing.
        whole: all rows, where these are a block of them, and ``part`` where it lies.
    """

    columns: Mapping[str, Array]
    targets: Array
    predictive: Distribution
    weights: Array | None = None
    seed: int = 0
    found: FoundBlocks = INDEPENDENT
    floor_share: float = 1.0
    keys: Array | None = None
    labels: pd.DataFrame = field(default_factory=pd.DataFrame)
    dependence: RowDependence | None = None
    whole: Rows | None = None
    part: slice = field(default_factory=lambda: slice(None))

    def __getitem__(self, rows: Array) -> Rows:
        """Some of the rows by their numbers, as rows of their own."""
        blocks = None if self.found.blocks is None else self.found.blocks.of_rows(rows)
        return self._at(
            rows,
            found=replace(self.found, blocks=blocks),
            keys=self.names[rows],
            labels=self.labels if self.labels.empty else self.labels.iloc[rows],
            dependence=None if self.dependence is None else self.dependence.of_rows(rows),
        )

    def block(self, part: slice) -> Rows:
        """Returns the rows of a ``part`` with what metrics read, which know what all rows say together."""
        return self._at(part, keys=None, whole=self, part=part)

    def _at(self, rows: Any, **others: Any) -> Rows:
        return replace(
            self,
            columns={name: values[rows] for name, values in self.columns.items()},
            targets=self.targets[rows],
            predictive=self.predictive[rows],
            weights=None if self.weights is None else self.weights[rows],
            **others,
        )

    @cached_property
    def names(self) -> Array:
        """Numbers that stand for the rows' keys, (v,)."""
        return np.arange(len(self.targets)) if self.keys is None else self.keys

    @property
    def is_scalar(self) -> bool:
        """Whether each row has one target."""
        return self.targets.ndim == 1

    @cached_property
    def resolution(self) -> float | None:
        """The step to which the targets are rounded; None where they are not, or are what laws of counts speak of."""
        if self.whole is not None:
            return self.whole.resolution
        step = resolution(self.targets)
        return None if step is None or (self.predictive.is_discrete and step <= 1.0) else step

    @property
    def are_dependent(self) -> bool:
        """Whether rows depend on each other, so that tests of independent rows do not hold."""
        return self.found.blocks is not None or self.found.refused != ""

    def mean_of(self, column: str) -> float | None:
        """The mean of a column over the rows with a value there; None without the column, or where it is not finite."""
        if column not in self.columns:
            return None
        known = ~np.isnan(self.columns[column])
        found = mean_over(self.columns[column][known], None if self.weights is None else self.weights[known])
        return found if np.isfinite(found) else None

    @cached_property
    def intervals(self) -> dict[float, tuple[Array, Array]]:
        """The central interval of each of ``COVERAGE_LEVELS``, its two ends (v,): one look at the quantiles for all."""
        return dict(zip(COVERAGE_LEVELS, central_intervals(self.predictive, COVERAGE_LEVELS), strict=True))

    @cached_property
    def marginal_crps(self) -> Array:
        """The CRPS of the law of all targets together at each row, (v,), by the levels by which the version's is."""
        from congruence.kernels.score_parts import marginal_crps  # not where settings are read alone

        if self.whole is not None:
            return self.whole.marginal_crps[self.part]
        return marginal_crps(self.targets, self.weights, scored_levels(self.predictive))

    @cached_property
    def are_counts_with_total(self) -> bool:
        """Whether laws of counts have a total to compare with: no target is negative, and every mean positive."""
        if self.whole is not None:
            return self.whole.are_counts_with_total
        is_known = self.predictive.is_discrete and "mean" in self.columns
        return is_known and has_total(self.targets, self.columns["mean"])

    @cached_property
    def decomposition(self) -> ScoreDecomposition:
        """The quantile scores taken apart by level; of more than 10,000 rows, of as many at random."""
        from congruence.kernels.score_parts import crps_decomposition

        some = self
        if len(self.targets) > DECOMPOSED_ROWS:
            draw = stream(self.seed, "rows of the score decomposition")
            some = self[np.sort(draw.choice(len(self.targets), DECOMPOSED_ROWS, replace=False))]
        return crps_decomposition(some.targets, some.predictive, weights=some.weights)

    @cached_property
    def kernel_calibration(self) -> dict[str, float]:
        """SKCE by the unbiased estimate, and the p-value of its test by random signs of the same pairs of rows.

        All pairs of up to some 2,500 rows; of more, each row is compared with some 2,500 others at random: still
        unbiased, and the power grows with the rows. Of more than 50,000 rows a random sample of 50,000. Rows that
        depend on each other have one sign for each of their blocks; NaN where these are fewer than ten. Rows that count
        ``weights`` have the weighted estimate, NaN where fewer than two count; the test is of rows as they are.
        """
        draw = stream(self.seed, "rows of the kernel calibration error")
        some = self[draw.permutation(len(self.targets))[:PAIRED_ROWS]]
        law, blocks, weights = some.predictive, some.found.blocks, some.weights
        with step("kernel calibration error", 2, "parts") as advance:
            has_spread = self.is_scalar and bool(np.isfinite(law.std()).all())
            kernel = Wasserstein(None) if has_spread else MaximumMeanDiscrepancy(None)
            try:
                terms = pair_terms(law, some.targets, kernel)  # the quantiles of a mixture cost more than what follows
            except EqualPredictionsError:  # where most predictions are the same one, any scale will do
                terms = pair_terms(law, some.targets, replace(kernel, scale=1.0))
            advance(1)
            if blocks is not None and blocks.count < FEWEST_BLOCKS:
                estimate, p_value = pair_estimate(terms, reach=REACH), float("nan")
            else:
                test = asymptotic_test(terms, seed=self.seed, blocks=blocks, reach=REACH)
                estimate, p_value = test.estimate, test.p_value
            if weights is not None:
                counted = np.flatnonzero(weights)
                estimate = float("nan")
                if len(counted) >= 2:
                    estimate = pair_estimate(terms.of_rows(counted), weights=weights[counted], reach=REACH)
            advance(1)
        return {"skce": estimate, "skce_p_value": p_value}


def with_floor(rows: Rows) -> Array:
    """CCE of each row, and its noise floor as it adds up to what is expected of a true version, (v, 2)."""
    return np.column_stack([rows.columns["cce"], rows.floor_share * rows.columns["cce_noise_floor"]])


def beyond_floor(means: Array) -> Array:
    """The excess: what of the first mean is beyond the second one, by squares."""
    return np.asarray(np.sqrt(np.maximum(means[..., 0] ** 2 - means[..., 1] ** 2, 0.0)))


def mean_marginal_crps(y: Array) -> float:
    """The mean CRPS of the law of all targets together."""
    from congruence.kernels.score_parts import marginal_crps

    return float(np.mean(marginal_crps(y)))


def marginal_nll(y: Array) -> float:
    """The mean NLL of the law of all targets together."""
    return marginal_log_score(y, resolution(y))


def mean_deviation(y: Array) -> float:
    """The mean absolute error of the targets' mean."""
    return float(np.mean(np.abs(y - np.mean(y))))


def spread_of(y: Array) -> float:
    """The root mean squared error of the targets' mean."""
    return float(np.std(y))


def crps_beside_marginal(rows: Rows) -> Array | None:
    """The CRPS of each row, and that of the law of all targets, (v, 2); None of vector targets."""
    if not rows.is_scalar or "crps" not in rows.columns:
        return None
    return np.column_stack([rows.columns["crps"], rows.marginal_crps])


def ratio(means: Array) -> Array:
    """The first mean over the second, NaN where that is not positive."""
    return np.asarray(means[..., 0] / np.where(means[..., 1] > 0.0, means[..., 1], np.nan))


def skill(means: Array) -> Array:
    """What the first mean is below the second, as a share of it."""
    return 1.0 - ratio(means)


def below_levels(pit: Array) -> Array:
    """Whether each PIT value is at most each level of ECE, (v, levels)."""
    return (pit <= even_levels()[:, None]).T


def sharpness(rows: Rows) -> float | None:
    """How wide the predictions are."""
    return sharpness_of(rows.columns["std"], rows.weights) if "std" in rows.columns else None


def mean_of_column(column: str) -> Callable[[Rows], float | None]:
    """The mean over the rows that have a value there, without an interval."""
    return lambda rows: rows.mean_of(column)


def part_of_crps(part: str) -> Callable[[Rows], float | None]:
    """A part of the CRPS, see ``Rows.decomposition``; of few draws, whose number is a fault of theirs there, one."""
    return lambda rows: (
        rows.decomposition.crps(part)
        if rows.is_scalar
        and "crps" in rows.columns
        and (part == "uncertainty" or holds_interval(rows.predictive, max(COVERAGE_LEVELS)))
        else None
    )


def skce(rows: Rows) -> float | None:
    """See ``Rows.kernel_calibration``."""
    return rows.kernel_calibration["skce"]


def skce_p_value(rows: Rows) -> float | None:
    """The p-value of the same; None where rows depend on each other in too few blocks."""
    return None if rows.found.refused else rows.kernel_calibration["skce_p_value"]


def p_of_uniform(test: Callable[[Array], Any], fewest: int = 0) -> Callable[[Rows], float | None]:
    """The p-value of a test of PIT values as they are, whatever their rows count; none where rows are dependent."""

    def p_value(rows: Rows) -> float | None:
        pit = rows.columns.get("pit")
        return None if pit is None or rows.are_dependent or len(pit) < fewest else test(pit).p_value

    return p_value


def covered_at(level: float) -> Callable[[Rows], Array | None]:
    """Whether the central interval of a level holds each target."""

    def terms(rows: Rows) -> Array | None:
        if not rows.is_scalar:
            return None
        return covered(rows.predictive, rows.targets, level, interval=rows.intervals[level])

    return terms


def width_at(level: float) -> Callable[[Rows], Array | None]:
    """How wide it is; None of draws too few to hold it, which would be narrower the fewer they are."""
    return lambda rows: (
        np.subtract(*rows.intervals[level][::-1]) if rows.is_scalar and holds_interval(rows.predictive, level) else None
    )


def totals(rows: Rows) -> Array | None:
    """Each count and its predicted mean, (v, 2)."""
    return np.column_stack([rows.targets, rows.columns["mean"]]) if rows.are_counts_with_total else None


def deviances(rows: Rows) -> Array | None:
    """The Poisson deviance of each count."""
    return poisson_deviances(rows.targets, rows.columns["mean"]) if rows.are_counts_with_total else None
