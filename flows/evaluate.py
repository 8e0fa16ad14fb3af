"""The main flow: embed a split once, then evaluate registry versions on it and log what was found to MLflow.

Plan shards -> embed each into its region of the store (Prefect tasks on Dask) -> predict -> solve once for all versions
-> score -> log. Every step keeps what it finished, so a run after a crash continues and ends with the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from distributed import Client
from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from congruence.flows.conditions import encoder_protocol, evaluation_identity
from congruence.flows.found import asked_versions, divide, protocol_name
from congruence.flows.gather import SplitData, forget_predictions, gather
from congruence.flows.outcomes import VersionOutcome
from congruence.flows.progress import console, stage
from congruence.flows.splits import open_planned, with_fitted_encoder
from congruence.flows.tracking import use_tracking
from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import CongruenceError
from congruence.kernels.protocol.protocol import Protocol
from congruence.tasks.clusters import dask_client
from congruence.tasks.contract import ContractError, PredictiveModel, check_contract, load_predictive_model
from congruence.tasks.embeddings.worker import warm_encoder
from congruence.tasks.encoders import Encoder
from congruence.tasks.encoders.identity import keep_identity
from congruence.tasks.linalg import sweep_iterates
from congruence.tasks.linalg.measurement import Measurement, embedding_map, measure, on_cluster
from congruence.tasks.models.registry import ModelVersion, resolve
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.meanings import HEADLINES
from congruence.tasks.scores.points import score_version
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.sources import Split, SplitSettings
from congruence.tasks.tracking import (
    fail_run,
    log_evaluation,
    open_run,
)
from congruence.tasks.tracking.connection import persist
from congruence.tasks.tracking.system_metrics import system_metrics

CONTRACT_ROWS = 8
EXPECTED_COLUMNS = 60  # per version: features of one RBF at the papers' bandwidth, and the noise floor's probes


@task(name="solve", task_run_name="solve {split_name} for all versions", cache_policy=NO_CACHE)
def solve_task(
    split_name: str,
    settings: EvaluationSettings,
    protocol: Protocol,
    embeddings: Array,
    targets: Array,
    versions: dict[str, Distribution],
    client: Client,
    query: Array | None,
) -> Measurement:
    """Prepare the Gram system of the split once on the cluster and solve it for every version."""
    folder = settings.home_folder / "solves"
    folder.mkdir(parents=True, exist_ok=True)
    sweep_iterates(folder)
    place = on_cluster(
        client,
        settings.solver,
        EXPECTED_COLUMNS * len(versions),
        folder,
        lambda line: console.print(f"solving {split_name}: {line}", soft_wrap=True),
        gpu=settings.cluster.kind == "cuda",
    )
    return measure(settings, protocol, embeddings, targets, versions, query=query, prepare_inputs=place)


@task(
    name="log",
    task_run_name="log {label} on {evaluation.split.name}",
    retries=1,  # an MLflow that does not answer is asked again for tracking.patience seconds within one try
    cache_policy=NO_CACHE,
)
def log_task(label: str, evaluation: Evaluation, settings: EvaluationSettings, again: bool = False) -> str:  # noqa: ARG001
    """Write one evaluation to MLflow; finding it there already, finish or keep it, or replace it (``again``)."""
    return log_evaluation(evaluation, settings.tracking, replace=again)


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
        again: predict, measure and log anew what was evaluated before, in place of what is logged. Embeddings, which
            are found by the content of the inputs and the encoder, are kept.

    Raises:
        CongruenceError: settings, data or models that cannot be evaluated, found before the long work where possible.
    """
    use_tracking(settings)
    versions = asked_versions(settings)
    settings = with_fitted_encoder(settings)
    outcomes: list[VersionOutcome] = []
    for split in settings.splits:
        outcomes += evaluate_split(settings, split, versions, again)
    return outcomes


def evaluate_split(
    settings: EvaluationSettings, split_settings: SplitSettings, versions: list[ModelVersion], again: bool = False
) -> list[VersionOutcome]:
    """Evaluate ``versions`` on one split; those whose evaluation MLflow already holds are only reported.

    Unless they are to be evaluated ``again``.
    """
    split = open_planned(split_settings, settings)
    encoder = warm_encoder(settings.encoder.model_dump_json(exclude_unset=True))
    keep_identity(settings.encoder, encoder, settings.home_folder / "encoders")
    protocol = encoder_protocol(settings, encoder)
    outcomes, missing = ([], versions) if again else divide(settings, split, protocol, versions)
    if not missing:
        return outcomes
    models, failures = _load(settings, split, missing)
    outcomes += failures
    if models:
        outcomes += _evaluate_models(settings, split, encoder, protocol, models, again)
    _table_artifact(split, outcomes)
    return outcomes


