"""How far a version can be trusted on single inputs: what is said of each, and which to withhold."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.scores import point_scores, resolution
from congruence.kernels.trust.judgement import RejectionCurve, WithholdingJudgement, rejection_curve
from congruence.kernels.trust.rule import WithholdingRule
from congruence.kernels.trust.scorer import COLUMNS, InputScores
from congruence.tasks.scores.evaluation import SplitSummary
from congruence.tasks.scores.metrics.registry import METRICS
from congruence.tasks.scores.points import over_all_rows
from congruence.tasks.settings.sections import ModelVersion

LOSSES = {METRICS[name].column: name for name in ("mae", "nll_mean", "crps_mean")}
TABLE = COLUMNS


@dataclass(frozen=True)
class Reliability:
    """The reliability of one version on new inputs, judged by a labelled split.

    Attributes:
        reference: the labelled split.
        inputs: the new inputs.
        scores: one row per input in their order, the columns of ``TABLE`` first; rows that cannot be read are withheld,
            with a reason and NaN.
        unusual: number of inputs that are unusual at the rule's level.
        rule: by which inputs are withheld.
        judgement: what withholding does on the labelled split.
        curves: what withholding by CCE gains on the inputs themselves, by loss, where they have targets.
    """

    model: ModelVersion
    reference: SplitSummary
    inputs: SplitSummary
    protocol: EvaluationProtocol
    scores: pd.DataFrame = field(repr=False)
    unusual: int
    rule: WithholdingRule
    judgement: WithholdingJudgement = field(repr=False)
    curves: dict[str, RejectionCurve] = field(repr=False)

    @property
    def valid_scores(self) -> pd.DataFrame:
        """The scores of the inputs that could be read."""
        return self.scores[self.scores["valid"].astype(bool)]

    @property
    def withheld(self) -> int:
        """Number of inputs that could be read and are withheld."""
        return int(self.valid_scores["withhold"].astype(bool).sum())

    @property
    def withheld_scores(self) -> pd.DataFrame:
        """The withheld inputs, the least usual first, then those of highest CCE beyond a true version's."""
        chosen = self.scores[self.scores["withhold"].astype(bool)]
        excess = chosen["cce"] ** 2 - chosen["cce_expected"] ** 2
        order = np.lexsort((-excess.fillna(np.inf), chosen["support_p_value"].fillna(2.0) * chosen["cce"].isna()))
        return chosen.iloc[order]

    def extremes(self, count: int) -> pd.DataFrame:
        """``count`` withheld inputs and as many of those that stay, of lowest CCE, with their row numbers."""
        withheld = self.withheld_scores.head(count)
        stay = self.valid_scores[~self.valid_scores["withhold"].astype(bool)]
        stay = stay.sort_values("cce", kind="stable").head(count)
        table = pd.concat([withheld, stay])
        table.insert(0, "row", table.index)
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

    def risk_coverage_table(self) -> pd.DataFrame:
        """The curves of the labelled split as numbers: by loss, what is withheld first, and the share withheld."""
        parts = [
            pd.DataFrame(
                {
                    "loss": loss,
                    "withheld first": criterion,
                    "withheld_share": curve.withheld,
                    "kept": curve.kept_loss,
                    "random": curve.random_loss,
                    "random_low": curve.random_low,
                    "random_high": curve.random_high,
                }
            )
            for loss, by_criterion in self.judgement.curves.items()
            for criterion, curve in by_criterion.items()
        ]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def reliability(
    model: ModelVersion,
    protocol: EvaluationProtocol,
    reference: SplitSummary,
    inputs: SplitSummary,
    rows: pd.DataFrame,
    result: CongruenceResult,
    found: InputScores,
    predictive: Distribution,
    targets: Array | None,
) -> Reliability:
    """Put together what was measured at the inputs.

    Args:
        rows: key, valid, reason and any other columns of every input.
        result: CCE of the valid inputs, by which those with targets are ranked.
        found: what is said of the valid inputs.
        predictive: the version's distributions there.
        targets: of the valid inputs, where there are any.
    """
    columns = found.columns()
    if targets is not None:
        columns |= point_scores(predictive, targets, resolution(targets))
    elif np.ndim(predictive.mean()) == 1:
        columns |= {"mean": predictive.mean(), "std": predictive.std()}
    valid = rows["valid"].to_numpy(bool)
    scores = rows.copy()
    for name, column in columns.items():
        if name in ("key", "withhold", "reason") or np.ndim(column) != 1:
            continue
        scores[name] = over_all_rows(np.asarray(column, dtype=np.float64), valid)
    # Nobody can vouch for what could not be read.
    withhold = np.ones(len(rows), bool)
    withhold[valid] = found.withhold
    scores["withhold"] = withhold
    reason = scores["reason"].to_numpy(dtype=object, copy=True)
    reason[valid] = found.reason
    scores["reason"] = reason
    scores = scores[[*TABLE, *(name for name in scores if name not in TABLE)]]
    losses = {name: columns[name] for name in LOSSES if name in columns}
    curves = {
        name: rejection_curve(result.values, loss)
        for name, loss in losses.items()
        if len(loss) > 1 and np.isfinite(loss).all()
    }
    return Reliability(model, reference, inputs, protocol, scores, found.unusual, found.rule, found.judgement, curves)
