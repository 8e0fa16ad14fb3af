"""The report of a version: its numbers, totals of counts, how quantiles were read, and what a click chooses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import pandas as pd

from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.quantiles import TAILS
from congruence.kernels.marginal_calibration import actual_over_expected, deciles, has_total, poisson_deviance
from congruence.kernels.scores import central_intervals
from congruence.kernels.verdict import Verdict
from congruence.tasks.encoders.loading import what_it_knows
from congruence.tasks.report.page import SLICE, page_data, records, render
from congruence.tasks.runtime.errors import mask_secrets
from congruence.tasks.scores.evaluation import Advice, Evaluation, MetricValue, advise
from congruence.tasks.scores.faults import FEWEST_ROWS
from congruence.tasks.scores.metrics.metric import Group, Metric
from congruence.tasks.scores.metrics.registry import METRICS, REGION, metric_of
from congruence.tasks.sentences.calibration import (
    capital,
    percent,
    place_in_words,
    significant,
    with_p_value,
)
from congruence.tasks.sentences.findings import Segment

FEWEST = 10
"""Rows of a place below which its coverage says nothing, whatever it is."""


@dataclass(frozen=True)
class Headline:
    """One of the numbers at the top: its metric, what it is called here, its value and interval in words, a comment."""

    name: str
    label: str
    value: str
    interval: str
    comment: str


def headlines(evaluation: Evaluation, beside: tuple[str, Mapping[str, MetricValue]] | None = None) -> list[Headline]:
    """Three numbers that need no theory: skill, coverage of the 90 % interval, and the distance beyond noise.

    ``beside``: name and metrics of the version in use, whose score is named, too.
    """
    metrics, found = evaluation.metrics, []
    if (skill := metrics.get("crps_skill")) is not None:
        without, crps = metrics.get("crps_uncertainty"), metrics.get("crps_mean")
        comment = "100 % is perfect, 0 % no better than ignoring the input"
        if without is not None and crps is not None:
            comment = f"CRPS {significant(crps.value)}; {significant(without.value)} ignoring the input"
            if beside is not None and "crps_mean" in beside[1]:
                comment += f"; {significant(beside[1]['crps_mean'].value)} of {beside[0]}, the baseline"
        found.append(Headline("crps_skill", "Skill against ignoring the input", *_in_percent(skill), comment))
    if (coverage := metrics.get("coverage_90")) is not None:
        right = coverage_if_true(evaluation)
        worst = worst_coverage(evaluation, right)
        comment = f"{percent(right)} is right{'' if round(right, 3) == 0.9 else ', as some values have masses'}"
        comment += "" if worst is None else f"; worst: {percent(worst[1])} {worst[0]}"
        found.append(Headline("coverage_90", "90 % intervals hold", *_in_percent(coverage), comment))
    if (excess := metrics.get("cce_excess")) is not None:
        mean, expected = metrics.get("cce_mean"), metrics.get("cce_expected")
        comment = ""
        if mean is not None and expected is not None:
            comment = f"CCE {significant(mean.value)}; {significant(expected.value)} would be noise alone"
        said = significant(excess.value), " to ".join(map(significant, excess.interval or ()))
        found.append(Headline("cce_excess", "Distance from the truth beyond noise", *said, comment))
    return found


def coverage_if_true(evaluation: Evaluation) -> float:
    """What the 90 % intervals of a true version hold: more where outcomes have masses, such as whole numbers."""
    predictive, targets = evaluation.predictive, evaluation.targets
    if predictive is None or targets is None or targets.ndim != 1 or predictive.stated != "all":
        return 0.9
    low, high = central_intervals(predictive, [0.9])[0]
    return float(np.mean(predictive.cdf(high) - predictive.cdf_left(low)))


def worst_coverage(evaluation: Evaluation, right: float) -> tuple[str, float] | None:
    """The slice, or region where there are none, whose 90 % intervals hold the share farthest from .9 beyond chance.

    ``right``: what those of a true version hold.
    """
    slices, held = evaluation.slices, dict[str, tuple[float, int]]()
    if "coverage_90" in slices:
        names = "where " + slices["slice"].astype(str) + " is " + slices["value"].astype(str)
        held = dict(zip(names, zip(slices["coverage_90"], slices["rows"], strict=True), strict=True))
    elif {"pit", REGION} <= set(evaluation.scores.columns) and not getattr(evaluation.predictive, "has_steps", True):
        scores = evaluation.valid_scores
        inside = (scores["pit"] - 0.5).abs() <= 0.45
        groups = inside.groupby(scores[REGION], observed=True).agg(["mean", "size"])
        held = {place_in_words(str(name)): (share, size) for name, share, size in groups.itertuples()}
    chance = 1.96 * (right * (1.0 - right)) ** 0.5
    told = [(abs(share - right) - chance / size**0.5, name) for name, (share, size) in held.items() if size >= FEWEST]
    worst = max(told, default=(0.0, ""))[1]
    return (worst, float(held[worst][0])) if worst else None


def _in_percent(metric: MetricValue) -> tuple[str, str]:
    """A metric and its interval, "" where there is none."""
    low, high = map(percent, metric.interval or (0.0, 0.0))
    return percent(metric.value), "" if metric.interval is None else f"{low.removesuffix(' %')} to {high}"


@dataclass(frozen=True)
class Totals:
    """Totals of a split: rows, actual, expected, ratio with interval and the ends of a right version's.

    Of the whole and of each tenth of the rows by prediction, the lowest first. ``lift`` is the mean target of the
    highest tenth over that of all rows, ``deviance`` Poisson's of a row, of which a share is explained beside that of
    the mean target for every row.
    """

    whole: dict[str, Any]
    deciles: list[dict[str, Any]]
    lift: float
    deviance: float
    explained: float


def totals_of(evaluation: Evaluation) -> Totals | None:
    """The totals of a version whose targets are never negative and whose means are positive; None of any other.

    Nor of one that states quantiles: their means are ours.
    """
    scores, targets = evaluation.valid_scores, evaluation.targets
    if targets is None or targets.ndim != 1 or not {"mean", "std"} <= {*scores} or evaluation.stated == "quantiles":
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
    return records(pd.DataFrame({name: getattr(found, name) for name in names}))


def quantiles_read(metrics: Mapping[str, MetricValue], predictive: Distribution | None) -> str:
    """How many rows crossed, how many targets lie beyond the outer quantiles, and the tails; empty for other laws."""
    crossing, beyond = (metrics.get(name) for name in ("quantile_crossing_share", "beyond_quantiles_share"))
    if crossing is None or beyond is None or predictive is None:
        return ""
    stated = predictive.parameters()
    levels, kind = stated["levels"], TAILS[int(stated["tails"][0])]
    expected = levels[0] + 1.0 - levels[-1]
    crossed = f"The predicted quantiles crossed in {percent(crossing.value)} of the rows and were sorted there. "
    beyond_them = percent(beyond.value)
    tails = "no tails" if kind == "none" else f"{kind} tails"
    return (
        f"{crossed if crossing.value > 0.0 else ''}{beyond_them} of the targets lie beyond the outer quantiles, "
        f"where {percent(expected)} are predicted and the predictions have {tails}."
    )


FAULT = "calibration_fault"
ALL_RIGHT = "no fault was found"

Selection = dict[str, Any]
"""``{"any": [[condition, ...], ...]}``: rows that meet all conditions of one of the lists; a condition is
``{"column", "value"}``, ``{"column", "not"}`` or ``{"column", "above", "upto"}``."""


def places_of(columns: Mapping[str, Sequence[str]]) -> dict[str, Selection]:
    """The selection of each place by its name, and by that in a sentence, from the page's slice and region columns."""
    found: dict[str, Selection] = {}
    for column, values in columns.items():
        name = column.removeprefix(SLICE)
        for value in values:
            names = (value, place_in_words(value)) if column == REGION else (f"{name} {value}", f"{name} is {value}")
            chosen = _one({"column": column, "value": value})
            found |= {each.removeprefix("in the region ").removeprefix("where "): chosen for each in names}
    return found


