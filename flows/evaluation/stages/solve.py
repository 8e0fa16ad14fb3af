"""solve: the Gram system of a split for groups of versions: one worker prepares it, all take tiles and versions."""

from __future__ import annotations

from functools import partial

from distributed import worker_client
from prefect import task
from prefect.cache_policies import NO_CACHE

from congruence.flows.cli.console import say
from congruence.flows.cli.progress import stage
from congruence.flows.evaluation.stages.failures import why
from congruence.flows.evaluation.stages.waiting import as_completed, tasks_under_way, tell
from congruence.tasks.mlflow.connection import use_tracking
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.runtime.steps import about
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.solving.solve import VERSIONS_AT_ONCE, SolveWork, solve_versions


@task(name="solve", task_run_name="solve {split_name}: {labels}", cache_policy=NO_CACHE, tags=["congruence-solve"])
def solve_task(
    split_name: str,
    labels: str,  # noqa: ARG001 - part of the run's name
    settings: EvaluationSettings,
    work: SolveWork,
    versions: list[ModelVersion],
) -> None:
    """Prepare the Gram system once on the cluster, solve it for some versions, and keep what it said of each."""
    use_tracking(settings.tracking)
    with about(split_name), worker_client() as client:
        solve_versions(client, settings, work, [version.label for version in versions], partial(_say, split_name))


def _say(split_name: str, line: str) -> None:
    tell(f"solving {split_name}: {line}")


def groups_of(versions: list[ModelVersion]) -> list[list[ModelVersion]]:
    """The versions in groups that are solved together."""
    return [versions[start : start + VERSIONS_AT_ONCE] for start in range(0, len(versions), VERSIONS_AT_ONCE)]


def solve(
    settings: EvaluationSettings, work: SolveWork, versions: list[ModelVersion], split_name: str
) -> dict[str, str]:
    """Solve for one group of versions; why it failed for some, by label.

    A group that fails is solved again one by one: the failure of one version is not that of its neighbours.
    """
    count = len(versions)
    with stage(f"solving {split_name}", count, "versions", detail=tasks_under_way, at_once=count) as advance:
        failure = _solved(settings, work, versions, split_name)
        if failure is None:
            advance(count)
            return {}
    first, *others = versions
    alone = _solved(settings, work, [first], split_name) if others else failure
    if alone == failure:  # of the reference inputs, then, or of the cluster: it would be said of every version
        return {version.label: failure for version in versions}
    say(f"solving {split_name}: {failure}; each of the {count} versions is solved by itself")
    found = {first.label: alone} | {version.label: _solved(settings, work, [version], split_name) for version in others}
    return {label: why_not for label, why_not in found.items() if why_not is not None}


def _solved(settings: EvaluationSettings, work: SolveWork, versions: list[ModelVersion], split_name: str) -> str | None:
    first, last = versions[0].label, versions[-1].label
    labels = first if len(versions) == 1 else f"{first} to {last}"
    future = solve_task.submit(split_name, labels, settings, work.of_versions([v.label for v in versions]), versions)
    (ended,) = as_completed([future])
    return why(ended)
