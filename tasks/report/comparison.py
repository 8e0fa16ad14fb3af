"""Pages beside that of an evaluation: of compared versions, and of the reliability of new inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from congruence.kernels.trust.judgement import RejectionCurve
from congruence.tasks.comparison.differences import MetricDifference
from congruence.tasks.comparison.versions import Cell, Comparison, PairedComparison, differences_among
from congruence.tasks.report.page import LETTERS, category_column, number_column, records, render, rounded
from congruence.tasks.scores.metrics.definitions import EFFECTS
from congruence.tasks.scores.metrics.registry import column_labels, metric_of, shown
from congruence.tasks.scores.reliability import TABLE, Reliability
from congruence.tasks.scores.summary import LOSSES
from congruence.tasks.sentences.calibration import listed, significant
from congruence.tasks.sentences.inputs import withholding_sentence

_OF_COMPARISON = ("page", "tables", "charts", "map", "along", "rows", "comparison")
CRPS = "crps_mean"
_POINTS = 12
_PAIRS = 20


@dataclass(frozen=True)
class ComparisonData:
    """All that the page of a comparison shows: who wins, and how each version compares with the baseline, and why.

    The columns of the matrix are ``metrics``; it has versions also as they would be when recalibrated. ``page`` is what
    the scripts read: one entry a pair.
    """

    summary: str
    sentences: dict[str, str]
    best: str
    metrics: tuple[str, ...]
    matrix: dict[str, dict[str, Cell]] = field(repr=False)
    page: dict[str, Any] = field(repr=False)

    @property
    def shown(self) -> dict[str, int]:
        """The place of each version among the pairs that the page explores, by label."""
        return {pair["label"]: place for place, pair in enumerate(self.page["pairs"])}


def comparison_data(comparison: Comparison) -> ComparisonData:
    """Everything that the report of ``comparison`` shows."""
    metrics = comparison.names_of((*shown("compared"), *EFFECTS))
    pairs = [_pair(label, pair) for label, pair in list(comparison.pairs.items())[:_PAIRS]]
    page = {"baseline": comparison.baseline.label, "pairs": [pair for pair in pairs if pair is not None]}
    said = summary_of(comparison), sentences_of(comparison)
    return ComparisonData(*said, the_best(comparison), metrics, comparison.matrix(metrics), page)


def sentences_of(comparison: Comparison) -> dict[str, str]:
    """How each version compares with the baseline, and why, by label."""
    base, sides, found = comparison.baseline.label, _sides(comparison), {}
    for label, pair in comparison.pairs.items():
        own = sides[label]
        said = _sentence(label, base, own, pair) if pair.won is None else pair.won.sentence
        differing = own.better + own.worse
        if pair.won is not None and differing and CRPS not in differing:  # NLL weighs tails otherwise, CCE every place
            said += f" {_sentence(label, base, replace(own, same=[]), pair)}"
        found[label] = said
    return found


def summary_of(comparison: Comparison) -> str:
    """Who wins, on what and by how much, or that nobody does, in a sentence or two."""
    return _summary(comparison.baseline.label, _sides(comparison), comparison.may_be_best)


def the_best(comparison: Comparison) -> str:
    """Which versions may be the best by CRPS, as they are and recalibrated, in a sentence or two; "" where unknown."""
    left, corrected = comparison.may_be_best, comparison.may_be_best_recalibrated
    named = "any of them" if len(left) == len(comparison.versions) > 2 else " or ".join(left)
    said = f"The best by CRPS {'is' if len(left) == 1 else 'may be'} {named} (95 % confidence set)." if left else ""
    return f"{said} With recalibrated versions among them: {'; '.join(corrected)}." if corrected else said


def comparison_report(comparison: Comparison) -> str:
    """A self-contained HTML page: who wins on what, the matrix of differences, and two versions row by row."""
    data = comparison_data(comparison)
    return render(
        "comparison.html",
        title=f"{len(comparison.versions)} versions on {comparison.split.name}",
        comparison=comparison,
        split=comparison.split,
        baseline=comparison.baseline,
        data=data,
        page=data.page,
        metric_of=metric_of,
        corrections=comparison.corrections,
        pairs=[
            (label, pair, records(pair.largest.drop(columns="row").head(_POINTS)))
            for label, pair in comparison.pairs.items()
        ],
        scripts=_OF_COMPARISON,
    )


@dataclass(frozen=True)
class _Sides:
    """On which metrics a version is better, worse and the same as the baseline, all that a page compares considered.

    ``differences`` are those in the metrics that decide who wins.
    """

    differences: dict[str, MetricDifference]
    better: list[str]
    worse: list[str]
    same: list[str]

    @classmethod
    def of(cls, pair: PairedComparison, versions: int) -> _Sides:
        """Of one of so many ``versions`` that are compared with the baseline."""
        names = [name for name in shown("wins") if name in pair.differences and name not in pair.drawn]
        found = {name: pair.differences[name] for name in names if name in pair.first.metrics}
        among = differences_among(versions)
        sides = {name: item.side_among(among) for name, item in found.items()}
        return cls(found, *([name for name in sides if sides[name] == side] for side in ("better", "worse", "")))

    def by(self, name: str) -> str:
        """A metric and by how much the version differs in it from the baseline, whichever is better."""
        found = self.differences[name]
        low, high = sorted((abs(found.low), abs(found.high)))
        lead, ends = significant(abs(found.difference)), f"{significant(low)} to {significant(high)}"
        return f"{metric_of(name).label} by {lead} ({ends})"

    def lead(self, name: str) -> float:
        """The difference in a metric."""
        return self.differences[name].difference


def _sides(comparison: Comparison) -> dict[str, _Sides]:
    return {label: _Sides.of(pair, len(comparison.pairs)) for label, pair in comparison.pairs.items()}


def _sentence(label: str, baseline: str, sides: _Sides, pair: PairedComparison) -> str:
    """On what a version is better and worse than the baseline, by how much, and on what chance explains all."""
    named = {"better": sides.better, "worse": sides.worse}
    parts = [(side, listed([sides.by(name) for name in names])) for side, names in named.items() if names]
    apart = f" Their CRPS and ECE {pair.unlike}." if pair.unlike else ""
    same = [metric_of(name).label for name in sides.same]
    if not parts:
        on = listed(same) if same else "anything that decides"
        return f"{label} and {baseline} do not differ on {on} by more than chance explains.{apart}"
    rest = f"; on {listed(same)} chance explains the difference" if same else ""
    (side, on), *other = parts
    also = "".join(f", and {side} on {on}" for side, on in other)
    return f"{label} is {side} than {baseline} on {on}{also}{rest}.{apart}"


def _summary(baseline: str, found: dict[str, _Sides], may_be_best: Sequence[str]) -> str:
    """Who wins, on what, by how much, or that nobody does; of several that ``may_be_best`` none alone."""
    clear = {label: sides for label, sides in found.items() if sides.better and not sides.worse}
    if len(equal := [label for label in clear if label in may_be_best]) > 1:
        best = max(equal, key=lambda label: len(clear[label].better))
        gains = listed([clear[best].by(name) for name in clear[best].better])
        return (
            f"{len(equal)} versions win: better than {baseline} on something, worse on nothing; these rows do not show "
            f"which of them is the best. {best} is better on {gains}."
        )
    if clear:
        best = max(clear, key=lambda label: (len(clear[label].better), -clear[label].lead(clear[label].better[0])))
        gains = listed([clear[best].by(name) for name in clear[best].better])
        others = len(clear) - 1
        many = "versions are" if others > 1 else "version is"
        more = f" {others} more {many} better and nowhere worse." if others else ""
        return f"{best} wins: better than {baseline} on {gains}, worse on nothing.{more}"
    if mixed := [label for label, sides in found.items() if sides.better]:
        some, on = ("is", "something") if len(mixed) == 1 else ("are", "something each")
        said = f"{listed(mixed)} {some} better than {baseline} on {on} and worse on something else"
        return f"Nobody wins on everything: {said}."
    if all(sides.worse for sides in found.values()):
        names = {label: CRPS if CRPS in sides.worse else sides.worse[0] for label, sides in found.items()}
        label = min(names, key=lambda each: (names[each] != CRPS, found[each].lead(names[each])))
        near = f" The nearest, {label}, is worse on {found[label].by(names[label])}."
        return f"{baseline} wins: every other version is worse on something and better on nothing.{near}"
    compared = dict.fromkeys(metric_of(name).label for sides in found.values() for name in sides.differences)
    on = f"on {listed([*compared])} " if compared else ""
    worse = [label for label, sides in found.items() if sides.worse]
    rest = f"; {listed(worse)} {'is' if len(worse) == 1 else 'are'} worse" if worse else ""
    return f"Nobody wins: {on}no version is better than {baseline} by more than chance explains{rest}."


def _pair(label: str, pair: PairedComparison) -> dict[str, Any] | None:
    """One pair as the scripts read it."""
    found = pair.explored
    if found is None:
        return None
    frame, score = found.frame, column_labels()[found.score]
    labels = column_labels() | {"difference": f"difference of {score}"}
    columns = []
    for name in frame.columns:
        if name in ("row", "key") or name in found.groups:
            continue
        stem, _, which = str(name).rpartition("_")
        version = {"first": pair.first.label, "second": pair.second.label}.get(which)
        text = labels[stem if version else str(name)] + (f" of {version}" if version else "")
        columns.append(number_column(str(name), frame[name].to_numpy(), text))
    columns += [category_column(name, frame[name]) for name in found.groups]
    return {
        "label": label,
        "score": score,
        "rows": {"valid": pair.rows, "shown": len(frame)},
        "numbers": frame["row"].tolist(),
        "keys": [str(key)[:LETTERS] for key in frame["key"]],
        "columns": columns,
        "features": [],
        "axes": ["mean_second" if "mean_second" in frame else "cce_second", "difference"],
        "colour": "difference",
        "along": [
            {
                "name": each.name, "column": each.column, "bins": [name[:LETTERS] for name in each.groups],
                "edges": each.edges,
                "rows": rounded(each.rows), "explained": each.explained,
                "difference": [*map(rounded, (each.value, each.low, each.high)), *2 * [[None] * len(each.rows)]],
            }
            for each in found.along
        ],
    }  # fmt: skip


SCORES_FILE, CSV_FILE, REPORT_FILE, SUMMARY_FILE = "scores.parquet", "scores.csv", "report.html", "summary.json"
_OF_RELIABILITY = ("page", "tables", "charts", "trust")
_ROWS = 1000
_SHOWN = ("support_p_value", "effective_rows", "cce", "cce_expected", "cce_p_value", "mean", "std", "target")
_LABELS = column_labels() | {
    "support_p_value": "support p",
    "effective_rows": "effective rows",
    "cce_expected": "CCE if true",
    "cce_p_value": "CCE p",
}


def write_reliability(found: Reliability, folder: Path) -> list[Path]:
    """Write scores, report, pictures and summary into ``folder``, in place of an earlier call's; gives their paths."""
    from congruence.tasks.plots.comparison import risk_coverage
    from congruence.tasks.plots.evaluation import rejection_panels
    from congruence.tasks.plots.style import png

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("rejection", "risk-coverage"):
        (folder / f"{name}.png").unlink(missing_ok=True)  # an earlier call may have had labels
    pictures = {}
    if found.judgement.curves:
        pictures["risk-coverage"] = png(risk_coverage(found.judgement.curves))
    if found.curves:
        pictures["rejection"] = png(rejection_panels(found.curves, f"CCE of {found.model.label}"))
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture)
    (folder / REPORT_FILE).write_text(reliability_page(found))
    (folder / SUMMARY_FILE).write_text(json.dumps(summary(found), indent=1))
    found.scores.to_parquet(folder / SCORES_FILE, index=False)
    found.scores[list(TABLE)].to_csv(folder / CSV_FILE, index=False)
    written = (REPORT_FILE, SUMMARY_FILE, SCORES_FILE, CSV_FILE, *(f"{name}.png" for name in pictures))
    return [folder / name for name in written]


