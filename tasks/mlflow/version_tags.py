"""The tags of a model version: its headline numbers and where they are from, or why they are missing."""

from __future__ import annotations

from collections.abc import Mapping

from mlflow import MlflowClient

from congruence.tasks.mlflow.connection import connect, with_retries
from congruence.tasks.mlflow.pages import run_link, web_page
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.version_pages import described
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.verdict import verdict

FAILED = "failed"
_LONGEST_MESSAGE = 1000


def tag_version(client: MlflowClient, evaluation: Evaluation, run_id: str, settings: TrackingSettings) -> None:
    """Write headline tags and description of a registered version; the mark of a failure goes."""
    model = evaluation.model
    if not model.version:
        return
    experiment = str(client.get_run(run_id).info.experiment_id)
    headline = settings.headline_split in (None, evaluation.split.name)
    tags = {f"cce:{evaluation.split.name}": f"{verdict(evaluation.metrics)} (protocol {evaluation.protocol.name})"}
    if headline:
        tags |= {"cce_status": evaluation.status, "cce_split": evaluation.split.name, "cce_run": run_id}
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
