"""MLflow's pages, for people: their addresses, and how the list of evaluations opens.

Columns, order and charts are a saved view of the experiment, one for each split. MLflow keeps a view as an experiment
tag ``mlflow.sharedViewState.<key>`` and opens it by ``?viewStateShareKey=<key>``; its page offers it by name under
"Views", too. The tag holds JSON: the view's name, when it was made, and its state as text, which may be deflated.
Servers from before views had names read the state's fields from the tag itself, so all but the charts stand there, too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run

from congruence.tasks.mlflow.connection import connect, registry_of, tracking_address, with_retries
from congruence.tasks.mlflow.identity import PREFIX, VERDICT, quoted
from congruence.tasks.runtime.errors import mask_text
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.metrics.registry import SECTIONS, logged_name, metric_of, shown
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

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
    """An experiment's list of runs in one of its saved views (``view_key``), as ``run_page`` is written."""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={quote(view)}&{_VIEW}"


def run_place(settings: TrackingSettings, experiment: str, run_id: str) -> str:
    """Where a run is found: its address, or how to get at it where there is only a database."""
    base = web_page(settings)
    return f"run {run_id} (see it with: congruence ui)" if base is None else run_link(base, experiment, run_id)


_VIEWS = "mlflow.sharedViewState."
NOTE = "mlflow.note.content"
"""The tag of a run or an experiment with the text at the top of its page."""

_MADE = 1_767_225_600_000  # 1 January 2026: a date that never changes, so that the tag does not either
_COLUMNS = 7  # of the headline: more do not fit a screen
_VERDICT_WIDTH, _METRIC_WIDTH = 200, 165  # pixels: MLflow writes the section before each name

_SECTION = "congruence-"
"""Before the name of a section or a chart: what MLflow's page knows it by."""
_CARDS = {"columns": 2, "cardHeight": 320}  # wide enough for the metrics' names, which MLflow cuts off in three


def view_key(split: str, target: str = "") -> str:
    """What the view of the evaluations on a split, of one target, is called in addresses."""
    return "congruence-" + hashlib.sha256(f"{split}\n{target}".encode()).hexdigest()[:8]


def view_of_evaluations(split: str, target: str = "") -> str:
    """The value of the tag of a view: evaluations on a split, the most skilful first, with the headline and its charts.

    MLflow gives every other metric a chart in the section of its name; these sections start folded.
    """
    headline = shown("mlflow")
    metrics = [f"metrics.`{logged_name(name)}`" for name in headline[:_COLUMNS]]
    verdict = f"tags.`{VERDICT}`"
    wanted = [f"tags.`{PREFIX}split` = {quoted(split)}", *([f"params.`target` = {quoted(target)}"] if target else [])]
    state: dict[str, Any] = {
        "searchFilter": " and ".join(wanted),
        "orderByKey": metrics[0],
        "orderByAsc": False,
        "selectedColumns": [*metrics, verdict],
        "columnOrder": [verdict, *metrics],
        "columnWidths": {**dict.fromkeys(metrics, _METRIC_WIDTH), verdict: _VERDICT_WIDTH},
        "runsHiddenMode": "FIRST_20_RUNS",
        "compareRunCharts": [_chart(name) for name in headline],
        "compareRunSections": [
            {"uuid": _SECTION + name, "name": name, "display": name == SECTIONS[0], "isReordered": True, **_CARDS}
            for name in SECTIONS
        ],
        "isAccordionReordered": True,
    }
    name = f"{split}: {target}" if target else split
    # As MLflow's page packs a state: a tag has no more than 5,000 characters.
    packed = base64.b64encode(zlib.compress(_compact(state).encode(), 9)).decode("ascii")
    envelope = {"name": name, "createdAt": _MADE, "updatedAt": _MADE, "state": f"deflate;{packed}"}
    older = {name: value for name, value in state.items() if not name.startswith("compareRun")}  # a tag is short
    return _compact(older | envelope)


