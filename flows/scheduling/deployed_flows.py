"""The flows that a Prefect server starts: on a schedule, on the event of a new version, or from its own page.

Parameters are an evaluation file on the worker, or the same content inline; either is checked against its schema before
the run is accepted, and inline content chooses nothing that runs on the worker. A run that could not evaluate a version
ends as failed, so that Prefect's own automations see it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prefect import Flow, flow, get_run_logger, tags, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import FlowRun, State
from prefect.runtime import flow_run

from congruence.flows.cli.environment import embed_servers
from congruence.flows.evaluation.pipeline import evaluate as evaluate_versions
from congruence.flows.evaluation.results import VersionOutcome
from congruence.flows.evaluation.tracking import use_tracking
from congruence.flows.operations.gate import gate_outcomes
from congruence.flows.scheduling.looking import Tick
from congruence.flows.scheduling.poll import tick
from congruence.kernels.errors import CongruenceError
from congruence.tasks.comparison.gate import GateDecision
from congruence.tasks.mlflow.connection import TrackingError
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings, load_settings
from congruence.tasks.settings.home import SERVED
from congruence.tasks.settings.inline import require_inert
from congruence.tasks.watching.notification import notify

DAY = 24 * 3600


class UnevaluatedError(CongruenceError):
    """A scheduled run could not evaluate some versions, or they did not pass the gate: names them with the reasons."""


def notify_of_failure(ran: Flow[..., Any], run: FlowRun, state: State[Any]) -> None:
    """Prefect's hook on failed and crashed runs: the notice that the evaluation file's ``notify:`` asks for."""
    parameters = run.parameters or {}
    try:
        settings = _settings(parameters.get("file"), parameters.get("settings"), None).notify
    except CongruenceError:  # unreadable settings are what failed; the notice is then only logged
        settings = None
    notify(settings, f"congruence: run '{run.name}' of flow {ran.name} is {state.name}", str(state.message))


_HOOKS: Any = {"on_failure": [notify_of_failure], "on_crashed": [notify_of_failure]}


def _run_name() -> str:
    parameters: dict[str, Any] = flow_run.parameters
    model = parameters.get("model")
    return f"evaluate {model}" if model else f"evaluate the models of {parameters.get('file') or 'inline settings'}"


def _watch_name() -> str:
    parameters: dict[str, Any] = flow_run.parameters
    return f"watch {parameters.get('model') or parameters.get('file') or 'inline settings'}"


def _mlflow_was_away(task: object, run: object, state: State[Any]) -> bool:  # noqa: ARG001
    return isinstance(state.result(raise_on_failure=False), TrackingError)


@task(
    name="look",
    task_run_name="look at the registry",
    retries=2,
    retry_delay_seconds=60,
    retry_condition_fn=_mlflow_was_away,
    cache_policy=NO_CACHE,
)
def look_task(settings: EvaluationSettings, model: str | None) -> Tick:
    """One look at the registry. Tried again only where MLflow was away: a version that failed waits for its next try,
    so a second look would find nothing to do and end well.
    """
    return tick(settings, model=model)


@flow(
    name="watch-registry",
    flow_run_name=_watch_name,
    validate_parameters=True,
    timeout_seconds=DAY,
    **_HOOKS,
)
def watch_registry(
    file: Path | None = None, settings: EvaluationSettings | None = None, model: str | None = None
) -> None:
    """Evaluate the registry versions that lack an evaluation, once; a version is evaluated by one run at a time.

    Args:
        file: the evaluation file on the worker, with a ``watch:`` section.
        settings: its content, in place of a file, without what runs on the worker (``notify.command``, a custom
            encoder, another registry, a cluster elsewhere).
        model: only this version (``models:/name/3``, as the event of a new version says it), and only if it is watched.

    Raises:
        UnevaluatedError: a version could not be evaluated, or did not pass the gate.
    """
    chosen = _settings(file, settings, None)
    with tags("congruence", *(f"split:{split.name}" for split in chosen.splits)):
        result = look_task(chosen, model)
    get_run_logger().info("%d evaluated, %d waiting", len(result.outcomes), result.waiting)
    for sentence in result.sentences:
        get_run_logger().info("%s", sentence)
    if result.outcomes:
        _table(result.outcomes, result.decisions)
    _require_good(result.outcomes, result.decisions, result.problems)


@flow(
    name="evaluate-version",
    flow_run_name=_run_name,
    validate_parameters=True,
    retries=2,
    retry_delay_seconds=60,
    timeout_seconds=DAY,
    **_HOOKS,
)
def evaluate_version(
    model: str | None = None, file: Path | None = None, settings: EvaluationSettings | None = None
) -> None:
    """Evaluate one version (or those that the file names) and apply the file's gate.

    Args:
        model: ``models:/name/3``.
        file: the evaluation file on the worker.
        settings: its content, in place of a file, as for ``watch_registry``.

    Raises:
        UnevaluatedError: a version could not be evaluated, or did not pass the gate.
    """
    chosen = _settings(file, settings, model)
    use_tracking(chosen)
    splits = ", ".join(split.name for split in chosen.splits)
    with tags("congruence", *(f"split:{split.name}" for split in chosen.splits)):
        outcomes = evaluate_versions(chosen, f"{', '.join(chosen.models)} on {splits}")
    decisions = gate_outcomes(chosen, outcomes)
    _table(outcomes, decisions)
    _require_good(outcomes, decisions, [])


def _settings(
    file: Path | str | None, settings: EvaluationSettings | dict[str, Any] | None, model: str | None
) -> EvaluationSettings:
    if (file is None) == (settings is None):
        raise SettingsError("give either file (an evaluation file on the worker) or settings (its content inline)")
    if file is None:
        chosen = EvaluationSettings.model_validate(settings)
        require_inert(chosen)
    else:
        chosen = load_settings(Path(file))
    if given := os.environ.get(SERVED):
        chosen = chosen.model_copy(update={"home": Path(given)})
    embed_servers(chosen.home_folder)
    return chosen if model is None else chosen.model_copy(update={"models": [model]})


def _table(outcomes: list[VersionOutcome], decisions: list[GateDecision]) -> None:
    gates = {item.candidate.label: item.outcome for item in decisions}
    rows = [
        {
            "version": outcome.label,
            "split": outcome.split,
            "status": outcome.status,
            "gate": gates.get(outcome.label, ""),
            "run": outcome.run_id or "",
            "error": outcome.error or "",
        }
        for outcome in outcomes
    ]
    create_table_artifact(table=rows, key="congruence-run", description="Versions evaluated by this run")


def _require_good(outcomes: list[VersionOutcome], decisions: list[GateDecision], problems: list[str]) -> None:
    lines = [f"{item.label} on {item.split}: {item.error}" for item in outcomes if item.status == "failed"]
    lines += [
        f"{item.candidate.label}: gate {item.outcome}: {'; '.join(item.reasons)}"
        for item in decisions
        if not item.passed
    ]
    lines += problems
    if lines:
        raise UnevaluatedError("\n".join(lines))
