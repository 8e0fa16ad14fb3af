"""check and predict: versions are loaded on the workers, tried on a few rows, and asked for every valid row."""

from __future__ import annotations

import numpy as np
from prefect import task
from prefect.cache_policies import NO_CACHE

from congruence.flows.progress import stage
from congruence.flows.stages.failures import why
from congruence.flows.stages.waiting import as_completed
from congruence.tasks.contract import ContractError, check_contract
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.models.registry import ModelVersion, resolve
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.sources import Shard
from congruence.tasks.tracking.connection import persist, use_tracking

CONTRACT_ROWS = 8
MAX_TASKS = 200


@task(name="check", task_run_name="check {version.label} on {rows.split.name}", cache_policy=NO_CACHE)
def check_task(version: ModelVersion, rows: EvaluatedRows, settings: EvaluationSettings) -> None:
    """Load a version on a worker and try its contract on a few rows, before hours are spent on embeddings."""
    use_tracking(settings.tracking)
    split = rows.split
    first = split.shards[0]
    frame = split.frame(first, split.settings.model_input_columns)
    chosen = np.flatnonzero(frame.notna().all(axis=1).to_numpy())[:CONTRACT_ROWS]
    step = f"loading {version.label}"
    try:
        model = persist(step, lambda: rows.model(version), settings.tracking)
    except ContractError:
        # MLflow may have gone away while the files came: not the version's failure. Once it answers, they come again.
        persist(step, lambda: resolve(version.uri), settings.tracking)
        model = persist(step, lambda: rows.model(version), settings.tracking)
    check_contract(model, frame.iloc[chosen], split.targets(first)[chosen])


@task(
    name="predict",
    task_run_name="predict {version.label} on {rows.split.name} shards {first}-{last}",
    retries=1,
    cache_policy=NO_CACHE,
    tags=["congruence-predict"],
)
def predict_task(
    version: ModelVersion,
    rows: EvaluatedRows,
    shards: list[Shard],
    first: int,  # noqa: ARG001 - part of the run's name
    last: int,  # noqa: ARG001
    settings: EvaluationSettings,
) -> int:
    """Predict the valid rows of some shards by one version; what is kept is not asked again."""
    use_tracking(settings.tracking)
    return rows.predict(version, shards)


def check(settings: EvaluationSettings, rows: EvaluatedRows, versions: list[ModelVersion]) -> dict[str, str]:
    """Why versions cannot be evaluated, by label."""
    futures = {check_task.submit(version, rows, settings): version.label for version in versions}
    failures = {}
    for future in as_completed(list(futures)):
        if (reason := why(future)) is not None:
            failures[futures[future]] = reason
    return failures


def predict(settings: EvaluationSettings, rows: EvaluatedRows, versions: list[ModelVersion]) -> dict[str, str]:
    """Ask every version for every valid row, in groups of shards; why some could not answer, by label."""
    shards = rows.split.shards
    size = max(1, -(-len(shards) * len(versions) // MAX_TASKS))
    groups = [shards[start : start + size] for start in range(0, len(shards), size)]
    failures: dict[str, str] = {}
    with stage(f"predicting {rows.split.name}", rows.split.rows * len(versions)) as advance:
        futures = {
            predict_task.submit(version, rows, group, group[0].index, group[-1].index, settings): (version, group)
            for version in versions
            for group in groups
        }
        for future in as_completed(list(futures)):
            version, group = futures[future]
            if (reason := why(future)) is not None:
                failures.setdefault(version.label, reason)
            advance(sum(shard.rows for shard in group))
    return failures
