"""The report of one version on one split: its data, made from the scores, and the page drawn from them alone."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from congruence.kernels.verdict import Verdict
from congruence.tasks.encoders.base import what_it_knows
from congruence.tasks.report.headlines import Headline, Totals, headlines, quantiles_read, totals_of
from congruence.tasks.report.page import PageData, page_data
from congruence.tasks.report.rendering import records, render
from congruence.tasks.report.selections import Selection, of_segment, of_sentence, places_of
from congruence.tasks.runtime.masking import mask_secrets
from congruence.tasks.scores.correction import Advice, advise
from congruence.tasks.scores.counts import CountFit, count_fit
from congruence.tasks.scores.evaluation import Evaluation, MetricValue
from congruence.tasks.scores.metrics.metric import Group, Metric
from congruence.tasks.scores.metrics.registry import METRICS, metric_of
from congruence.tasks.scores.segments import FEWEST_ROWS
from congruence.tasks.scores.wrong import Segment
from congruence.tasks.sentences.calibration import capital, p_value_in_words
from congruence.tasks.sentences.findings import place_in_words

SCRIPTS = ("page", "tables", "charts", "map", "along", "row", "rows", "evaluation")
"""The page's scripts, in the order in which they stand in it."""

CERTIFICATE_KINDS = {
    "computed": "Every part of it was computed.",
    "sampled": "Parts of it were read at random points and have a margin: an estimate, not a proof.",
}
"""What the run's parameter ``certificate_kind`` says of ``cce_error_bound``."""

_PICTURES = 36
_MOST_PLACES = 300


@dataclass(frozen=True)
class ReportData:
    """All that the page of one version shows.

    Attributes:
        verdict, advice, headlines: what stands at the top.
        sentences: what is wrong, each with the rows that it speaks of.
        places: slices or regions, the most wrong first, each with its rows.
        segments: weak segments, likewise; ``searched`` the features that they were looked for in.
        slices: one record a slice.
        metrics: by group.
        page: what the scripts read.
    """

    verdict: Verdict
    advice: Advice | None
    headlines: list[Headline]
    sentences: list[tuple[str, Selection | None]]
    places: list[tuple[dict[str, Any], Selection | None]]
    segments: list[tuple[Segment, Selection]]
    searched: list[str]
    slices: list[tuple[dict[str, Any], Selection | None]]
    metrics: dict[str, list[tuple[Metric, MetricValue]]] = field(repr=False)
    totals: Totals | None = field(repr=False)
    counts: CountFit | None = field(repr=False)
    page: PageData = field(repr=False)

    @property
    def picture(self) -> tuple[int, str] | None:
        """Which feature shows the largest fault (a number in the page's ``along``), and as what; None without features.

        The first that the first sentence names, else the one that explains most of the scores' variance.
        """
        along = self.page.plain["along"]
        if not along or not self.verdict.is_wrong:
            return None
        said = self.sentences[0][0] if self.sentences else ""
        named = (k for k, each in enumerate(along) if re.search(rf"\b{re.escape(each['name'])} is\b", said))
        at = next(named, 0)
        kinds = {"spread": "spread", "skewed": "skew", "tails": "tails"}
        kind = next((kind for word, kind in kinds.items() if word in self.verdict.fault), "bias")
        return at, "ratio" if kind == "bias" and "times too" in said and "ratio" in along[at] else kind

    @property
    def heading(self) -> str:
        """The verdict with its p-value; the fault is told below it."""
        p_value = self.verdict.p_value
        said = self.verdict.state if self.verdict.is_wrong else str(self.verdict)
        return capital(said) + ("" if p_value is None else f" ({p_value_in_words(p_value)})")


