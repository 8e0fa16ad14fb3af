"""score and log: a worker makes a version's scores and logs them; what comes back is the run and its metrics."""

from __future__ import annotations

from dataclasses import dataclass

from prefect import task
from prefect.cache_policies import NO_CACHE

from congruence.flows.cli.progress import stage
from congruence.flows.evaluation.stages.waiting import divided, tasks_at_once, tasks_under_way
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.mlflow.connection import use_tracking
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.runtime.memory import give_back
from congruence.tasks.runtime.steps import about
from congruence.tasks.scores.evaluation import Evaluation, MetricValue
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.solving.measurement_store import MeasurementAddress


@dataclass(frozen=True)
class Logged:
    """A logged evaluation: its run, its metrics, and what is wrong with the version, in sentences."""

    run_id: str
    metrics: dict[str, MetricValue]
    wrong: tuple[str, ...] = ()


@task(
    name="log",
    task_run_name="log {label} on {evaluation.split.name}",
    retries=1,  # an MLflow that does not answer is asked again for tracking.patience seconds within one try
    cache_policy=NO_CACHE,
)
def log_task(label: str, evaluation: Evaluation, settings: EvaluationSettings, again: bool = False) -> str:  # noqa: ARG001
    """Write one evaluation to MLflow; finding it there already, finish or keep it, or replace it (``again``)."""
    from congruence.tasks.mlflow.baselines import IN_USE  # draws, and is not loaded in the flow's process
    from congruence.tasks.mlflow.evaluations import log_evaluation

    baseline = None if settings.gate is None else settings.gate.baseline
    return log_evaluation(evaluation, settings.tracking, replace=again, baseline=baseline or IN_USE)


@task(name="score", task_run_name="score {version.label} on {rows.split.name}", cache_policy=NO_CACHE)
def score_task(
    settings: EvaluationSettings,
    protocol: EvaluationProtocol,
    rows: EvaluatedRows,
    version: ModelVersion,
    kept: MeasurementAddress,
    again: bool,
) -> Logged:
    """Make every score of one version from its predictions and its measurement, and log it from here."""
    from congruence.tasks.scores.version import score_version

    use_tracking(settings.tracking)
    encoder = asking_encoder(settings.encoder)
    with about(version.label):
        give_back()
        evaluation = score_version(settings, rows, encoder, version, protocol, kept.require())
    give_back()
    run_id = log_task(version.label, evaluation, settings, again)
    kept.remove()
    return Logged(run_id, evaluation.metrics, () if evaluation.wrong is None else evaluation.wrong.sentences)


def score(
    settings: EvaluationSettings,
    protocol: EvaluationProtocol,
    rows: EvaluatedRows,
    versions: list[ModelVersion],
    kept: dict[str, MeasurementAddress],
    again: bool,
) -> tuple[dict[str, Logged], dict[str, str]]:
    """Score and log some versions; what was logged, and why others were not, by label."""
    title = f"scoring and logging {rows.split.name}"
    with stage(title, len(versions), "versions", detail=tasks_under_way, at_once=tasks_at_once()) as advance:
        futures = {
            score_task.submit(
                settings, protocol, rows.of_versions([version.label]), version, kept[version.label], again
            ): version.label
            for version in versions
        }
        return divided(futures, advance)
