"""The report of a comparison of versions."""

from __future__ import annotations

from collections.abc import Mapping

from congruence.tasks.comparison import Comparison
from congruence.tasks.report.rendering import inline_png, records, render
from congruence.tasks.scores.evaluation import AS_IF_TRUE, cce_status
from congruence.tasks.scores.meanings import HEADLINES, meaning

_POINTS = 12


def comparison_report(comparison: Comparison, figures: Mapping[str, bytes]) -> str:
    """A self-contained HTML page: the versions side by side, and each against the baseline on the same rows."""
    shown = [name for name in HEADLINES if any(name in version.metrics for version in comparison.versions)]
    return render(
        "comparison.html",
        title=f"{len(comparison.versions)} versions on {comparison.split.name}",
        comparison=comparison,
        split=comparison.split,
        baseline=comparison.baseline,
        shown=shown,
        meaning=meaning,
        as_if_true=[version.label for version in comparison.versions if cce_status(version.metrics) == AS_IF_TRUE],
        figures=[(name, inline_png(picture)) for name, picture in figures.items()],
        pairs=[
            (label, pair, records(pair.largest.drop(columns="row").head(_POINTS)))
            for label, pair in comparison.pairs.items()
        ],
    )
