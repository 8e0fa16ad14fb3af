"""The main flow: registry versions on the splits of an evaluation file, logged to MLflow.

Prefect sees an evaluation as a run, and each stage of a split (index, check, embed, predict, solve, score) as a task
of it, with its progress. Shards and versions are pieces of work on Dask, which has a dashboard of its own. Every stage
keeps what it finished, so a run after a crash continues and ends with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

from congruence.flows.cli.console import say
from congruence.flows.cli.progress import stage
from congruence.flows.prefect.log_filters import settle
from congruence.kernels.errors import CongruenceError
from congruence.tasks.evaluate.evaluation import evaluate as evaluate_plan
from congruence.tasks.evaluate.executors import DaskExecutor, Observer, dask_executor
from congruence.tasks.evaluate.plan import Plan, VersionOutcome
from congruence.tasks.evaluate.splits import local_folders
from congruence.tasks.runtime.files import in_use
from congruence.tasks.runtime.json_logging import log_fields
from congruence.tasks.scores.metrics.registry import shown
from congruence.tasks.settings.evaluation import EvaluationSettings

settle()


def evaluate(
    settings: EvaluationSettings, models: str = "registry versions", again: bool = False, plan: Plan | None = None
) -> list[VersionOutcome]:
    """Evaluate the versions that ``settings`` name on each of its splits, as a run in Prefect.

    Args:
        settings: the evaluation file's content.
        models: names the run in Prefect's UI.
        again: predict, measure and log again what was evaluated before, replacing what is logged. Embeddings, which
            are found by the content of the inputs and the encoder, are kept.
        plan: of these settings, where it has been made already.

    Raises:
        CongruenceError: settings, data or models that cannot be evaluated, found before the long work where possible.
    """
    made = plan or Plan(settings, again=again)

    # The plan grows with the versions: Prefect, which stores and shows parameters, is given the settings alone.
    @flow(name="evaluate", flow_run_name=_verbatim(f"evaluate {models}"))
    def evaluation(settings: EvaluationSettings, again: bool) -> list[VersionOutcome]:  # noqa: ARG001
        with in_flow(made.settings) as cluster:
            return evaluate_plan(made, cluster, STAGES)

    return evaluation(made.settings, again)


@contextmanager
def in_flow(settings: EvaluationSettings) -> Iterator[Callable[[], DaskExecutor]]:
    """What a flow's work has around it: its folders in use, log lines that name the run, and a cluster when asked."""
    fields = {"run": str(flow_run.id), "evaluation": str(flow_run.name)}
    with ExitStack() as opened, log_fields(**fields):
        opened.enter_context(in_use(*local_folders(settings)))
        yield cache(lambda: opened.enter_context(dask_executor(settings.cluster, say)))


def _as_task(name: str, split: str, work: Callable[[], Any]) -> Any:
    """A stage as a task in Prefect; one that a disk or a server ended is tried again: what it finished stays."""
    title = f"{name} {split}"

    @task(
        name=name,
        task_run_name=_verbatim(title),
        retries=2,
        retry_delay_seconds=[5, 20],
        retry_condition_fn=_may_pass,
        cache_policy=NO_CACHE,
        tags=[f"congruence-{name}"],
    )
    def a_stage() -> Any:
        return work()

    with log_fields(stage=name, split=split, task=title):
        return a_stage()


def _table_artifact(split: str, outcomes: Sequence[VersionOutcome]) -> None:
    """The outcomes as a table on the run's page."""
    rows: list[dict[str, Any]] = [
        {"version": outcome.label, "status": outcome.status}
        | {name: str(metric) for name, metric in outcome.metrics.items() if name in shown("headlines")}
        | ({"error": outcome.error} if outcome.error else {})
        for outcome in outcomes
    ]
    create_table_artifact(table=rows, key="congruence-versions", description=f"Versions on split {split}")


TERMINAL = Observer(say, stage)
"""Lines and progress at the terminal."""

STAGES = Observer(say, stage, _as_task, _table_artifact)
"""The same, and stages as tasks in Prefect."""


def _verbatim(name: str) -> str:
    """The name of a run with braces that Prefect does not fill in."""
    return name.replace("{", "{{").replace("}", "}}")


def _may_pass(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Whether a stage that failed is worth another try: what we say ourselves of settings, data and clusters stays."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, OSError) and not isinstance(error, CongruenceError)
