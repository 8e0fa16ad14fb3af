"""check and predict: versions are loaded on the workers, tried on a few rows, and asked for every valid row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from distributed import KilledWorker
from prefect import Task, task
from prefect.cache_policies import NO_CACHE

from congruence.flows.cli.progress import stage
from congruence.flows.evaluation.batching import groups_of_shards
from congruence.flows.evaluation.stages.failures import killed_workers, why
from congruence.flows.evaluation.stages.waiting import as_completed, divided, tasks_at_once
from congruence.tasks.contract import ContractError
from congruence.tasks.contract.resolved import contract_digest, resolved_contract
from congruence.tasks.data.split import Shard
from congruence.tasks.mlflow.connection import use_tracking, with_retries
from congruence.tasks.models.address import PredictionAddress
from congruence.tasks.models.evaluated_rows import EvaluatedRows, KeptPredictions
from congruence.tasks.models.registry import ModelVersion, resolve
from congruence.tasks.models.worker import ServedVersion, try_contract
from congruence.tasks.settings.evaluation import EvaluationSettings

R = TypeVar("R")


@task(name="check", task_run_name="check {version.label} on {rows.split.name}", cache_policy=NO_CACHE)
def check_task(version: ModelVersion, rows: EvaluatedRows, settings: EvaluationSettings) -> ServedVersion:
    """Load a version on a worker and try its contract on a few rows, before hours are spent on embeddings."""
    use_tracking(settings.tracking)
    step = f"loading {version.label}"

    def load() -> ServedVersion:
        served = serve(settings, version)
        try_contract(served, rows.split, missing=settings.encoder.takes_missing)
        return served

    try:
        return with_retries(step, load, settings.tracking)
    except ContractError:
        # MLflow may have gone away while the files came: not the version's failure. Once it answers, they come again.
        with_retries(step, lambda: resolve(version.uri), settings.tracking)
        return with_retries(step, load, settings.tracking)


def serve(settings: EvaluationSettings, version: ModelVersion) -> ServedVersion:
    """What a worker needs to load ``version``."""
    return ServedVersion(
        version,
        resolved_contract(version, settings.predictions),
        settings.tracking.uri,
        settings.tracking.registry_uri,
        settings.predict,
        str(settings.home_folder / "environments"),
    )


def kept_predictions(rows: EvaluatedRows, served: ServedVersion) -> KeptPredictions:
    """Where the predictions of a version for ``rows``, which are embedded, are kept."""
    inputs = rows.split.settings.model_input_columns
    contract = contract_digest(served.contract, inputs, served.settings.isolation)
    store = rows.address
    address = PredictionAddress.of(store.uri, rows.split.digest, served.version, contract, rows.valid, store.options)
    return KeptPredictions(address, served)


def _of_shards(
    name: str, ask: Callable[[EvaluatedRows, str, list[Shard]], R], retries: int = 0
) -> Task[[ModelVersion, EvaluatedRows, list[Shard], int, int, EvaluationSettings], R]:
    """A task that asks one version about the valid rows of some shards; the first and last are part of its name."""

    @task(
        name=name,
        task_run_name=f"{name} {{version.label}} on {{rows.split.name}} shards {{first}}-{{last}}",
        retries=retries,
        cache_policy=NO_CACHE,
        tags=["congruence-predict"],
    )
    def asked(
        version: ModelVersion,
        rows: EvaluatedRows,
        shards: list[Shard],
        first: int,  # noqa: ARG001
        last: int,  # noqa: ARG001
        settings: EvaluationSettings,
    ) -> R:
        use_tracking(settings.tracking)
        return ask(rows, version.label, shards)

    return asked


predict_task = _of_shards("predict", EvaluatedRows.predict, retries=1)
"""Predict the valid rows of some shards by one version; what is kept is not asked again."""

refused_task = _of_shards("find refused rows", EvaluatedRows.refused)
"""The valid rows of some shards that one version gives no prediction for, and why."""


def check(
    settings: EvaluationSettings, rows: EvaluatedRows, versions: list[ModelVersion]
) -> tuple[dict[str, ServedVersion], dict[str, str]]:
    """The versions that keep their contract, ready to be loaded, and why the others do not, by label."""
    with stage(f"checking versions on {rows.split.name}", len(versions), "versions") as advance:
        return divided({check_task.submit(version, rows, settings): version.label for version in versions}, advance)


def predict(settings: EvaluationSettings, rows: EvaluatedRows, versions: list[ModelVersion]) -> dict[str, str]:
    """Ask every version for every valid row, in groups of shards; why some could not answer, by label."""
    groups = groups_of_shards(rows.split.shards, tasks_at_once(), len(versions))
    failures: dict[str, str] = {}
    # Only this version's part: a task's arguments do not grow with the others.
    own = {version.label: rows.of_versions([version.label]) for version in versions}
    at_once = tasks_at_once() * sum(shard.rows for shard in groups[0])
    with stage(f"predicting {rows.split.name}", rows.split.rows * len(versions), at_once=at_once) as advance:
        futures = {
            predict_task.submit(version, own[version.label], group, group[0].index, group[-1].index, settings): (
                version,
                group,
            )
            for version in versions
            for group in groups
        }
        for future in as_completed(list(futures)):
            version, group = futures[future]
            try:
                reason = why(future)
            except KilledWorker as error:  # by this version, on every worker it was given to
                reason = killed_workers(error, version.label, group[0].start, group[-1].stop - 1)
            if reason is not None:
                failures.setdefault(version.label, reason)
            advance(sum(shard.rows for shard in group))
    return failures


def refused(settings: EvaluationSettings, rows: EvaluatedRows, version: ModelVersion) -> dict[int, str]:
    """The valid rows that a version gives no prediction for, asked one by one in the end, and why, by row of the split.

    Raises:
        ContractError: it refuses rows together alone, or all of them as far as it was asked.
    """
    groups = groups_of_shards(rows.split.shards, tasks_at_once())
    found: dict[int, str] = {}
    with stage(f"finding rows of {rows.split.name} that {version.label} refuses", rows.split.rows) as advance:
        futures = {
            refused_task.submit(version, rows, group, group[0].index, group[-1].index, settings): group
            for group in groups
        }
        for future in as_completed(list(futures)):
            found |= future.result()
            advance(sum(shard.rows for shard in futures[future]))
    return dict(sorted(found.items()))