def of_sentence(sentence: str, places: pd.DataFrame, known: Mapping[str, Selection], flagged: bool) -> Selection | None:
    """The rows that ``sentence`` speaks of.

    The places that it names; those without a fault where it says that these have none; else, where it speaks of all
    rows, the rows around which a fault was found.
    """
    names = [name for name in known if _names(sentence, name)]
    names = [name for k, name in enumerate(names) if known[name] not in [known[other] for other in names[:k]]]
    if ALL_RIGHT in sentence.lower() and not places.empty:
        names = [name for name in places.loc[places["fault"] == "", "place"] if name in known]
    elif not names:
        return _one({"column": FAULT, "not": ""}) if flagged else {"any": [[]]}
    return {"any": [lists for name in names for lists in known[name]["any"]]} if names else None


def of_segment(segment: Segment) -> Selection:
    """The rows of a segment's ranges."""
    conditions: list[dict[str, Any]] = []
    for name, low, high in segment.ranges:
        column, equals, word = name.partition(" = ")
        if equals:
            conditions.append({"column": column, "value" if low > 0.0 else "not": word})
        else:
            ends = {"above": low, "upto": high}
            conditions.append({"column": column, **{end: at for end, at in ends.items() if abs(at) != float("inf")}})
    return {"any": [conditions]}


def _one(condition: dict[str, Any]) -> Selection:
    return {"any": [[condition]]}


def _names(sentence: str, place: str) -> bool:
    """Whether the sentence names the place as a whole: "digit 1" is not in "digit 10", nor "size 1" in "size 1.5"."""
    return place in sentence and re.search(rf"(?<![^\W_]){re.escape(place)}(?![^\W_]|[.,]\d)", sentence) is not None