def prepare_experiment(
    client: MlflowClient, experiment: Experiment, kind: str, split: str = "", target: str = ""
) -> None:
    """Give an experiment its description and, where it holds evaluations, the view of a split, unless it has them.

    A description that somebody wrote stays. ``kind`` is that of its runs, see ``_DESCRIPTIONS``.
    """
    wanted = {} if NOTE in experiment.tags else {NOTE: _DESCRIPTIONS.get(kind, "Runs of congruence.")}
    if kind == "evaluation":
        wanted[_VIEWS + view_key(split, target)] = view_of_evaluations(split, target)
    for tag, value in wanted.items():
        if experiment.tags.get(tag) != value:
            client.set_experiment_tag(experiment.experiment_id, tag, value)


def evaluation_lists(settings: TrackingSettings) -> dict[str, str]:
    """The pages that list evaluations, by the names of their views: one for each split and target."""
    found = connect(settings).get_experiment_by_name(settings.evaluations)
    if found is None or found.lifecycle_stage != "active":
        return {}
    views = {tag.removeprefix(_VIEWS): text for tag, text in found.tags.items() if tag.startswith(_VIEWS)}
    pages = {json.loads(text).get("name", key): list_page(found.experiment_id, key) for key, text in views.items()}
    return dict(sorted(pages.items()))


_COMPARISONS = (
    "Comparisons of versions on the same split, with paired differences and their intervals: read `comparison.html` of "
    "a run first. Beside them the decisions of the gate, with their reasons in `gate.json`: a version passed, failed, "
    "or is undecided because the split is too small to tell."
)
_DESCRIPTIONS = {
    "evaluation": "**Choose a split under “Views”**: its list has one run for each model version and protocol, the "
    "most skilful first.\n\nA run begins with its verdict; its `report.html` says what is wrong, and where. The "
    "headline also stands on the page of each version and of its logged model.",
    "comparison": _COMPARISONS,
    "gate": _COMPARISONS,
    "scores": "New inputs judged by a labelled split: how far a version can be trusted on each, and which to "
    "withhold. Read `report.html` of a run first.",
}


def _chart(name: str) -> dict[str, Any]:
    logged = logged_name(name)
    return {
        "type": "BAR",
        "uuid": _SECTION + name,
        "metricKey": logged,
        "displayName": metric_of(name).label,
        "metricSectionId": _SECTION + SECTIONS[0],
        "runsCountToCompare": 20,
        "deleted": False,
        "isGenerated": True,  # else MLflow would draw the metric once more
    }


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


FAILED = "failed"
LOOKS = "cce_looks:"
"""Before the name of a split: the tag of a version that says in words what all looks at it there say."""

BEST = "cce_best:"
"""The tag of a version that says whether it may be the best on a split; the split's name follows."""
_LONGEST_MESSAGE = 1000
_HEADING = "**Evaluations by congruence**"


def tag_version(client: MlflowClient, evaluation: Evaluation, run: Run, settings: TrackingSettings) -> None:
    """Write headline tags and description of a registered version; the mark of a failure goes."""
    model = evaluation.model
    if not model.version:
        return
    experiment, run_id = str(run.info.experiment_id), str(run.info.run_id)
    headline = settings.headline_split in (None, evaluation.split.name)
    tags = {f"cce:{evaluation.split.name}": f"{evaluation.verdict} (protocol {evaluation.protocol.name})"}
    if headline:
        tags |= {
            "cce_status": str(evaluation.verdict)[:_LONGEST_MESSAGE],
            "cce_split": evaluation.split.name,
            "cce_run": run_id,
        }
        if "cce_mean" in evaluation.metrics:
            tags["cce"] = f"{evaluation.metrics['cce_mean'].value:.4g}"
        if evaluation.wrong is not None:
            tags["what_is_wrong"] = " ".join(evaluation.wrong.sentences)[:_LONGEST_MESSAGE]
        base = web_page(settings)
        if base is not None:
            tags["cce_link"] = run_link(base, experiment, run_id)
    registry, present = registry_of(client), client.get_model_version(model.name, model.version)
    for key, value in tags.items():
        if present.tags.get(key) != (said := mask_text(value)):
            registry.set_model_version_tag(model.name, model.version, key, said)
    text = described(present.description, evaluation, experiment, run_id, report=settings.report)
    if text != present.description:
        registry.update_model_version(model.name, model.version, text)
    stale = ("what_is_wrong",) if headline and evaluation.wrong is None else ()
    for key in ("cce_error", *stale):
        if key in present.tags:
            registry.delete_model_version_tag(model.name, model.version, key)


