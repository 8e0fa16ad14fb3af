"""The page of a registered model over time: its looks and their evaluations, logged to the run of the model."""

from __future__ import annotations

from collections import defaultdict

from congruence.kernels.monitoring import Monitor
from congruence.tasks.mlflow.connection import TrackingError, connect, persist
from congruence.tasks.mlflow.finished import finished_evaluations
from congruence.tasks.mlflow.links import run_link, web_page
from congruence.tasks.mlflow.looks import LoggedLook, closed_looks, model_run
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.report.over_time import LookPoint, Series, over_time_page

OVER_TIME_FILE = "over-time.html"


def log_over_time(name: str, monitor: Monitor, settings: TrackingSettings) -> str:
    """Log the page of a registered model over time, in place of an earlier one; the id of the run that holds it.

    Args:
        name: of the registered model.
        monitor: an account without looks: its level and run length.
        settings: where looks and evaluations are logged.

    Raises:
        TrackingError: MLflow does not answer, or nobody has looked at the model.
    """
    series = series_of(name, monitor, settings)
    if not series:
        raise TrackingError(f"{name}: no look at it is logged; `congruence watch` makes them")
    run_id, text = str(model_run(name, settings).info.run_id), over_time_page(name, series)
    client = connect(settings)
    persist("logging the page over time", lambda: client.log_text(run_id, text, OVER_TIME_FILE), settings)
    note = "\n".join(f"- {each.label} on {each.split}: **{each.monitor.sentence()}**" for each in series)
    persist(
        "logging the page over time",
        lambda: client.set_tag(run_id, "mlflow.note.content", f"{note}\n\nRead `{OVER_TIME_FILE}`."),
        settings,
    )
    return run_id


def series_of(name: str, monitor: Monitor, settings: TrackingSettings) -> list[Series]:
    """The looks at the versions of a registered model, with the numbers of their evaluations.

    Raises:
        TrackingError: MLflow does not answer.
    """
    grouped: dict[tuple[str, str], list[LoggedLook]] = defaultdict(list)
    for look in closed_looks(name, settings):
        grouped[look.version, look.split].append(look)
    found: dict[str, LookPoint] = {}
    base = web_page(settings)
    for split in {split for _, split in grouped}:
        for held in finished_evaluations(split, settings).values():
            link = ""
            if base is not None:
                link = run_link(base, held.experiment, held.run_id)
            found[held.run_id] = LookPoint(held.metrics, held.wrong, link)
    series = []
    for (version, split), looks in sorted(grouped.items()):
        account, points = monitor, []
        for look in looks:
            assert look.found is not None
            counted = account.with_look(look.found)
            if counted is not account:
                points.append(found.get(look.evaluation_run, LookPoint({})))
            account = counted
        series.append(Series(f"{name}/{version}", split, account, points))
    return series