def reliability_page(found: Reliability) -> str:
    """A self-contained HTML page: whether withholding helps, by how much, and the inputs that are withheld."""
    withheld, notes = found.withheld_scores, []  # what could not be drawn of the inputs, and why
    if "nll" in found.scores and (impossible := int(np.isinf(found.valid_scores["nll"].to_numpy(float)).sum())):
        some = f"{impossible:,} of the {found.inputs.valid_rows:,} targets of the inputs"
        notes.append(f"No curve of NLL: {some} {'is' if impossible == 1 else 'are'} impossible under the version.")
    shown = [name for name in _SHOWN if name in withheld]
    curves = {
        "labelled": [_panel(loss, by_criterion) for loss, by_criterion in found.judgement.curves.items()],
        "inputs": [_panel(_LABELS[name], {"highest CCE": curve}) for name, curve in found.curves.items()],
    }
    return render(
        "reliability.html",
        title=f"{found.model.label} on {found.inputs.rows:,} new inputs",
        inputs=found.inputs,
        reference=found.reference,
        protocol=found.protocol,
        judgement=withholding_sentence(found.judgement),
        notes=notes,
        judged=found.judgement.rows,
        rule=str(found.rule),
        withheld=found.withheld,
        unusual=found.unusual,
        left_out=found.inputs.rows - found.inputs.valid_rows,
        has_labelled=bool(curves["labelled"]),
        has_inputs=bool(curves["inputs"]),
        columns=shown,
        labels=_LABELS,
        rows=records(withheld.head(_ROWS)[["key", *shown, "reason"]]),
        more=max(0, len(withheld) - _ROWS),
        table=SCORES_FILE,
        page=curves,
        scripts=_OF_RELIABILITY,
    )


