"""The page of a registered model over time: its looks and their evaluations, logged to the run of the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from congruence.kernels.monitoring import Monitor
from congruence.tasks.mlflow.connection import connect, tracking_address, with_retries
from congruence.tasks.mlflow.finished import finished_evaluation, finished_evaluations
from congruence.tasks.mlflow.looks import LoggedLook, closed_looks, model_run
from congruence.tasks.mlflow.pages import run_link, web_page
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.report.over_time import LookPoint, Series, over_time_page

OVER_TIME_FILE = "over-time.html"
_ONE_BY_ONE = 3
"""Of more evaluations those of a split are asked for all at once."""

_read: dict[str, dict[str, LookPoint]] = {}
"""By the tracking address and the run."""


def log_over_time(name: str, monitor: Monitor, settings: TrackingSettings) -> None:
    """Log the page of a registered model that was looked at over time, in place of an earlier one.

    ``monitor`` is an account without looks: its level and run length.
    """
    series = series_of(name, monitor, settings)
    run_id, text = str(model_run(name, settings).info.run_id), over_time_page(name, series)
    client = connect(settings)
    with_retries("logging the page over time", lambda: client.log_text(run_id, text, OVER_TIME_FILE), settings)
    note = "\n".join(f"- {each.label} on {each.split}: **{each.monitor.sentence()}**" for each in series)
    with_retries(
        "logging the page over time",
        lambda: client.set_tag(run_id, "mlflow.note.content", f"{note}\n\nRead `{OVER_TIME_FILE}`."),
        settings,
    )


def series_of(name: str, monitor: Monitor, settings: TrackingSettings) -> list[Series]:
    """The looks at the versions of a registered model, with the numbers of their evaluations."""
    grouped: dict[tuple[str, str], list[LoggedLook]] = defaultdict(list)
    looks = closed_looks(name, settings)
    for look in looks:
        grouped[look.version, look.split].append(look)
    found = _points(looks, settings)
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


def _points(looks: Iterable[LoggedLook], settings: TrackingSettings) -> dict[str, LookPoint]:
    """The evaluations of looks, by their run: complete ones never change, so that each is read once a process."""
    known = _read.setdefault(tracking_address(settings), {})
    missing = {look.evaluation_run: look.split for look in looks if look.evaluation_run not in known}
    if len(missing) > _ONE_BY_ONE:
        held = [each for split in set(missing.values()) for each in finished_evaluations(split, settings).values()]
    else:
        held = [each for run_id in missing if (each := finished_evaluation(run_id, settings)) is not None]
    base = web_page(settings)
    for each in held:
        link = "" if base is None else run_link(base, each.experiment, each.run_id)
        known[each.run_id] = LookPoint(each.metrics, each.wrong, link)
    return known
