"""Actual over expected of a version whose targets add up: in all, by decile of the prediction, lift and deviance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.kernels.calibration.totals import actual_over_expected, deciles, has_total, poisson_deviance
from congruence.tasks.scores.evaluation import Evaluation


@dataclass(frozen=True)
class Totals:
    """Totals of a split.

    Attributes:
        whole: one record: rows, actual, expected, ratio with interval and the ends of a right version's.
        deciles: one record a tenth of the rows by prediction, the lowest first.
        lift: mean target of the highest tenth over that of all rows.
        deviance: Poisson deviance a row.
        explained: 1 - deviance / that of the mean target for every row.
    """

    whole: dict[str, Any]
    deciles: list[dict[str, Any]]
    lift: float
    deviance: float
    explained: float


def totals_of(evaluation: Evaluation) -> Totals | None:
    """The totals of a version whose targets are never negative and whose means are positive; None of any other."""
    scores, targets = evaluation.valid_scores, evaluation.targets
    if targets is None or "mean" not in scores or "std" not in scores or targets.ndim != 1:
        return None
    mean, std = (scores[name].to_numpy(float) for name in ("mean", "std"))
    if not has_total(targets, mean):
        return None
    whole = _records(np.zeros(len(mean), dtype=np.intp), targets, mean, std)[0]
    codes = deciles(mean)
    by_decile = _records(codes, targets, mean, std)
    top = targets[codes == codes.max()]
    deviance = poisson_deviance(targets, mean)
    of_mean = poisson_deviance(targets, np.full_like(mean, np.mean(targets)))
    explained = 1.0 - deviance / of_mean if of_mean > 0.0 else 0.0
    return Totals(whole, by_decile, float(np.mean(top) / np.mean(targets)), deviance, explained)


def _records(codes: Any, targets: Any, mean: Any, std: Any) -> list[dict[str, Any]]:
    found = actual_over_expected(codes, int(codes.max()) + 1, targets, mean, std)
    names = ("rows", "actual", "expected", "ratio", "low", "high", "null_low", "null_high")
    each = zip(*(getattr(found, name).tolist() for name in names), strict=True)
    return [dict(zip(names, values, strict=True)) for values in each]
