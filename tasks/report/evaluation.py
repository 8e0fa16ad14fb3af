"""The report of one version on one split."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from congruence.tasks.evaluation import SCORES, Evaluation
from congruence.tasks.masking import mask_secrets
from congruence.tasks.plots import extreme_rows
from congruence.tasks.report.rendering import inline_png, records, render

METRICS = {
    "cce_mean": "Mean Conditional Congruence Error: distance, in the output kernel's space, between what the model "
    "predicts at an input and what the data say there. Compares within one protocol only.",
    "cce_noise_floor": "What a perfect model would score on this split: at a finite number of rows CCE is never 0.",
    "cce_excess": "The part of the CCE that is the model's own: the root of CCE² minus floor².",
    "cce_p_value": "Monte-Carlo test of “the model is congruent”: below 0.05, the data contradict the model.",
    "nll_mean": "Mean negative log-likelihood of the targets: proper score, lower is better.",
    "crps_mean": "Mean continuous ranked probability score, in units of the target: lower is better.",
    "ece": "Expected calibration error over the whole split. Near 0 does not mean that single predictions are right.",
    "mae": "Mean absolute error of the predictive mean, in units of the target.",
    "rmse": "Root mean squared error of the predictive mean, in units of the target.",
    "cce_significant_share": "Share of points whose CCE a perfect model would not show (false discovery rate 5 %).",
    "cce_std": "Standard deviation of the mean CCE over the protocol's repeats.",
    "cce_error_bound": "Certificate: the computed CCE of every point is at most this far from the exact one.",
    "sharpness": "How wide the predictive distributions are, in units of the target; to be judged with coverage.",
    "skce": "Squared kernel calibration error over the whole split; 0 in expectation if calibrated, may be negative.",
    "skce_p_value": "Test of “calibrated over the whole split” by the SKCE.",
    "pit_ks_p_value": "Kolmogorov-Smirnov test of uniform PIT values.",
    "pit_cvm_p_value": "Cramér-von Mises test of uniform PIT values.",
    "pit_chi2_p_value": "Chi-squared test of uniform PIT values.",
}
PATTERNS = {
    "coverage_": "Share of outcomes inside the central interval of that many percent: should be that many percent.",
    "width_": "Mean width of that interval, in units of the target: narrow is good only if it covers.",
}
CAPTIONS = {
    "cce_histogram": "A version that is right everywhere spreads around the green outline, with its mean at the dashed "
    "line. Mass far to the right of the outline is error of the version.",
    "embedding_map": "Neighbours look alike to the encoder. Regions brighter than the line on the bar are inputs "
    "that the version gets wrong.",
    "extremes": "The inputs where the prediction is least and most like what the data say: y is the target, f the "
    "predictive mean ± standard deviation.",
    "reliability": "Above the diagonal the version predicts too high, below it too low, across it the wrong spread.",
    "pit_histogram": "Flat is calibrated; a U shape is overconfident, a hump is underconfident, a slope is biased.",
    "pit_interpretation": "What kind of error the PIT histogram shows, read by the interpreter, with its own doubt.",
    "rejection": "If CCE finds the bad predictions, the curve falls below random rejection as more is withheld.",
    "cce_by_slice": "The parts of the split, worst first; a bar that ends at its green tick is at its noise floor.",
}
_POINTS = 10
_SLICES = 60
_UNSHOWN = ("valid", "reason", "squared_error")


def evaluation_report(evaluation: Evaluation, figures: Mapping[str, bytes]) -> str:
    """A self-contained HTML page: status, metrics and how to read them, plots, worst and best points, provenance.

    Args:
        figures: PNG bytes by the names of ``plots.evaluation_figures``.
    """
    metrics = evaluation.metrics
    known = [name for name in METRICS if name in metrics]
    worst, best = extreme_rows(evaluation, _POINTS)
    invalid = evaluation.scores[~evaluation.scores["valid"].astype(bool)]
    return render(
        "evaluation.html",
        title=f"{evaluation.model.label} on {evaluation.split.name}",
        model=evaluation.model,
        split=evaluation.split,
        protocol=evaluation.protocol,
        status=evaluation.status,
        headlines=[(name, metrics[name], METRICS[name]) for name in known],
        others=[(name, metrics[name], _pattern(name)) for name in metrics if name not in METRICS],
        figures=[(name, inline_png(picture), CAPTIONS.get(name, "")) for name, picture in figures.items()],
        points=[("Highest CCE", _points(evaluation, worst)), ("Lowest CCE", _points(evaluation, best))],
        slices=records(evaluation.slices.head(_SLICES)),
        more_slices=max(0, len(evaluation.slices) - _SLICES),
        reasons=invalid["reason"].astype(str).value_counts().head(20).to_dict(),
        seconds=evaluation.seconds,
        provenance=json.dumps(mask_secrets(evaluation.provenance), indent=1, default=str, ensure_ascii=False),
    )


def _pattern(name: str) -> str:
    return next((meaning for start, meaning in PATTERNS.items() if name.startswith(start)), "")


def _points(evaluation: Evaluation, rows: list[int]) -> list[dict[str, Any]]:
    columns = [name for name in SCORES if name in evaluation.scores and name not in _UNSHOWN]
    chosen = evaluation.scores.iloc[rows][columns]
    chosen.insert(0, "row", rows)
    return records(chosen)