def _load(
    settings: EvaluationSettings, split: Split, versions: list[ModelVersion]
) -> tuple[dict[str, PredictiveModel], list[VersionOutcome]]:
    """Load each version and try its contract on a few rows, before hours are spent on embeddings."""
    first = split.shards[0]
    frame = split.frame(first, split.settings.model_input_columns)
    usable = frame.notna().all(axis=1).to_numpy()
    rows = np.flatnonzero(usable)[:CONTRACT_ROWS]
    models, failures = {}, []
    for version in versions:
        try:
            model = _load_one(settings, version)
            check_contract(model, frame.iloc[rows], split.targets(first)[rows])
            models[version.label] = model
        except CongruenceError as error:
            failures.append(VersionOutcome(version.label, split.name, "failed", error=str(error)))
    return models, failures


def _load_one(settings: EvaluationSettings, version: ModelVersion) -> PredictiveModel:
    def load() -> PredictiveModel:
        return load_predictive_model(version.uri, settings.predictions)

    step = f"loading {version.label}"
    try:
        return persist(step, load, settings.tracking)
    except ContractError:
        # MLflow may have gone away while the files came: not the version's failure. Once it answers, they come again.
        persist(step, lambda: resolve(version.uri), settings.tracking)
        return persist(step, load, settings.tracking)


def _evaluate_models(
    settings: EvaluationSettings,
    split: Split,
    encoder: Encoder,
    protocol: Protocol,
    models: dict[str, PredictiveModel],
    again: bool,
) -> list[VersionOutcome]:
    if again:
        for part in (split, *([open_planned(settings.reference, settings)] if settings.reference else [])):
            forget_predictions(settings, part, models)
    identities = {
        label: evaluation_identity(settings, split, protocol, model.identity) for label, model in models.items()
    }
    runs = [open_run(identity, settings.tracking) for identity in identities.values()]
    try:
        with system_metrics(runs, settings.tracking), dask_client(settings.cluster) as client:
            data, measurement, failures = _measure(settings, split, encoder, protocol, models, client)
    except CongruenceError as error:
        for identity in identities.values():
            fail_run(identity, str(error), settings.tracking)
        raise
    for label, message in failures.items():
        fail_run(identities[label], message, settings.tracking)
    outcomes = [VersionOutcome(label, split.name, "failed", error=message) for label, message in failures.items()]
    if measurement is None:
        return outcomes
    picture = embedding_map(data.embeddings, data.valid)
    labels = [label for label in models if label not in failures]
    with stage(f"logging {split.name}", len(labels), "versions") as advance:
        for label in labels:
            version, predictive = models[label].identity, data.predictive[label]
            evaluation = score_version(
                settings, split, data.store, encoder, version, predictive, data.targets, measurement, picture
            )
            run_id = log_task(label, evaluation, settings, again)
            outcomes.append(
                VersionOutcome(
                    label, split.name, "evaluated", run_id, evaluation.metrics, protocol=protocol_name(protocol)
                )
            )
            advance(1)
    measurement.clear_checkpoints()
    return outcomes


def _measure(
    settings: EvaluationSettings,
    split: Split,
    encoder: Encoder,
    protocol: Protocol,
    models: dict[str, PredictiveModel],
    client: Client,
) -> tuple[SplitData, Measurement | None, dict[str, str]]:
    """The split's data, the measurement of the versions that predicted it, and why the others did not."""
    data = gather(settings, split, encoder, models, client)
    reference = data
    if settings.reference is not None:
        known = {label: models[label] for label in data.predictive}
        reference = gather(settings, open_planned(settings.reference, settings), encoder, known, client)
    failures = data.failures | (reference.failures if reference is not data else {})
    versions = {label: predictive for label, predictive in reference.predictive.items() if label not in failures}
    if not versions:
        return data, None, failures
    query = None if reference is data else data.embeddings
    measurement = solve_task(
        split.name, settings, protocol, reference.embeddings, reference.targets, versions, client, query
    )
    return data, measurement, failures


def _table_artifact(split: Split, outcomes: list[VersionOutcome]) -> None:
    rows: list[dict[str, Any]] = [
        {"version": outcome.label, "status": outcome.status}
        | {name: str(metric) for name, metric in outcome.metrics.items() if name in HEADLINES}
        | ({"error": outcome.error} if outcome.error else {})
        for outcome in outcomes
    ]
    create_table_artifact(table=rows, key="congruence-versions", description=f"Versions on split {split.name}")
