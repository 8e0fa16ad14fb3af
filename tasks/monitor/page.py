"""The page of a split over time, and its run in MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.monitoring.evidence import Monitor
from congruence.tasks.comparison.differences import ComparedVersion
from congruence.tasks.mlflow.connection import connect, with_retries
from congruence.tasks.mlflow.identity import PREFIX, quoted, search_evaluations
from congruence.tasks.mlflow.pages import run_link, web_page
from congruence.tasks.monitor.account import Account
from congruence.tasks.report.rendering import as_json, render
from congruence.tasks.scores.metrics.registry import metric_of, shown
from congruence.tasks.settings.sections import TrackingSettings

SCRIPTS = ("page", "charts", "over_time")


@dataclass(frozen=True)
class Series:
    """All looks at one version on one split.

    Attributes:
        label: of the version.
        split: name of the split.
        points: its looks in their order, at least one.
        monitor: what they say together.
        links: the addresses of their runs, "" where MLflow has no page.
    """

    label: str
    split: str
    points: Sequence[ComparedVersion] = field(repr=False)
    monitor: Monitor = field(repr=False)
    links: Sequence[str] = field(repr=False)

    @property
    def evidence(self) -> list[str]:
        """That the version is wrong, after each look, as people read it."""
        return [_evidence_in_words(value) for value in self.monitor.evidence.tolist()]

    @property
    def changes(self) -> list[str]:
        """That it changed, likewise."""
        return [_evidence_in_words(value) for value in self.monitor.detector.tolist()]

    @property
    def change(self) -> list[dict[str, Any]]:
        """The metrics before the fault and since it began, means over looks by their rows; none where it is right."""
        began = self.monitor.began_at
        if not began:
            return []
        rows = np.array([max(look.rows, 1) for look in self.monitor.looks], dtype=np.float64)
        since = np.arange(len(rows)) >= began
        found = []
        for name in shown("over_time"):
            values = np.array([_number(point, name) for point in self.points], dtype=np.float64)
            held = np.isfinite(values)
            if (held & since).any() and (held & ~since).any():
                before, now = (np.average(values[w], weights=rows[w]) for w in (held & ~since, held & since))
                found.append({"name": metric_of(name).label, "before": float(before), "since": float(now)})
        return found

    @property
    def sentences(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What was wrong at the last look before the fault, and what is at the last look of all."""
        began = self.monitor.began_at
        return (self.points[began - 1].wrong if began else ()), self.points[-1].wrong

    def plain(self) -> dict[str, Any]:
        """For the page's scripts."""
        looks = self.monitor.looks
        return {
            "label": self.label,
            "split": self.split,
            "when": [look.when for look in looks],
            "rows": [look.rows for look in looks],
            "p": [look.p_value for look in looks],
            "evidence": (self.monitor.evidence / np.log(10.0)).tolist(),
            "change": (self.monitor.detector / np.log(10.0)).tolist(),
            "bar": float(-np.log10(self.monitor.level)),
            "changeBar": float(np.log10(self.monitor.average_run_length)),
            "began": self.monitor.began_at,
            "links": list(self.links),
            "metrics": {
                name: {
                    "label": metric_of(name).label,
                    "value": [_number(point, name) for point in self.points],
                    "low": [_number(point, name, "low") for point in self.points],
                    "high": [_number(point, name, "high") for point in self.points],
                }
                for name in shown("over_time")
                if any(name in point.metrics for point in self.points)
            },
        }


def _evidence_in_words(logarithm: float) -> str:
    return f"{np.exp(logarithm):.3g}" if logarithm < 14.0 else f"10^{logarithm / np.log(10.0):.1f}"


def _number(point: ComparedVersion, name: str, part: str = "value") -> float | None:
    """None where it was not measured, or is not finite."""
    found = getattr(point.metrics.get(name), part, None)
    return found if found is not None and np.isfinite(found) else None


OVER_TIME_FILE = "over-time.html"
_OVER_TIME = PREFIX + "over_time"
"""The tag of a run that holds the page of the registered model of that name."""


def log_over_time(name: str, accounts: Mapping[tuple[str, str], Account], settings: TrackingSettings) -> None:
    """Log the page of a registered model to the run of its newest look: is each version still right, since when not?

    Args:
        name: of the model.
        accounts: of its versions by label and split; those without looks are left out, and one has some.
        settings: where looks are logged.

    Raises:
        TrackingError: MLflow does not answer.
    """
    base = web_page(settings)
    series = []
    for (label, split), account in sorted(accounts.items()):
        if account.looks:
            links = ["" if base is None else run_link(base, look.experiment, look.run_id) for look in account.looks]
            series.append(Series(label, split, account.looks, account.monitor, links))
    client, newest = connect(settings), max((look.made, look.run_id) for each in series for look in each.points)
    ordered = sorted(series, key=lambda each: (each.monitor.verdict == "right so far", each.label, each.split))
    page = render(
        "over_time.html",
        title=f"{name} over time",
        series=ordered,
        json=as_json({"series": [each.plain() for each in ordered]}),
        scripts=SCRIPTS,
    )

    def log() -> None:
        client.log_text(newest[1], page, OVER_TIME_FILE)
        client.set_tag(newest[1], _OVER_TIME, name)

    with_retries("logging the page over time", log, settings)


def over_time_run(name: str, settings: TrackingSettings) -> tuple[str, str] | None:
    """Returns the experiment and the run that hold the newest page of a registered model; None where nobody looked.

    Raises:
        TrackingError: MLflow does not answer.
    """
    runs = search_evaluations(settings, f"tags.`{_OVER_TIME}` = {quoted(name)}")
    return next(((str(run.info.experiment_id), str(run.info.run_id)) for run in runs), None)
