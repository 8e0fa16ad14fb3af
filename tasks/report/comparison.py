"""The report of a comparison: who wins on what, the matrix of differences, and each version beside the baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from congruence.tasks.comparison.differences import MetricDifference
from congruence.tasks.comparison.explored import recalibrated_label
from congruence.tasks.comparison.versions import Comparison, PairedComparison
from congruence.tasks.report.rendering import LETTERS, as_json, category_column, number_column, records, render, rounded
from congruence.tasks.scores.metrics.definitions import EFFECTS
from congruence.tasks.scores.metrics.registry import column_labels, metric_of, shown
from congruence.tasks.sentences.calibration import listed, significant

SCRIPTS = ("page", "tables", "charts", "map", "along", "rows", "comparison")
CRPS = "crps_mean"
_POINTS = 12
_PAIRS = 20


@dataclass(frozen=True)
class Cell:
    """One version and metric: its value and, but for the baseline, the difference and where it lies.

    Attributes:
        side: "better", "worse", or "" where the difference lies within its interval of 0, or there is none.
    """

    value: float
    difference: MetricDifference | None
    side: str


@dataclass(frozen=True)
class ComparisonData:
    """All that the page of a comparison shows.

    Attributes:
        summary: who wins, or that nobody does, in a sentence.
        sentences: one a version: how it compares with the baseline, and why where that is known.
        metrics: columns of the matrix.
        matrix: by the version's label, its cells by metric; then versions as they would be when recalibrated.
        page: what the scripts read: one entry a pair.
    """

    summary: str
    sentences: dict[str, str]
    metrics: tuple[str, ...]
    matrix: dict[str, dict[str, Cell]] = field(repr=False)
    page: dict[str, Any] = field(repr=False)

    @property
    def shown(self) -> dict[str, int]:
        """The place of each version among the pairs that the page explores, by label."""
        return {pair["label"]: place for place, pair in enumerate(self.page["pairs"])}

    @property
    def json(self) -> str:
        """``page`` for a script element."""
        return as_json(self.page)


def comparison_data(comparison: Comparison) -> ComparisonData:
    """Everything that the report of ``comparison`` shows."""
    names = (*shown("compared"), *EFFECTS)
    metrics = tuple(name for name in names if any(name in version.metrics for version in comparison.versions))
    matrix: dict[str, dict[str, Cell]] = {}
    for version in comparison.versions:
        found = comparison.pairs[version.label].differences if version.label in comparison.pairs else {}
        cells = {name: _cell(version.metrics[name].value, found.get(name)) for name in metrics
                 if name in version.metrics}  # fmt: skip
        matrix[version.label] = cells
    for label, differences in comparison.recalibrated.items():
        matrix[recalibrated_label(label)] = {name: _cell(item.first, item) for name, item in differences.items()}
    base = comparison.baseline.label
    sentences = {
        label: _sentence(label, base, matrix[label]) if pair.won is None else pair.won.sentence
        for label, pair in comparison.pairs.items()
    }
    pairs = [_pair(label, pair) for label, pair in list(comparison.pairs.items())[:_PAIRS]]
    page = {"baseline": base, "pairs": [pair for pair in pairs if pair is not None]}
    summary = _summary(base, {label: matrix[label] for label in sentences})
    return ComparisonData(summary, sentences, metrics, matrix, page)


def comparison_report(comparison: Comparison) -> str:
    """A self-contained HTML page: who wins on what, the matrix of differences, and two versions row by row."""
    return render(
        "comparison.html",
        title=f"{len(comparison.versions)} versions on {comparison.split.name}",
        comparison=comparison,
        split=comparison.split,
        baseline=comparison.baseline,
        data=comparison_data(comparison),
        metric_of=metric_of,
        corrections=[
            version.label
            for version in comparison.versions
            if version.label in comparison.recalibrated and version.model.version and not version.is_stored
        ],
        uris={version.label: version.model.uri for version in comparison.versions},
        pairs=[
            (label, pair, records(pair.largest.drop(columns="row").head(_POINTS)))
            for label, pair in comparison.pairs.items()
        ],
        scripts=SCRIPTS,
    )


def _cell(value: float, difference: MetricDifference | None) -> Cell:
    side = ""
    if difference is not None:
        side = "better" if difference.high < 0.0 else "worse" if difference.low > 0.0 else ""
    return Cell(value, difference, side)


def _sentence(label: str, baseline: str, cells: dict[str, Cell]) -> str:
    """On what a version is better and worse than the baseline, by how much, and on what chance explains all."""
    sides: dict[str, list[str]] = {"better": [], "worse": [], "": []}
    for name in shown("wins"):
        if (cell := cells.get(name)) is not None and cell.difference is not None:
            sides[cell.side].append(_by(name, cell.difference) if cell.side else metric_of(name).label)
    parts = [f"{side} on {listed(sides[side])}" for side in ("better", "worse") if sides[side]]
    if not parts:
        return f"{label} and {baseline} differ on nothing by more than chance explains."
    same = f"; on {listed(sides[''])} chance explains the difference" if sides[""] else ""
    return f"{label} is {', '.join(parts)} than {baseline}{same}."


def _summary(baseline: str, matrix: dict[str, dict[str, Cell]]) -> str:
    """Who wins, on what, by how much, or that nobody does."""

    def on(cells: dict[str, Cell], side: str) -> list[str]:
        return [name for name in shown("wins") if name in cells and cells[name].side == side]

    clear = {label: on(cells, "better") for label, cells in matrix.items()
             if on(cells, "better") and not on(cells, "worse")}  # fmt: skip
    if clear:
        best = max(clear, key=lambda label: (len(clear[label]), -_first(matrix[label], clear[label])))
        gains = [_by(name, difference) for name in clear[best] if (difference := matrix[best][name].difference)]
        others = len(clear) - 1
        many = "versions are" if others > 1 else "version is"
        more = f" {others} more {many} better and nowhere worse." if others else ""
        return f"{best} wins: better than {baseline} on {listed(gains)}, worse on nothing.{more}"
    mixed = [label for label, cells in matrix.items() if on(cells, "better")]
    if mixed:
        gain, lose = ("gains", "loses") if len(mixed) == 1 else ("gain", "lose")
        return f"Nobody wins on everything: {listed(mixed)} {gain} something on {baseline} and {lose} something else."
    beaten = {label: lost for label, cells in matrix.items() if (lost := on(cells, "worse"))}
    if len(beaten) == len(matrix):
        names = {label: CRPS if CRPS in lost else lost[0] for label, lost in beaten.items()}
        label = min(names, key=lambda each: (names[each] != CRPS, _first(matrix[each], [names[each]])))
        difference = matrix[label][names[label]].difference
        assert difference is not None
        near = f" The nearest, {label}, is worse on {_by(names[label], difference)}."
        return f"{baseline} wins: every other version is worse on something and better on nothing.{near}"
    return f"Nobody wins: no version is better than {baseline} on anything beyond what chance explains."


def _first(cells: dict[str, Cell], names: list[str]) -> float:
    difference = cells[names[0]].difference
    return 0.0 if difference is None else difference.difference


def _by(name: str, difference: MetricDifference) -> str:
    low, high = sorted((abs(difference.low), abs(difference.high)))
    label, size = metric_of(name).label, significant(abs(difference.difference))
    return f"{label} by {size} ({significant(low)} to {significant(high)})"


def _across(frame: pd.DataFrame) -> str:
    """What the map draws the difference over: the target, or the baseline's prediction of counts, which are few."""
    if "target" not in frame:
        return "cce_second"
    counts = bool((frame["target"] % 1.0 == 0.0).all())
    return "mean_second" if counts and "mean_second" in frame else "target"


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
        "axes": [_across(frame), "difference"],
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