SCRIPTS = ("page", "tables", "charts", "map", "along", "row", "rows", "evaluation")
"""The page's scripts, in the order in which they stand in it."""

CERTIFICATE_KINDS = {
    "computed": "Every part of it was computed.",
    "sampled": "Parts of it were read at random points and have a margin: an estimate, not a proof.",
}
"""What the run's parameter ``certificate_kind`` says of ``cce_error_bound``."""

_MOST_PLACES = 300


@dataclass(frozen=True)
class ReportData:
    """All that the page of one version shows: ``sentences`` and places, each with the rows that it speaks of.

    ``places`` are slices or regions, the most wrong first; ``searched`` are the features in which weak segments were
    looked for, ``metrics`` by group, ``page`` what the scripts read.
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
    page: dict[str, Any] = field(repr=False)

    @property
    def picture(self) -> tuple[int, str] | None:
        """Which feature shows the largest fault (a number in the page's ``along``), and as what; None without features.

        The first that the first sentence names, else the one that explains most of the scores' variance.
        """
        along = self.page["along"]
        if not along or not self.verdict.is_wrong:
            return None
        said = self.sentences[0][0] if self.sentences else ""
        named = (k for k, each in enumerate(along) if re.search(rf"\b{re.escape(each['name'])} is\b", said))
        at = next(named, 0)
        kinds = {"spread": "spread", "interval holds": "spread", "skewed": "skew", "tails": "tails"}
        kind = next((kind for word, kind in kinds.items() if word in self.verdict.fault), "bias")
        return at, "ratio" if kind == "bias" and "times too" in said and "ratio" in along[at] else kind

    @property
    def heading(self) -> str:
        """The verdict with its p-value; the fault stands below it."""
        said = self.verdict.state if self.verdict.is_wrong else self.verdict
        return capital(with_p_value(said, self.verdict.p_value))


def report_data(evaluation: Evaluation, *, beside: tuple[str, Mapping[str, MetricValue]] | None = None) -> ReportData:
    """Everything that the report shows, see ``evaluation_report``."""
    metrics, wrong = evaluation.metrics, evaluation.wrong
    page, faults = page_data(evaluation), evaluation.valid_scores.get(FAULT)
    # What is stated of a part is stated of a version that is wrong by all tests together.
    found = () if wrong is None or not evaluation.verdict.is_wrong else wrong.segments
    segments = [(each, of_segment(each)) for each in found]
    coded = {str(column["name"]): column["values"] for column in page["columns"] if column["kind"] == "category"}
    known = places_of({name: values for name, values in coded.items() if name == REGION or name.startswith(SLICE)})
    known |= {place_in_words(each.name).removeprefix("where "): selection for each, selection in segments}
    sentences: list[tuple[str, Selection | None]] = []
    places: list[tuple[dict[str, Any], Selection | None]] = []
    if wrong is not None:
        flagged = faults is not None and bool((faults != "").any())
        sentences = [(each, of_sentence(each, wrong.places, known, flagged)) for each in wrong.sentences]
        named = wrong.places
        if "pit" in named:  # where nothing certain was found, the interpreter's words would speak against the q-value
            named = named.assign(pit=np.where(named["fault"] != "", named["pit"], ""))
        places = [(place, known.get(str(place["place"]))) for place in records(named)]
    slices = records(evaluation.slices.head(_MOST_PLACES))
    features = evaluation.features if "pit" in evaluation.scores else None  # else no weak segments were looked for
    return ReportData(
        verdict=evaluation.verdict,
        advice=advise(evaluation.verdict, metrics, evaluation.preview),
        headlines=headlines(evaluation, beside),
        sentences=sentences,
        places=places[:_MOST_PLACES],
        segments=segments,
        searched=[] if features is None or len(features) < FEWEST_ROWS else [str(name) for name in features],
        slices=[(each, known.get(f"{each['slice']} {each['value']}")) for each in slices],
        metrics=_grouped(metrics),
        totals=totals_of(evaluation),
        page=page,
    )


def evaluation_report(
    evaluation: Evaluation, *, logged_as: str = "", beside: tuple[str, Mapping[str, MetricValue]] | None = None
) -> str:
    """A self-contained HTML page on which one finds what is wrong, where, and what was predicted there.

    ``logged_as`` is the name of the logged model, by which its author knows the version; ``beside`` are name and
    metrics of the version in use, whose score stands beside this one's.
    """
    data, invalid = report_data(evaluation, beside=beside), evaluation.scores[~evaluation.scores["valid"].astype(bool)]
    return render(
        "evaluation.html",
        title=f"{evaluation.model.label} on {evaluation.split.name}",
        evaluation=evaluation,
        data=data,
        page=data.page,
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
