"""Versions measured on the same split under the same protocol, and the paired differences between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.regression import EDGE
from congruence.kernels.errors import InvalidInputError, ProtocolError
from congruence.kernels.paired import (
    RESAMPLES,
    PairedDifference,
    PairedResampling,
    PointMetric,
    mean_of,
    root_of,
)
from congruence.kernels.protocols import require_same
from congruence.tasks.evaluation import Evaluation, Metric, SplitSummary
from congruence.tasks.registry import ModelVersion

MEANS = {"cce_mean": "cce", "nll_mean": "nll", "crps_mean": "crps", "mae": "absolute_error"}
ECE_LEVELS = 50
_LARGEST = 50


@dataclass(frozen=True)
class ComparedVersion:
    """What a comparison reads of an evaluation, fresh or logged: see ``Evaluation`` for the fields."""

    model: ModelVersion
    split: SplitSummary
    protocol_name: str
    protocol_digest: str
    metrics: dict[str, Metric]
    scores: pd.DataFrame = field(repr=False)
    run_id: str | None = None

    @classmethod
    def of(cls, evaluation: Evaluation, run_id: str | None = None) -> ComparedVersion:
        """An evaluation that was just made."""
        return cls(
            model=evaluation.model,
            split=evaluation.split,
            protocol_name=evaluation.protocol.name,
            protocol_digest=evaluation.protocol.digest,
            metrics=evaluation.metrics,
            scores=evaluation.scores,
            run_id=run_id,
        )

    @property
    def label(self) -> str:
        """``name/version``."""
        return self.model.label


@dataclass(frozen=True)
class PointsWon:
    """On how many points the first version scores lower (won), higher (lost), or the same (tied)."""

    won: int
    lost: int
    tied: int


@dataclass(frozen=True)
class PairedComparison:
    """Two versions point by point; lower is better in every metric, so a negative difference favours ``first``.

    Attributes:
        rows: points valid in both.
        differences: by metric.
        points: points won and lost, for the metrics that are means over points.
        largest: the rows on which the two differ most in CCE, both ways, largest first.
    """

    first: ComparedVersion
    second: ComparedVersion
    rows: int
    differences: dict[str, PairedDifference]
    points: dict[str, PointsWon]
    largest: pd.DataFrame = field(repr=False)

    def table(self) -> pd.DataFrame:
        """One row per metric."""
        records = []
        for name, item in self.differences.items():
            record: dict[str, Any] = {"metric": name, **vars(item)}
            if name in self.points:
                record |= vars(self.points[name])
            records.append(record)
        return pd.DataFrame(records)


@dataclass(frozen=True)
class Comparison:
    """Versions on one split under one protocol, each compared with the ``baseline``; ordered by mean CCE."""

    versions: list[ComparedVersion]
    baseline: ComparedVersion
    pairs: dict[str, PairedComparison]
    resamples: int
    seed: int

    @property
    def split(self) -> SplitSummary:
        """The split that all were measured on."""
        return self.baseline.split

    def table(self) -> pd.DataFrame:
        """One row per version: its metrics, and the CCE difference from the baseline with interval and p-value."""
        records = []
        for version in self.versions:
            record: dict[str, Any] = {"version": version.label}
            record |= {name: metric.value for name, metric in version.metrics.items()}
            if version.label in self.pairs and "cce_mean" in self.pairs[version.label].differences:
                item = self.pairs[version.label].differences["cce_mean"]
                record |= {
                    "cce_difference": item.difference,
                    "cce_difference_low": item.low,
                    "cce_difference_high": item.high,
                    "cce_p_value": item.p_value,
                }
            records.append(record)
        return pd.DataFrame(records)


def compare_versions(
    versions: Sequence[ComparedVersion],
    *,
    baseline: str | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare every version with the baseline, point by point.

    Args:
        versions: measured on the same split under the same protocol.
        baseline: label (``name/version``) of the version to compare with; the one with the lowest CCE by default.
        resamples: of the bootstrap and of the permutation test.
        seed: of both.

    Raises:
        ProtocolError: the versions' splits or protocols differ.
        InvalidInputError: fewer than two versions, or no such baseline.
    """
    if len(versions) < 2:
        raise InvalidInputError(f"versions: {len(versions)} to compare; name at least two evaluated versions")
    require_comparable(versions)
    ordered = sorted(versions, key=lambda version: (_cce(version), version.label))
    labels = [version.label for version in ordered]
    if len(set(labels)) != len(labels):
        raise InvalidInputError(f"versions: {', '.join(labels)} names one version twice")
    if baseline is not None and baseline not in labels:
        raise InvalidInputError(f"baseline: {baseline} is not among the compared versions {', '.join(labels)}")
    chosen = ordered[0] if baseline is None else ordered[labels.index(baseline)]
    pairs = {
        version.label: compare_pair(version, chosen, resamples=resamples, seed=seed)
        for version in ordered
        if version is not chosen
    }
    return Comparison(ordered, chosen, pairs, resamples, seed)


