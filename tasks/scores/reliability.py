"""How far a version can be trusted on new inputs: their scores, what is said of each, and which to withhold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.driver import HeldSplit
from congruence.kernels.engine.landmarks import EXACT_ROWS
from congruence.kernels.engine.plan import needs_residual
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.engine.spectrum import LEADING, Spectrum
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.scores import point_scores, resolution
from congruence.kernels.trust.judgement import RejectionCurve, WithholdingJudgement
from congruence.kernels.trust.rule import WithholdingRule
from congruence.kernels.trust.scorer import COLUMNS, InputScores, input_scorer
from congruence.kernels.trust.support import FEWEST_ROWS
from congruence.tasks.scores.evaluation import SplitSummary
from congruence.tasks.scores.points import over_all_rows
from congruence.tasks.scores.summary import LOSSES, rejection_curves
from congruence.tasks.sentences.inputs import Rows, reasons
from congruence.tasks.settings.sections import ModelVersion

if TYPE_CHECKING:  # the pages of a notebook are made where no MLflow is
    from congruence.tasks.data.split import Split
    from congruence.tasks.models.evaluated_rows import EvaluatedRows

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
    withhold, reason = np.ones(len(rows), bool), rows["reason"].to_numpy(dtype=object, copy=True)
    withhold[valid], reason[valid] = found.withhold, found.reason  # nobody can vouch for what could not be read
    own = [name for name, column in columns.items() if name not in ("key", "withhold", "reason") and column.ndim == 1]
    measured = {name: over_all_rows(np.asarray(columns[name], dtype=np.float64), valid) for name in own}
    scores = rows.assign(**measured, withhold=withhold, reason=reason)
    scores = scores[[*TABLE, *(name for name in scores if name not in TABLE)]]
    curves = rejection_curves(result.values, columns)
    return Reliability(model, reference, inputs, protocol, scores, found.unusual, found.rule, found.judgement, curves)


def score_new_inputs(
    protocol: EvaluationProtocol,
    known: EvaluatedRows,
    asked: EvaluatedRows,
    label: str,
    result: CongruenceResult,
    *,
    pictures: tuple[pd.DataFrame, pd.DataFrame] | None = None,
    withhold: Any | None = None,
    seed: int = 0,
) -> InputScores:
    """What is said of the valid rows of ``asked`` by the labelled rows ``known``, with reasons in sentences.

    Args:
        protocol: under which the CCE was measured.
        known, asked: with the predictions of the version ``label``.
        result: its CCE and noise floor at the valid rows of ``asked``.
        pictures: what ``picture_table`` says of the rows of both splits, where they are images.
        withhold: see ``WithholdingRule.of``.
        seed: of folds, hold-out and draws.
    """
    dtype = np.float64 if int(known.valid.sum()) <= EXACT_ROWS else np.float32
    raw, new = (rows.embeddings().astype(dtype) for rows in (known, asked))
    y = known.targets()
    driver = HeldSplit(raw, y).driver(protocol, {}, 0)
    few = min(LEADING, driver.n)  # only the leading spectrum is read
    system = driver.system(few, needs_targets=needs_residual(protocol))
    x, query = protocol.apply(raw), protocol.apply(new)
    if pictures is None:
        columns, new_columns = table_columns(known), table_columns(asked)
    else:
        columns, new_columns = (
            table[rows.valid].reset_index(drop=True) for table, rows in zip(pictures, (known, asked), strict=True)
        )
    design = known.design()
    spectrum = Spectrum.of(system)
    scorer = input_scorer(
        x,
        spectrum,
        spectrum.smoother(x),
        y,
        known.all_predictive(label),
        raw=raw,
        columns=columns,
        withhold=withhold,
        groups=design.groups,
        time=design.time,
        output_kernel=driver.look_at([]).output_kernel(system),
        keys=_keys(known),
        seed=seed,
    )
    scores = scorer.score(query, raw=new, columns=new_columns, keys=_keys(asked), result=result)
    of_split, of_inputs = Rows(raw, columns, _keys(known)), Rows(new, new_columns)
    return replace(scores, reason=reasons(scorer.support, scores, of_split, of_inputs))


def table_columns(rows: EvaluatedRows) -> pd.DataFrame | None:
    """The columns of the valid rows that encoder and model read, in that order; None of images, texts and vectors."""
    settings = rows.split.settings
    if settings.input_kind != "features" or len(settings.input_columns) == 1 != rows.store.dimension:
        return None
    names = list(dict.fromkeys([*settings.input_columns, *settings.model_input_columns]))
    frames = [rows.split.frame(shard, names) for shard in rows.split.shards]
    return pd.concat(frames, ignore_index=True)[rows.valid].reset_index(drop=True)


def zero_embeddings(protocol: EvaluationProtocol, rows: EvaluatedRows) -> dict[int, str]:
    """Rows, once they are embedded, whose embedding has no direction though the protocol needs one, and why.

    Some encoders give zeros to a blank image, and standardised features are zeros at the mean of each.
    """
    if not protocol.normalize:
        return {}
    zeros = np.flatnonzero(rows.valid)[~rows.embeddings().any(axis=1)]
    why = f"its embedding is all zeros and has no direction; protocol {protocol.name!r} needs unit norm"
    return dict.fromkeys(zeros.tolist(), why)


def require_enough_rows(split: Split) -> None:
    """Raise InvalidInputError where a labelled split is too short to say what is usual."""
    if split.rows < FEWEST_ROWS:
        raise InvalidInputError(
            f"split {split.name!r}: {split.rows} rows; at least {FEWEST_ROWS} labelled rows must say what is usual: "
            "name a longer split with --split"
        )


def _keys(rows: EvaluatedRows) -> Any:
    return np.asarray(rows.split.keys())[rows.valid]
