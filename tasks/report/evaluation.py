"""The report of one version on one split."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from congruence.kernels.conditional_calibration.count_reading import CountRows
from congruence.tasks.plots import extreme_rows
from congruence.tasks.report.rendering import inline_png, records, render
from congruence.tasks.runtime.masking import mask_secrets
from congruence.tasks.scores.counts import CountFit, count_fit
from congruence.tasks.scores.evaluation import SCORES, Evaluation
from congruence.tasks.scores.features import POINTS
from congruence.tasks.scores.meanings import CERTIFICATE_KINDS, MEANINGS, meaning, verdict
from congruence.tasks.scores.segments import FEWEST_ROWS, Segment, searched_rows, weak_segments
from congruence.tasks.scores.summary import floor_share

CAPTIONS = {
    "fault_map": "The fault that explains best what is seen around each input, where chance does not explain it (false "
    "discovery rate 5 %).",
    "order_maps": "One map for each kind of fault: how far the smoothed score around each input is from what a version "
    "that is right would have. Beyond 3 is more than chance gives at one input.",
    "local_reliability": "At a typical input of the region that is most wrong: above the diagonal the version predicts "
    "too high, below it too low, across it the wrong spread.",
    "cce_histogram": "A version that is right everywhere spreads around the green outline, with its mean inside the "
    "green band. Mass far to the right of the outline is error of the version.",
    "embedding_map": "Neighbours look alike to the encoder. Regions brighter than the line on the bar are inputs "
    "that the version gets wrong.",
    "extremes": "The inputs where the prediction is least and most like what the data say: y is the target, f the "
    "predictive mean ± standard deviation.",
    "reliability": "Above the diagonal the version predicts too high, below it too low, across it the wrong spread.",
    "pit_histogram": "Flat is calibrated; a U shape is overconfident, a hump is underconfident, a slope is biased.",
    "pit_interpretation": "What kind of error the PIT histogram shows, read by the interpreter, with its own doubt.",
    "rejection": "If CCE finds the bad predictions, the curve falls below random rejection as more is withheld.",
    "cce_by_slice": "The parts of the split, worst first. Left: what is left of their CCE beyond that of a true "
    "version. Right: how far the targets lie above the predictions, and their spread over the predicted one, with 95 % "
    "intervals; grey where chance explains it (false discovery rate 5 %).",
    "rootogram": "Bars that end outside the band are counts that the version predicts too seldom or too often; the "
    "first is that of zeros. On the scale of square roots rare counts can be judged beside common ones.",
}
_SLICES = 60
_FEATURES = 12
BROAD = ("extremes", "rejection", "pit_interpretation", "cce_by_slice")
"""The pictures that take the width of the page."""

FAULTS = ("fault_map", "local_reliability", "order_maps")
"""The pictures that stand with what is wrong, above the others."""

_UNSHOWN = ("valid", "reason", "squared_error")


def evaluation_report(
    evaluation: Evaluation, figures: Mapping[str, bytes], *, logged_as: str = "", counts: CountFit | None = None
) -> str:
    """A self-contained HTML page: what is wrong, metrics and how to read them, plots, worst and best points.

    Args:
        figures: PNG bytes by the names of ``plots.evaluation_figures``.
        logged_as: the name of the logged model behind the version, which its author knows it by.
        counts: the ``count_fit`` of the evaluation, where it is known already.
    """
    metrics = evaluation.metrics
    ordered = [name for name in MEANINGS if name in metrics]
    ordered += [name for name in metrics if name not in MEANINGS]
    worst, best = extreme_rows(evaluation, POINTS)
    invalid = evaluation.scores[~evaluation.scores["valid"].astype(bool)]
    return render(
        "evaluation.html",
        title=f"{evaluation.model.label} on {evaluation.split.name}",
        model=evaluation.model,
        logged_as=logged_as,
        split=evaluation.split,
        protocol=evaluation.protocol,
        status=evaluation.status,
        verdict=verdict(metrics),
        metrics=[(name, metrics[name], meaning(name)) for name in ordered],
        certificate_kind=CERTIFICATE_KINDS.get(str(evaluation.provenance.get("certificate_kind")), ""),
        wrong=evaluation.wrong,
        preview=evaluation.preview,
        places=[] if evaluation.wrong is None else records(evaluation.wrong.places.head(_SLICES)),
        segments=_segments(evaluation),
        searched=_searched(evaluation),
        counts=counts or count_fit(evaluation),
        broad=BROAD,
        fault_figures=[_figure(name, figures[name]) for name in FAULTS if name in figures],
        figures=[_figure(name, picture) for name, picture in figures.items() if name not in FAULTS],
        points=[("Highest CCE", _points(evaluation, worst)), ("Lowest CCE", _points(evaluation, best))],
        slices=records(evaluation.slices.head(_SLICES)),
        more_slices=max(0, len(evaluation.slices) - _SLICES),
        reasons=invalid["reason"].astype(str).value_counts().head(20).to_dict(),
        seconds=evaluation.seconds,
        provenance=json.dumps(mask_secrets(evaluation.provenance), indent=1, default=str, ensure_ascii=False),
    )


def _figure(name: str, picture: bytes) -> tuple[str, str, str]:
    return name, inline_png(picture), CAPTIONS.get(name, "")


def _points(evaluation: Evaluation, rows: list[int]) -> list[dict[str, Any]]:
    columns = [name for name in SCORES if name in evaluation.scores and name not in _UNSHOWN]
    chosen = evaluation.scores.iloc[rows][columns]
    chosen.insert(0, "row", rows)
    features = evaluation.features
    if features is not None:
        shown = [name for name in features if name not in chosen][:_FEATURES]
        first = [name for name in ("row", "key", "cce", "target", "mean") if name in chosen]
        # What the row is like stands where no scrolling is needed to see it, before what else is known of it.
        chosen = pd.concat([chosen[first], features.loc[rows, shown], chosen.drop(columns=first)], axis=1)
    return records(chosen)


def _searched(evaluation: Evaluation) -> list[str]:
    """The features in which weak segments were looked for."""
    features = evaluation.features
    if features is None or "pit" not in evaluation.scores or len(features) < FEWEST_ROWS:
        return []
    return [str(name) for name in features]


def _segments(evaluation: Evaluation) -> list[Segment]:
    if not _searched(evaluation):
        return []
    assert evaluation.features is not None
    scores = evaluation.valid_scores
    seed = evaluation.provenance.get("seed", 0)
    rows = searched_rows(len(scores), seed if isinstance(seed, int) else 0)
    columns = [scores[name].to_numpy(float)[rows] for name in ("pit", "cce", "cce_noise_floor")]
    pit, cce, floor = columns
    if_true = floor * floor_share(evaluation.metrics)
    predictive, targets = evaluation.predictive, evaluation.targets
    counts = None
    if predictive is not None and targets is not None:
        counts = CountRows.of(targets[rows], predictive[rows])
    return weak_segments(evaluation.features.loc[scores.index[rows]], pit, cce, if_true, counts)
