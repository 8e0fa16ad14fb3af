"""The main flow: registry versions on the splits of an evaluation file, logged to MLflow.

    index -> embed -> predict -> solve (groups of versions) -> score -> log

The flow's own process passes on addresses: the work is done by Dask workers, which read and write stores, and its
memory does not grow with the rows or the versions. Every stage keeps what it finished, so a run after a crash continues
and ends with the same numbers.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

from distributed import Client
from prefect import flow
from prefect.artifacts import create_table_artifact

from congruence.flows.cli.console import say
from congruence.flows.evaluation.existing_results import asked_versions, divide, left_out, protocol_name
from congruence.flows.evaluation.keys import encoder_protocol, evaluation_identity
from congruence.flows.evaluation.not_serialized import NotSerialized
from congruence.flows.evaluation.results import VersionOutcome
from congruence.flows.evaluation.splits import open_planned, with_fitted_encoder
from congruence.flows.evaluation.stages.addresses import local_stores, rows_of, store_uri
from congruence.flows.evaluation.stages.embed import embed
from congruence.flows.evaluation.stages.failures import reason
from congruence.flows.evaluation.stages.index import index
from congruence.flows.evaluation.stages.predict import check, kept_predictions, predict
from congruence.flows.evaluation.stages.score import Logged, score
from congruence.flows.evaluation.stages.solve import groups_of, solve
from congruence.flows.evaluation.stages.waiting import flow_client, on_workers_of, worker_messages
from congruence.flows.evaluation.tracking import for_workers
from congruence.kernels.errors import CongruenceError
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.dask.gpus import devices_in_words, worker_devices
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.identity import keep_identity
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.mlflow.connection import use_tracking
from congruence.tasks.mlflow.identity import EvaluationIdentity
from congruence.tasks.mlflow.machine import performance_report, system_metrics
from congruence.tasks.mlflow.runs import fail_run, open_run
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.runtime.folders import in_use
from congruence.tasks.runtime.json_logging import log_fields
from congruence.tasks.scores.metrics.registry import shown
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.solving.measurement_store import MeasurementAddress
from congruence.tasks.solving.solve import SolveWork


@dataclass(frozen=True)
class SplitWork:
    """What is to be done on one split: the versions whose evaluation MLflow lacks, with their identities by label."""

    split: Split
    protocol: EvaluationProtocol
    versions: list[ModelVersion]
    identities: dict[str, EvaluationIdentity]
    found: list[VersionOutcome]


@flow(name="evaluate", flow_run_name="evaluate {models_label}", validate_parameters=True)
def evaluate(
    settings: EvaluationSettings,
    models_label: str = "registry versions",  # noqa: ARG001 - part of the run's name
    again: bool = False,
) -> list[VersionOutcome]:
    """Evaluate the versions that ``settings`` name on each of its splits.

    Args:
        settings: the evaluation file's content.
        models_label: names the run in Prefect's UI.
        again: predict, measure and log again what was evaluated before, replacing what is logged. Embeddings, which
            are found by the content of the inputs and the encoder, are kept.

    Raises:
        CongruenceError: settings, data or models that cannot be evaluated, found before the long work where possible.
    """
    settings = for_workers(settings)
    use_tracking(settings.tracking)
    versions = asked_versions(settings)
    outcomes: list[VersionOutcome] = []
    with ExitStack() as opened:
        opened.enter_context(in_use(settings.home_folder, *local_stores(settings)))

        @cache
        def cluster() -> Client:
            """Started when there is something for it to do."""
            client = opened.enter_context(dask_client(settings.cluster, say))
            devices = devices_in_words(worker_devices(client, settings.cluster))
            if devices:
                say(devices)
            return client

        for part in settings.all_splits:
            index(settings, part, cluster)
        settings = with_fitted_encoder(settings)
        for split_settings in settings.splits:
            work = _work_on(settings, split_settings, versions, again)
            outcomes += work.found
            if work.versions:
                outcomes += _on_workers(cluster(), settings, work, again)
            _table_artifact(work.split, [outcome for outcome in outcomes if outcome.split == work.split.name])
    return outcomes


def _work_on(
    settings: EvaluationSettings, split_settings: SplitSettings, versions: list[ModelVersion], again: bool
) -> SplitWork:
    """The index of the split, and which versions are still to be evaluated on it."""
    split = open_planned(split_settings, settings)
    encoder = asking_encoder(settings.encoder)
    keep_identity(settings.encoder, encoder, settings.home_folder / "encoders")
    protocol = encoder_protocol(settings, encoder)
    found, missing = left_out(versions, split) if again else divide(settings, split, protocol, versions)
    identities = {version.label: evaluation_identity(settings, split, protocol, version) for version in missing}
    return SplitWork(split, protocol, missing, identities, found)


def _on_workers(client: Client, settings: EvaluationSettings, work: SplitWork, again: bool) -> list[VersionOutcome]:
    runner = on_workers_of(client)
    on_dask = evaluate_split.with_options(task_runner=runner, flow_run_name=f"evaluate on {work.split.name}")
    with worker_messages(client):
        return on_dask(settings, NotSerialized(work), again)


@flow(name="evaluate-split", validate_parameters=False)
def evaluate_split(settings: EvaluationSettings, asked: NotSerialized[SplitWork], again: bool) -> list[VersionOutcome]:
    """Embed a split, and predict, solve, score and log what is missing on it; every run that is opened is ended."""
    work = asked.here()
    ended: dict[str, VersionOutcome] = {}

    def end(logged: dict[str, Logged], failures: dict[str, str]) -> None:
        for label, message in failures.items():
            fail_run(work.identities[label], message, settings.tracking)
            ended[label] = VersionOutcome(label, work.split.name, "failed", error=message)
        for label, made in logged.items():
            ended[label] = VersionOutcome(
                label, work.split.name, "evaluated", made.run_id, made.metrics, protocol_name(work.protocol), made.wrong
            )

    def left() -> list[ModelVersion]:
        return [version for version in work.versions if version.label not in ended]

    try:
        runs = [open_run(work.identities[version.label], settings.tracking) for version in work.versions]
        # Of the versions of a split, which are evaluated together, the last one's run tells of the machine.
        with (
            system_metrics(runs[-1], settings.tracking),
            performance_report(flow_client(), runs[-1], settings.tracking),
        ):
            rows = rows_of(settings, work.split)
            reference = (
                rows if settings.reference is None else rows_of(settings, open_planned(settings.reference, settings))
            )
            parts = [rows] if reference is rows else [rows, reference]
            kept = {version.label: _measurement(settings, work, version) for version in work.versions}
            with log_fields(stage="check"):
                served, failures = check(settings, rows, left())
            end({}, failures)
            for part in parts if left() else []:
                with log_fields(stage="embed"):
                    embed(settings, part)
                part.predictions.update({label: kept_predictions(part, version) for label, version in served.items()})
            if again:
                _forget(parts, left(), kept)
            for part in parts:
                if left():
                    with log_fields(stage="predict"):
                        end({}, predict(settings, part, left()))
            task = SolveWork(work.protocol, reference, None if reference is rows else rows, kept)
            for group in groups_of(left()):
                with log_fields(stage="solve"):
                    end({}, solve(settings, task, group, work.split.name))
                solved = [version for version in group if version.label not in ended]
                with log_fields(stage="score"):
                    end(*score(settings, work.protocol, rows, solved, kept, again))
    except BaseException as error:
        _mark_failed([work.identities[version.label] for version in left()], reason(error), settings)
        raise
    return [ended[version.label] for version in work.versions]


def _mark_failed(identities: list[EvaluationIdentity], message: str, settings: EvaluationSettings) -> None:
    """Mark open runs as failed. Where MLflow is away they stay open, which is said: what ended the work is raised."""
    for position, identity in enumerate(identities):
        try:
            fail_run(identity, message, settings.tracking)
        except CongruenceError as error:
            say(f"{len(identities) - position} runs in MLflow stay open until the next attempt takes them up: {error}")
            return


def _measurement(settings: EvaluationSettings, work: SplitWork, version: ModelVersion) -> MeasurementAddress:
    key = f"measurements/{work.split.digest[:16]}/{work.identities[version.label].digest}.npz"
    return MeasurementAddress(store_uri(settings), key, settings.store.storage_options)


def _forget(parts: list[EvaluatedRows], versions: list[ModelVersion], kept: dict[str, MeasurementAddress]) -> None:
    for version in versions:
        kept[version.label].remove()
        for part in parts:
            part.forget(version.label)


def _table_artifact(split: Split, outcomes: list[VersionOutcome]) -> None:
    rows: list[dict[str, Any]] = [
        {"version": outcome.label, "status": outcome.status}
        | {name: str(metric) for name, metric in outcome.metrics.items() if name in shown("headlines")}
        | ({"error": outcome.error} if outcome.error else {})
        for outcome in outcomes
    ]
    create_table_artifact(table=rows, key="congruence-versions", description=f"Versions on split {split.name}")
