"""MLflow's pages, for people: their addresses, and how the list of evaluations opens.

Columns, order and charts are a saved view of the experiment. MLflow keeps a view as an experiment tag
``mlflow.sharedViewState.<key>`` and opens it by ``?viewStateShareKey=<key>``; its page offers it by name under "Views",
too. The tag holds JSON: the view's name, when it was made, and its state as text, which may be deflated. Servers from
before views had names read the state's fields from the tag itself, so they stand there as well.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any
from urllib.parse import quote

from mlflow import MlflowClient

from congruence.tasks.mlflow.connection import connect, tracking_address, with_retries
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.mlflow_requests import all_pages
from congruence.tasks.scores.metrics.registry import metric_of, shown

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


KEY = "congruence"
TAG = f"mlflow.sharedViewState.{KEY}"
DESCRIPTION = "mlflow.note.content"
STATUS = "verdict"

_MADE = 1_767_225_600_000  # 1 January 2026: a date that never changes, so that the tag does not either
_CHARTS, _OTHERS = "congruence-charts", "congruence-others"
_METRICS_SECTION = "Model metrics"  # MLflow's own name: charts of metrics that the view does not know go there
_STATUS_WIDTH, _METRIC_WIDTH = 200, 98  # pixels: a metric has ten digits there, of which four are enough

_prepared: set[tuple[str | None, str]] = set()


def view_of_evaluations() -> str:
    """The value of the tag ``TAG``: evaluations sorted by mean CCE, in its columns and the status, with its charts.

    MLflow puts metrics without a chart into its own section, which starts folded.
    """
    metrics = [f"metrics.`{name}`" for name in shown("list")]
    status = f"tags.`{STATUS}`"
    state: dict[str, Any] = {
        "orderByKey": metrics[0],
        "orderByAsc": True,
        "selectedColumns": [*metrics, status],
        "columnOrder": [status, *metrics],
        "columnWidths": {**dict.fromkeys(metrics, _METRIC_WIDTH), status: _STATUS_WIDTH},
        "runsHiddenMode": "FIRST_20_RUNS",
        "compareRunCharts": [_chart(name) for name in shown("charts")],
        "compareRunSections": [
            {"uuid": _CHARTS, "name": "Evaluation", "display": True, "isReordered": True},
            {"uuid": _OTHERS, "name": _METRICS_SECTION, "display": False, "isReordered": True},
        ],
        "isAccordionReordered": True,
    }
    envelope = {"name": "Evaluations", "createdAt": _MADE, "updatedAt": _MADE, "state": _deflated(_compact(state))}
    return _compact(state | envelope)


def prepare_experiment(client: MlflowClient, experiment: str, kind: str, settings: TrackingSettings) -> None:
    """Give an experiment its description and, where it holds evaluations, its view; once per process.

    A description that somebody wrote stays. ``kind`` is that of its runs, see ``_DESCRIPTIONS``.
    """
    if (settings.uri, experiment) in _prepared:
        return
    found = client.get_experiment(experiment)
    if DESCRIPTION not in found.tags:
        split, _, target = found.name.removeprefix(settings.experiment_name("")).partition("/")
        client.set_experiment_tag(experiment, DESCRIPTION, describe(split, experiment, kind, target))
    if kind == "evaluation" and found.tags.get(TAG) != view_of_evaluations():
        client.set_experiment_tag(experiment, TAG, view_of_evaluations())
    _prepared.add((settings.uri, experiment))


def describe(name: str, experiment: str, kind: str, target: str = "") -> str:
    """What an experiment holds and how to read it, in Markdown: of evaluations with the name of their split."""
    said = _DESCRIPTIONS.get(kind, "Runs of congruence.")
    if kind != "evaluation":
        return said
    of = f" of {target}" if target else ""
    opened = f"**[Open the list by CCE]({list_page(experiment, KEY)})**"  # first: the page folds all but a line
    return f"{opened}, beside what it would be if the version were true.\n\n{said.format(split=name, of=of)}"


def experiments_of_evaluations(settings: TrackingSettings) -> dict[str, str]:
    """The ids of the experiments that hold evaluations, by name."""
    client = connect(settings)
    found = all_pages(lambda token: client.search_experiments(page_token=token))
    return dict(sorted((each.name, str(each.experiment_id)) for each in found if TAG in each.tags))


_DESCRIPTIONS = {
    "evaluation": "Evaluations{of} on the split **{split}**: one run for each model version and protocol. A run "
    "begins with its verdict; its `report.html` says what is wrong, and where. The numbers also stand on the page of "
    "each version and of its logged model.",
    "comparison": "Comparisons of versions on the same split, with paired differences and their intervals: read "
    "`comparison.html` of a run first.",
    "scores": "New inputs judged by a labelled split: how far a version can be trusted on each, and which to "
    "withhold. Read `report.html` of a run first.",
    "gate": "Decisions of the gate: one run for each, with the table of its reasons in `gate.json`. A version passed, "
    "failed, or is undecided because the split is too small to tell.",
}


def _chart(name: str) -> dict[str, Any]:
    return {
        "type": "BAR",
        "uuid": f"congruence-{name}",
        "metricKey": name,
        "displayName": metric_of(name).label,
        "metricSectionId": _CHARTS,
        "runsCountToCompare": 20,
        "deleted": False,
        "isGenerated": False,
    }


def _deflated(text: str) -> str:
    """As MLflow's page packs a state: a tag has no more than 5,000 characters."""
    return "deflate;" + base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