def _panel(loss: str, curves: Mapping[str, RejectionCurve]) -> dict[str, Any]:
    """The curves of one loss, by what is withheld first, as the page's script reads them."""
    from congruence.tasks.plots.comparison import SHOWN_SHARE

    first = next(iter(curves.values()))
    drawn = first.withheld <= SHOWN_SHARE
    return {
        "loss": loss,
        "share": rounded(first.withheld[drawn]),
        "random": first.random_loss,
        "low": rounded(first.random_low[drawn]),
        "high": rounded(first.random_high[drawn]),
        "lines": [{"name": name, "kept": rounded(curve.kept_loss[drawn])} for name, curve in curves.items()],
    }


def headlines(found: Reliability) -> dict[str, float]:
    """The headline numbers. Where the inputs have targets, each loss over all of them and over those that stay."""
    scores, judged = found.valid_scores, max(1, found.inputs.valid_rows)
    values = {
        "unusual_share": found.unusual / judged,
        "withheld_share": found.withheld / judged,
        "withholding_helps": float(found.judgement.helps),
    }
    if scores["cce"].notna().any():
        values |= {"cce_mean": float(scores["cce"].mean()), "cce_expected": float(scores["cce_expected"].mean())}
    for name, metric in LOSSES.items():
        if name in found.curves:
            values[metric] = float(scores[name].mean())
            values[f"{metric}_rejection_gain"] = found.curves[name].gain
            kept = scores.loc[~scores["withhold"].astype(bool), name]
            if len(kept):
                values[f"{metric}_kept"] = float(kept.mean())
    return values


def summary(found: Reliability) -> dict[str, object]:
    """What was scored, and the headline numbers, as plain values."""
    judgement = found.judgement
    return {
        "model": found.model.uri,
        "reference": {"name": found.reference.name, "digest": found.reference.digest},
        "inputs": {"rows": found.inputs.rows, "valid": found.inputs.valid_rows, "digest": found.inputs.digest},
        "protocol": {"name": found.protocol.name, "digest": found.protocol.digest},
        "rule": str(found.rule),
        "withheld": found.withheld,
        "unusual": found.unusual,
        "judgement": {
            "sentence": withholding_sentence(judgement),
            "helps": judgement.helps,
            "rows": judgement.rows,
            "withheld": judgement.withheld,
            "losses": {name: vars(loss) for name, loss in judgement.losses.items()},
        },
        "rejection_gain": {name: curve.gain for name, curve in found.curves.items()},
        **headlines(found),
    }