def require_comparable(versions: Sequence[ComparedVersion]) -> None:
    """Raise ProtocolError where the versions were measured on other splits or under other protocols."""
    require_same({version.label: version.split.digest[:16] for version in versions}, "split")
    require_same({version.label: version.protocol_digest for version in versions}, "protocol")


def compare_pair(
    first: ComparedVersion, second: ComparedVersion, *, resamples: int = RESAMPLES, seed: int = 0
) -> PairedComparison:
    """Two versions on the points that are valid in both.

    Raises:
        ProtocolError: other splits, protocols or rows.
        InvalidInputError: fewer than two common valid points.
    """
    require_comparable([first, second])
    if list(first.scores["key"]) != list(second.scores["key"]):
        raise ProtocolError(
            f"scores: the rows of {first.label} and {second.label} have other keys; evaluate both again"
        )
    valid = (first.scores["valid"] & second.scores["valid"]).to_numpy(bool)
    one, two = first.scores[valid], second.scores[valid]
    metrics = _point_metrics(one, two)
    if not metrics:
        raise InvalidInputError(f"scores: {first.label} and {second.label} share no score column")
    differences = PairedResampling(int(valid.sum()), resamples, seed).compare_all(metrics)
    points = {name: _points_won(one[column], two[column]) for name, column in MEANS.items() if name in metrics}
    return PairedComparison(first, second, int(valid.sum()), differences, points, _largest(one, two))


def _cce(version: ComparedVersion) -> float:
    metric = version.metrics.get("cce_mean")
    return metric.value if metric is not None else float(version.scores["cce"].mean())


def _point_metrics(one: pd.DataFrame, two: pd.DataFrame) -> dict[str, PointMetric]:
    def shared(column: str) -> tuple[Array, Array] | None:
        if column not in one or column not in two:
            return None
        values = one[column].to_numpy(float), two[column].to_numpy(float)
        return values if all(np.isfinite(item).all() for item in values) else None

    metrics = {}
    for name, column in MEANS.items():
        if values := shared(column):
            metrics[name] = PointMetric(*values, mean_of)
    if values := shared("squared_error"):
        metrics["rmse"] = PointMetric(*values, root_of)
    if values := shared("pit"):
        metrics["ece"] = PointMetric(_below_levels(values[0]), _below_levels(values[1]), _calibration_error)
    return metrics


def _levels() -> Array:
    return np.linspace(EDGE, 1.0 - EDGE, ECE_LEVELS)


def _below_levels(pit: Array) -> Array:
    return (pit[:, None] <= _levels()).astype(np.float32)


def _calibration_error(observed: Array) -> Array:
    return np.asarray(np.abs(observed - _levels()).mean(axis=-1))


def _points_won(one: pd.Series, two: pd.Series) -> PointsWon:
    difference = one.to_numpy(float) - two.to_numpy(float)
    return PointsWon(int((difference < 0).sum()), int((difference > 0).sum()), int((difference == 0).sum()))


def _largest(one: pd.DataFrame, two: pd.DataFrame) -> pd.DataFrame:
    difference = one["cce"] - two["cce"]
    order = difference.abs().sort_values(ascending=False, kind="stable").index[:_LARGEST]
    table = pd.DataFrame({"row": order, "key": one.loc[order, "key"], "cce_difference": difference.loc[order]})
    for column in ("target", "cce", "mean", "std", "nll", "crps"):
        if column == "target" and "target" in one:
            table["target"] = one.loc[order, "target"]
        elif column in one and column in two:
            table[f"{column}_first"], table[f"{column}_second"] = one.loc[order, column], two.loc[order, column]
    return table.reset_index(drop=True)