def report_data(
    evaluation: Evaluation,
    *,
    counts: CountFit | None = None,
    beside: tuple[str, Mapping[str, MetricValue]] | None = None,
) -> ReportData:
    """Everything that the report shows, see ``evaluation_report``."""
    metrics, wrong = evaluation.metrics, evaluation.wrong
    page = page_data(evaluation, pictures=_pictures)
    # What is stated of a part is stated of a version that is wrong by all tests together.
    found = () if wrong is None or not evaluation.verdict.is_wrong else wrong.segments
    segments = [(each, of_segment(each)) for each in found]
    known = places_of(page.places)
    known |= {place_in_words(each.name).removeprefix("where "): selection for each, selection in segments}
    sentences: list[tuple[str, Selection | None]] = []
    places: list[tuple[dict[str, Any], Selection | None]] = []
    if wrong is not None:
        sentences = [(each, of_sentence(each, wrong.places, known, page.flagged)) for each in wrong.sentences]
        places = [(place, known.get(str(place["place"]))) for place in records(_plain_places(wrong.places))]
    slices = records(evaluation.slices.head(_MOST_PLACES))
    return ReportData(
        verdict=evaluation.verdict,
        advice=advise(evaluation.verdict, metrics, evaluation.preview),
        headlines=headlines(evaluation, beside),
        sentences=sentences,
        places=places[:_MOST_PLACES],
        segments=segments,
        searched=_searched(evaluation),
        slices=[(each, known.get(f"{each['slice']} {each['value']}")) for each in slices],
        metrics=_grouped(metrics),
        totals=totals_of(evaluation),
        counts=counts or count_fit(evaluation),
        page=page,
    )


def evaluation_report(
    evaluation: Evaluation,
    *,
    logged_as: str = "",
    counts: CountFit | None = None,
    beside: tuple[str, Mapping[str, MetricValue]] | None = None,
) -> str:
    """A self-contained HTML page on which one finds what is wrong, where, and what was predicted there.

    Args:
        evaluation: of one version on one split.
        logged_as: the name of the logged model behind the version, which its author knows it by.
        counts: the ``count_fit`` of the evaluation, where it is known already.
        beside: name and metrics of the version in use, whose score stands beside this one's.
    """
    invalid = evaluation.scores[~evaluation.scores["valid"].astype(bool)]
    return render(
        "evaluation.html",
        title=f"{evaluation.model.label} on {evaluation.split.name}",
        evaluation=evaluation,
        data=report_data(evaluation, counts=counts, beside=beside),
        logged_as=logged_as,
        looked=what_it_knows(str(encoder)) if (encoder := evaluation.provenance.get("encoder")) else "",
        model=evaluation.model,
        of_quantiles=quantiles_read(evaluation.metrics, evaluation.predictive),
        preview=evaluation.preview,
        certificate_kind=CERTIFICATE_KINDS.get(str(evaluation.provenance.get("certificate_kind")), ""),
        more_slices=max(0, len(evaluation.slices) - _MOST_PLACES),
        reasons=invalid["reason"].astype(str).value_counts().head(20).to_dict(),
        provenance=json.dumps(mask_secrets(evaluation.provenance), indent=1, default=str, ensure_ascii=False),
        scripts=SCRIPTS,
    )


def _grouped(values: Mapping[str, MetricValue]) -> dict[str, list[tuple[Metric, MetricValue]]]:
    """Every metric with its value in its group, in the order in which they are explained; no empty groups."""
    ordered = [*(name for name in METRICS if name in values), *(name for name in values if name not in METRICS)]
    found: dict[str, list[tuple[Metric, MetricValue]]] = {group: [] for group in get_args(Group)}
    for metric in map(metric_of, ordered):
        found[metric.group].append((metric, values[metric.name]))
    return {group: each for group, each in found.items() if each}


def _plain_places(places: Any) -> Any:
    """Without the interpreter's words where nothing certain was found: they would speak against the q-value."""
    if "pit" not in places:
        return places
    return places.assign(pit=np.where(places["fault"] != "", places["pit"], ""))


def _pictures(evaluation: Evaluation, rows: list[int]) -> dict[int, str]:
    """Thumbnails of the worst of ``rows``, of the best, and of some between, as data addresses by position."""
    if evaluation.thumbnails is None or not rows:
        return {}
    each = _PICTURES // 3
    places = sorted({*range(min(each, len(rows))), *np.linspace(0, len(rows) - 1, each).astype(int).tolist(),
                     *range(max(0, len(rows) - each), len(rows))})  # fmt: skip
    found = {}
    for place, image in zip(places, evaluation.thumbnails([rows[place] for place in places]), strict=True):
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "JPEG", quality=80)
        found[place] = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    return found


def _searched(evaluation: Evaluation) -> list[str]:
    """The features in which weak segments were looked for."""
    features = evaluation.features
    if features is None or "pit" not in evaluation.scores or len(features) < FEWEST_ROWS:
        return []
    return [str(name) for name in features]
