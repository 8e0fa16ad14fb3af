"""What a model version says in the registry: tags with its headline numbers, or why they are missing; a description."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mlflow import MlflowClient

from congruence.tasks.mlflow.connection import connect, with_retries
from congruence.tasks.mlflow.pages import list_page, run_link, run_page, view_key, web_page
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.scores.evaluation import Evaluation

FAILED = "failed"
BEST = "cce_best:"
"""The tag of a version that says whether it may be the best on a split; the split's name follows."""
_LONGEST_MESSAGE = 1000
_HEADING = "**Evaluations by congruence**"


def tag_version(client: MlflowClient, evaluation: Evaluation, run_id: str, settings: TrackingSettings) -> None:
    """Write headline tags and description of a registered version; the mark of a failure goes."""
    model = evaluation.model
    if not model.version:
        return
    experiment = str(client.get_run(run_id).info.experiment_id)
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
    present = client.get_model_version(model.name, model.version)
    for key, value in tags.items():
        if present.tags.get(key) != (said := mask_text(value)):
            client.set_model_version_tag(model.name, model.version, key, said)
    text = described(present.description, evaluation, experiment, run_id, report=settings.report)
    if text != present.description:
        client.update_model_version(model.name, model.version, text)
    stale = ("what_is_wrong",) if headline and evaluation.wrong is None else ()
    for key in ("cce_error", *stale):
        if key in present.tags:
            client.delete_model_version_tag(model.name, model.version, key)


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
    """Set tags on a registered version."""
    client = connect(settings)

    def tag() -> None:
        for key, value in tags.items():
            client.set_model_version_tag(model.name, model.version, key, value)

    with_retries(f"tagging {model.label}", tag, settings)


def tag_best(model: ModelVersion, split: str, said: str, run_id: str, settings: TrackingSettings) -> None:
    """Tell on a registered version whether it may be the best on a split, by which evaluation."""
    tag, value = BEST + split, f"{said} (run {run_id})"
    if model.version and model.tags.get(tag) != value:
        set_version_tags(model, {tag: value}, settings)


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
