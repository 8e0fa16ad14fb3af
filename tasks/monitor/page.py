"""The page of a registered model over time, logged beside its newest look."""

from __future__ import annotations

from collections.abc import Mapping

from congruence.tasks.mlflow.connection import connect, with_retries
from congruence.tasks.mlflow.identity import PREFIX, all_experiments, all_runs, quoted
from congruence.tasks.mlflow.pages import run_link, web_page
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.monitor.account import Account
from congruence.tasks.report.over_time import LookPoint, Series, over_time_page

OVER_TIME_FILE = "over-time.html"
_OVER_TIME = PREFIX + "over_time"
"""The tag of a run that holds the page of the registered model of that name."""


def log_over_time(name: str, accounts: Mapping[tuple[str, str], Account], settings: TrackingSettings) -> None:
    """Log the page of a registered model to the run of its newest look.

    Args:
        name: of the model.
        accounts: of its versions by label and split; those without looks are left out, and one has some.
        settings: where looks are logged.

    Raises:
        TrackingError: MLflow does not answer.
    """
    base = web_page(settings)
    series, newest = [], []
    for (label, split), account in sorted(accounts.items()):
        if account.looks:
            points = [
                LookPoint(
                    look.metrics,
                    look.wrong,
                    "" if base is None else run_link(base, look.experiment, look.run_id),
                    look.inputs,
                )
                for look in account.looks
            ]
            series.append(Series(label, split, account.monitor, points))
            newest += [(look.made, look.run_id) for look in account.looks]
    client, (_, run_id) = connect(settings), max(newest)

    def log() -> None:
        client.log_text(run_id, over_time_page(name, series), OVER_TIME_FILE)
        client.set_tag(run_id, _OVER_TIME, name)

    with_retries("logging the page over time", log, settings)


def over_time_run(name: str, settings: TrackingSettings) -> tuple[str, str] | None:
    """Returns the experiment and the run that hold the newest page of a registered model; None where nobody looked.

    Raises:
        TrackingError: MLflow does not answer.
    """
    client = connect(settings)

    def search() -> list[tuple[str, str]]:
        runs = all_runs(client, all_experiments(client, settings), f"tags.`{_OVER_TIME}` = {quoted(name)}")
        return [(str(run.info.experiment_id), str(run.info.run_id)) for run in runs]

    return next(iter(with_retries("looking for the page over time", search, settings)), None)
