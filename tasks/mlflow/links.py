"""Addresses of MLflow's pages, for people."""

from __future__ import annotations

import re
from urllib.parse import quote

from congruence.tasks.mlflow.connection import connect, tracking_address, with_retries
from congruence.tasks.mlflow.settings import TrackingSettings

# Without it a link opens in MLflow's view of language models, which has neither the registry nor the list of runs.
_VIEW = "workflowType=machine_learning"
_USER_INFO = re.compile(r"(?<=://)[^/\s@]*@")


def web_page(settings: TrackingSettings) -> str | None:
    """Where people open MLflow: ``settings.link``, else the tracking server; None for a database, which has no page."""
    base = settings.link or tracking_address(settings)
    return _USER_INFO.sub("", base).rstrip("/") if base.startswith(("http://", "https://")) else None


def run_link(base: str, experiment: str, run_id: str, page: str = "") -> str:
    """The address of a run's page, or of one of its pages such as ``artifacts/report.html``."""
    return f"{base.rstrip('/')}/{run_page(experiment, run_id, page)}"


def run_page(experiment: str, run_id: str, page: str = "") -> str:
    """``run_link`` as texts on MLflow's own pages write it: without the server, whose name they need not know."""
    return f"#/experiments/{experiment}/runs/{run_id}{'/' + quote(page) if page else ''}?{_VIEW}"


def list_page(experiment: str, view: str) -> str:
    """An experiment's list of runs in one of its saved views (``views.KEY``), as ``run_page`` is written."""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={quote(view)}&{_VIEW}"


def run_place(settings: TrackingSettings, experiment: str, run_id: str) -> str:
    """Where a run is found: its address, or how to get at it where there is only a database."""
    base = web_page(settings)
    return f"run {run_id} (see it with: congruence ui)" if base is None else run_link(base, experiment, run_id)


def place_of(run_id: str, settings: TrackingSettings) -> str:
    """Where a run is found, by its id alone."""
    run = with_retries("reading the run", lambda: connect(settings).get_run(run_id), settings)
    return run_place(settings, str(run.info.experiment_id), run_id)
