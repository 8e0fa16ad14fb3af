"""Differences of metrics between two versions on the same split, each with the interval that its metric asks for.

CCE values of neighbouring points share the targets of the same reference rows, so CCE is compared by what each of
these rows contributes (``kernels.congruence_difference``). The other metrics are functions of means of one number per
point, and points are drawn independently: paired bootstrap and permutation (``kernels.paired``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtri

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.regression import even_levels
from congruence.kernels.congruence.difference import LEVEL, difference_of_influences
from congruence.kernels.congruence.influence import CongruenceInfluence
from congruence.kernels.errors import ProtocolError
from congruence.kernels.resampling.paired import PairedResampling, PointMetric, mean_of, root_of
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.scores.names import EFFECTS, MEANS

CCE, SQUARED_CCE = "cce_mean", "cce_squared_mean"
REACH = float(ndtri((1.0 + LEVEL) / 2.0))  # standard errors from a normal interval's middle to its end


class MissingInfluenceError(ProtocolError):
    """CCE that cannot be compared: names the version, what its evaluation lacks, and how to get it."""


@dataclass(frozen=True)
class MetricDifference:
    """A metric of two versions on the same rows; lower is better, so a negative difference favours ``first``.

    Attributes:
        difference: first - second.
        low, high: its 95 % interval.
        p_value: two-sided; None where there is no test (the mean CCE has its test in its squares).
        rows: that the interval rests on: reference rows for CCE, points for the others.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float | None
    rows: int

    @property
    def standard_error(self) -> float:
        """Half the interval's width in units of 1.96: the standard error where the interval is normal."""
        return (self.high - self.low) / (2.0 * REACH)

    def rows_that_decide(self, limit: float, difference: float | None = None) -> float:
        """How many rows would move the 95 % interval to one side of ``limit``: rows * (1.96 SE / |D - limit|)^2.

        Args:
            limit: that the interval holds.
            difference: D, what the difference truly is; by default what was found, which is known to a standard error
                only, so that the answer is a rough one. Infinite where it is the limit.
        """
        distance = abs((self.difference if difference is None else difference) - limit)
        return math.inf if distance == 0.0 else self.rows * (REACH * self.standard_error / distance) ** 2


def cce_differences(first: ComparedVersion, second: ComparedVersion) -> dict[str, MetricDifference]:
    """``cce_squared_mean`` and ``cce_mean`` compared by the influence of the reference rows.

    Raises:
        MissingInfluenceError: a version's evaluation does not hold what its reference rows contribute, or the two were
            estimated on other reference rows.
    """
    one, two = _influence(first), _influence(second)
    assert first.influence is not None
    assert second.influence is not None
    if list(first.influence["key"]) != list(second.influence["key"]):
        raise MissingInfluenceError(
            f"CCE of {first.label} and {second.label} was estimated on other reference rows, so its difference has no "
            f"interval; evaluate both again: {_again(first)}; {_again(second)}"
        )
    found = difference_of_influences(one, two)
    rows = len(one.squared)
    return {
        CCE: MetricDifference(
            one.mean, two.mean, found.mean_difference, found.mean_low, found.mean_high, p_value=None, rows=rows
        ),
        SQUARED_CCE: MetricDifference(
            one.squared_mean, two.squared_mean, found.difference, found.low, found.high, found.p_value, rows
        ),
    }


def effect_differences(
    first: ComparedVersion, second: ComparedVersion, one: pd.DataFrame, two: pd.DataFrame
) -> dict[str, MetricDifference]:
    """The effects of calibration given the input, by what each row contributes to them; none where it is not known.

    Linear in the rows, which are independent; the quadratic part is counted twice, so that intervals are wide enough
    where both effects are near 0 (``effects.LeaveOneOut.influence``).
    """
    found = {}
    for name, column in EFFECTS.items():
        a, b = first.metrics.get(name), second.metrics.get(name)
        if a is None or b is None or column not in one or column not in two:
            continue
        rows = one[column].to_numpy(np.float64) - two[column].to_numpy(np.float64)
        error = float(np.sqrt(np.sum(rows**2))) / len(rows)
        difference = a.value - b.value
        p_value = math.erfc(abs(difference) / error / math.sqrt(2.0)) if error > 0.0 else 1.0
        ends = difference - REACH * error, difference + REACH * error
        found[name] = MetricDifference(a.value, b.value, difference, *ends, p_value, len(rows))
    return found


def _influence(version: ComparedVersion) -> CongruenceInfluence:
    squared, mean = version.metrics.get(SQUARED_CCE), version.metrics.get(CCE)
    if version.influence is None or version.influence_noise is None or squared is None or mean is None:
        raise MissingInfluenceError(
            f"CCE of {version.label} has no interval to compare by: its evaluation does not hold what each reference "
            f"row contributes, as evaluations of earlier releases do not; evaluate it again: {_again(version)}"
        )
    rows, noise = version.influence, version.influence_noise
    return CongruenceInfluence(
        squared.value,
        mean.value,
        rows["cce_squared_influence"].to_numpy(np.float64),
        rows["cce_influence"].to_numpy(np.float64),
        noise=noise,
    )


def _again(version: ComparedVersion) -> str:
    return f"congruence evaluate FILE --again -m {version.model.uri}"


def point_differences(
    one: pd.DataFrame, two: pd.DataFrame, *, resamples: int, seed: int
) -> dict[str, MetricDifference]:
    """The metrics that are functions of means over points, from the scores of the points valid in both versions.

    Raises:
        InvalidInputError: fewer than two points.
    """
    metrics = _point_metrics(one, two)
    if not metrics:
        return {}
    found = PairedResampling(len(one), resamples, seed).compare_all(metrics)
    return {name: MetricDifference(**vars(item), rows=len(one)) for name, item in found.items()}


def infinite_metrics(scores: pd.DataFrame) -> frozenset[str]:
    """The means that are infinite: a target to which the prediction gave no probability makes the NLL so."""
    return frozenset(name for name, column in MEANS.items() if column in scores and np.isposinf(scores[column]).any())


def _point_metrics(one: pd.DataFrame, two: pd.DataFrame) -> dict[str, PointMetric]:
    metrics: dict[str, PointMetric] = {}

    def add(name: str, column: str, prepare: Callable[[Array], Array], summary: Callable[[Array], Array]) -> None:
        if column in one and column in two:
            values = [frame[column].to_numpy(float) for frame in (one, two)]
            if all(np.isfinite(item).all() for item in values):
                metrics[name] = PointMetric(prepare(values[0]), prepare(values[1]), summary)

    for name, column in MEANS.items():
        add(name, column, np.asarray, mean_of)
    add("rmse", "squared_error", np.asarray, root_of)
    add("ece", "pit", _below_levels, _calibration_error)
    return metrics


def _below_levels(pit: Array) -> Array:
    return (pit[:, None] <= even_levels()).astype(np.float32)


def _calibration_error(observed: Array) -> Array:
    return np.asarray(np.abs(observed - even_levels()).mean(axis=-1))