def described(text: str | None, evaluation: Evaluation, experiment: str, run_id: str, *, report: bool = True) -> str:
    """Returns ``text`` with a line for this evaluation, in place of an earlier one's on the same split.

    The lines stand under a heading of ours; what people wrote stays. ``experiment`` is the id of its run's; ``report``
    says whether the run holds one.
    """
    before, line = (text or "").rstrip(), _entry(evaluation, experiment, run_id, report)
    earlier = re.compile(rf"^- \*\*{re.escape(evaluation.split.name)}\*\*: .*$", re.MULTILINE)
    if _HEADING not in before:
        return f"{before}\n\n{_HEADING}\n\n{line}".lstrip()
    written, _, ours = before.partition(_HEADING)
    if earlier.search(ours):
        return written + _HEADING + earlier.sub(lambda _: line, ours, count=1)
    return f"{written}{_HEADING}\n\n{line}\n{ours.lstrip()}".rstrip()


def _entry(evaluation: Evaluation, experiment: str, run_id: str, report: bool) -> str:
    words = str(evaluation.verdict)
    if evaluation.wrong is not None:
        words += ". " + " ".join(evaluation.wrong.sentences)
    pages = {"Report": run_page(experiment, run_id, "artifacts/report.html")} if report else {}
    view = view_key(evaluation.split.name, evaluation.split.target)
    pages |= {"Run": run_page(experiment, run_id), "All versions on this split": list_page(experiment, view)}
    links = " | ".join(f"[{name}]({page})" for name, page in pages.items())
    said = mask_text(" ".join(words.split())).rstrip(".")
    return f"- **{evaluation.split.name}**: {said}. {links}"


def log_failure(model: ModelVersion, split: str, message: str, settings: TrackingSettings) -> None:
    """Show on the version that its evaluation failed and why, until one succeeds."""
    tags = {"cce_error": mask_text(f"{split}: {message}")[:_LONGEST_MESSAGE]}
    if settings.headline_split in (None, split):
        tags["cce_status"] = FAILED
    if model.version:
        set_version_tags(model, tags, settings)


def set_version_tags(model: ModelVersion, tags: Mapping[str, str], settings: TrackingSettings) -> None:
    """Set tags on a registered version: those that it had not when it was read."""
    registry = registry_of(connect(settings))

    def tag() -> None:
        for key, value in tags.items():
            if model.tags.get(key) != value:
                registry.set_model_version_tag(model.name, model.version, key, value)

    with_retries(f"tagging {model.label}", tag, settings)


def tag_run(what: str, run_id: str, tag: str, value: str, settings: TrackingSettings) -> None:
    """Set a tag on a run; ``what`` is done by that stands in the error where MLflow does not answer."""
    client = connect(settings)
    with_retries(what, lambda: client.set_tag(run_id, tag, value), settings)


def alias_holder(name: str, alias: str, settings: TrackingSettings) -> str | None:
    """The number of the version that ``alias`` is on, None where it is on none.

    Raises:
        TrackingError: there is no such registered model, or MLflow does not answer.
    """
    client = connect(settings)
    held = with_retries("reading the aliases", lambda: client.get_registered_model(name), settings).aliases
    return str(held[alias]) if alias in held else None


def set_alias(model: ModelVersion, alias: str, settings: TrackingSettings) -> None:
    """Point ``alias`` at a version."""
    client = connect(settings)
    with_retries(
        f"setting alias {alias}",
        lambda: client.set_registered_model_alias(model.name, alias, model.version),
        settings,
    )
