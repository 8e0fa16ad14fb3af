"""How far a version can be trusted on single inputs: their CCE, whether it is real, and which inputs to withhold."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.outcome import CongruenceTest, benjamini_hochberg
from congruence.kernels.congruence.result import CongruenceResult
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.rejection import RejectionCurve, rejection_curve
from congruence.kernels.scores import point_scores
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.scores.evaluation import SplitSummary
from congruence.tasks.scores.names import MEANS

LOSSES = {MEANS[metric]: metric for metric in ("mae", "nll_mean", "crps_mean")}
FALSE_DISCOVERIES = 0.05


@dataclass(frozen=True)
class Reliability:
    """The reliability of one version on new inputs, judged by a labelled split.

    Attributes:
        reference: the labelled split.
        inputs: the new inputs.
        scores: one row per input in their order; invalid ones with a reason and NaN.
        threshold: inputs of higher CCE are suggested to be withheld; None where no error was found to be real.
        curves: what withholding by CCE gains, by loss, where the inputs have targets.
    """

    model: ModelVersion
    reference: SplitSummary
    inputs: SplitSummary
    protocol: EvaluationProtocol
    scores: pd.DataFrame = field(repr=False)
    threshold: float | None
    curves: dict[str, RejectionCurve] = field(repr=False)

    @property
    def valid_scores(self) -> pd.DataFrame:
        """The scores of the inputs that could be read."""
        return self.scores[self.scores["valid"].astype(bool)]

    @property
    def withheld(self) -> int:
        """Number of inputs suggested to be withheld."""
        return int(self.valid_scores["withhold"].astype(bool).sum())

    def extremes(self, count: int) -> pd.DataFrame:
        """The ``count`` inputs of highest CCE and as many of the lowest, with their row numbers."""
        ordered = self.valid_scores.drop(columns=["valid", "reason"]).sort_values("cce", ascending=False, kind="stable")
        count = min(count, -(-len(ordered) // 2))
        worst, best = ordered.head(count), ordered.tail(min(count, len(ordered) - count)).iloc[::-1]
        labels = [f"highest CCE {i + 1}" for i in range(len(worst))] + [f"lowest CCE {i + 1}" for i in range(len(best))]
        table = pd.concat([worst, best])
        table.insert(0, "part", labels)
        table.insert(1, "row", table.index)
        return table

    def rejection_table(self) -> pd.DataFrame:
        """The curves as numbers: share withheld, threshold, and per loss its mean over the rest and at random."""
        first = next(iter(self.curves.values()))
        columns = {"withheld_share": first.withheld, "threshold": first.threshold}
        for name, curve in self.curves.items():
            metric = LOSSES[name]
            columns |= {
                f"{metric}_kept": curve.kept_loss,
                f"{metric}_random": np.full(len(curve.withheld), curve.random_loss),
                f"{metric}_random_low": curve.random_low,
                f"{metric}_random_high": curve.random_high,
            }
        return pd.DataFrame(columns)


def reliability(
    model: ModelVersion,
    protocol: EvaluationProtocol,
    reference: SplitSummary,
    inputs: SplitSummary,
    rows: pd.DataFrame,
    result: CongruenceResult,
    test: CongruenceTest,
    predictive: Distribution,
    targets: Array | None,
    *,
    level: float = FALSE_DISCOVERIES,
) -> Reliability:
    """Put together what was measured at the inputs.

    Args:
        rows: key, valid, reason and any other columns of every input.
        result: CCE and noise floor of the valid inputs.
        test: the congruence test at the valid inputs.
        predictive: the version's distributions there.
        targets: of the valid inputs, where there are any.
        level: false discovery rate at which an error counts as real.
    """
    values = result.values
    threshold = abstention_threshold(values, benjamini_hochberg(test.point_p_values) <= level)
    columns = {
        "cce": values,
        "cce_noise_floor": result.noise_floor_values,
        "cce_excess": result.excess_values,
        "cce_p_value": test.point_p_values,
        "cce_q_value": benjamini_hochberg(test.point_p_values),
    }
    if targets is not None:
        columns |= point_scores(predictive, targets)
    elif np.ndim(predictive.mean()) == 1:
        columns |= {"mean": predictive.mean(), "std": predictive.std()}
    valid = rows["valid"].to_numpy(bool)
    scores = rows.copy()
    for name, column in columns.items():
        if np.ndim(column) == 1:
            spread = np.full(len(rows), np.nan)
            spread[valid] = column
            scores[name] = spread
    scores["withhold"] = pd.array([pd.NA] * len(rows), dtype="boolean")
    scores.loc[valid, "withhold"] = np.zeros(len(values), bool) if threshold is None else values > threshold
    losses = {name: columns[name] for name in LOSSES if name in columns}
    curves = {
        name: rejection_curve(values, loss)
        for name, loss in losses.items()
        if len(loss) > 1 and np.isfinite(loss).all()
    }
    return Reliability(model, reference, inputs, protocol, scores, threshold, curves)


def abstention_threshold(cce: Array, real: Array) -> float | None:
    """The CCE that best separates points whose error is ``real`` from the others: fewest points on the wrong side.

    Halfway between two neighbouring values; None where no error is real.

    Raises:
        InvalidInputError: another number of flags than of values.
    """
    if len(cce) != len(real):
        raise InvalidInputError(f"real: {len(real)} flags for {len(cce)} CCE values")
    if not np.any(real):
        return None
    order = np.argsort(cce, kind="stable")
    values, flags = np.asarray(cce, dtype=np.float64)[order], np.asarray(real, dtype=bool)[order]
    # With the k smallest kept: real errors among them are missed, harmless points above them are withheld.
    missed = np.concatenate([[0], np.cumsum(flags)])
    harmless = np.concatenate([[0], np.cumsum(~flags)])
    wrong = missed + harmless[-1] - harmless
    apart = np.concatenate([[True], values[1:] > values[:-1], [True]])
    kept = int(np.argmin(np.where(apart, wrong, len(values) + 1)))
    if kept == 0:
        return float(values[0] / 2.0)
    if kept == len(values):
        return float(values[-1])
    return float((values[kept - 1] + values[kept]) / 2.0)
