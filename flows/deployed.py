"""The flows that a Prefect server starts (on a schedule, on a new version, by hand) and `congruence serve`.

Parameters are an evaluation file on the worker, or the same content inline; either is checked against its schema before
the run is accepted, and inline content chooses nothing that runs on the worker. A run that could not evaluate a version
ends as Failed. A gate that did not pass is a verdict, not a failure: the run ends as completed, under the name
GateFailed or GateUndecided, to which an automation can listen.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy, State
from prefect.concurrency.sync import concurrency
from prefect.deployments.runner import RunnerDeployment
from prefect.events import DeploymentEventTrigger
from prefect.exceptions import ObjectAlreadyExists
from prefect.runner import Runner
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed
from prefect.types.entrypoint import EntrypointType

from congruence.flows.cli.console import on_page, say
from congruence.flows.cli.options import embed_servers, take_signals_back
from congruence.flows.cli.session import require_server
from congruence.flows.evaluate import evaluate, require_evaluated, show_versions
from congruence.flows.operations.gate import gate_outcomes
from congruence.flows.operations.watch import check_once, watched_patterns, watched_versions
from congruence.flows.receiver import EVENT
from congruence.tasks.comparison.gate import GateDecision, worst
from congruence.tasks.evaluate.plan import Plan, VersionOutcome, requested_versions
from congruence.tasks.mlflow.connection import use_tracking
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.files import SERVED_HOME, default_home
from congruence.tasks.settings.evaluation import EvaluationSettings, load_settings
from congruence.tasks.settings.sections import ModelVersion

DAY = 24 * 3600
QUARTER_HOURLY = "*/15 * * * *"
AT_ONCE = 2


def _run_name() -> str:
    parameters: dict[str, Any] = flow_run.parameters
    return f"{flow_run.flow_name} {parameters.get('model') or parameters.get('file') or 'inline settings'}"


@flow(name="watch-registry", flow_run_name=_run_name, validate_parameters=True, timeout_seconds=DAY)
def watch_registry(
    file: Path | None = None, settings: EvaluationSettings | None = None, model: str | None = None
) -> State[None] | None:
    """Evaluate the registry versions that lack an evaluation, and look at those in use on new dates, once.

    Runs for the same registered model wait for each other.

    Args:
        file: the evaluation file on the worker, with a ``watch:`` section.
        settings: its content, in place of a file, without what runs on the worker (a custom encoder, another registry
            or home folder, a cluster elsewhere).
        model: only this version (``models:/name/3``, as the event of a new version says it), and only if it is watched.

    Raises:
        UnevaluatedError: a version could not be evaluated.
    """
    chosen = _settings(file, settings)
    use_tracking(chosen.for_workers().tracking)
    versions = [version for version in watched_versions(chosen) if model in (None, version.uri)]
    with _alone(versions, chosen):
        result = check_once(chosen, model=model, evaluate=_evaluate)
    for sentence in result.sentences:
        get_run_logger().info("%s", sentence)
    return _ended(result.made, result.decisions, result.problems)


@flow(
    name="evaluate-version",
    flow_run_name=_run_name,
    validate_parameters=True,
    retries=2,
    retry_delay_seconds=60,
    timeout_seconds=DAY,
)
def evaluate_version(
    model: str | None = None, file: Path | None = None, settings: EvaluationSettings | None = None
) -> State[None] | None:
    """Evaluate one version (or those that the file names), watched or not, and apply the file's gate.

    Args:
        model: ``models:/name/3``.
        file: the evaluation file on the worker.
        settings: its content, in place of a file, as for ``watch_registry``.

    Raises:
        UnevaluatedError: a version could not be evaluated.
    """
    chosen = _settings(file, settings)
    chosen = chosen if model is None else chosen.model_copy(update={"models": [model]})
    use_tracking(chosen.for_workers().tracking)
    with _alone(requested_versions(chosen), chosen):
        outcomes = _evaluate(chosen)
    return _ended(outcomes, gate_outcomes(chosen, outcomes), [])


def _settings(file: Path | str | None, settings: EvaluationSettings | dict[str, Any] | None) -> EvaluationSettings:
    if (file is None) == (settings is None):
        raise SettingsError("give either file (an evaluation file on the worker) or settings (its content inline)")
    if file is None:
        chosen = EvaluationSettings.model_validate(settings)
        require_inert(chosen)
    else:
        chosen = load_settings(Path(file))
    if given := os.environ.get(SERVED_HOME):
        chosen = chosen.model_copy(update={"home": Path(given)})
    embed_servers(chosen.home_folder)
    return chosen


def _evaluate(settings: EvaluationSettings) -> list[VersionOutcome]:
    """As `congruence evaluate`, in this run."""
    plan = Plan(settings)
    found = plan.outcomes()
    return evaluate(plan) if found is None else found


@contextmanager
def _alone(versions: Iterable[ModelVersion], settings: EvaluationSettings) -> Iterator[None]:
    """Hold the one place that Prefect has for runs on each of these registered models, and wait for it; with tags.

    A run that died gives it back when its lease ends, five minutes later at most. What is said meanwhile stands on the
    run's page.
    """
    names = sorted({f"congruence {re.sub('[/%&<>]', '-', version.name)}" for version in versions})
    with get_client(sync_client=True) as client:
        for name in names:
            with suppress(ObjectAlreadyExists):  # by another run at the same moment
                client.upsert_global_concurrency_limit_by_name(name, 1)
    splits = (f"split:{split.name}" for split in settings.splits)
    token = on_page.set(get_run_logger())
    try:
        with concurrency(names, occupy=1), tags("congruence", *splits):
            yield
    finally:
        on_page.reset(token)


def _ended(
    outcomes: Sequence[VersionOutcome], decisions: Sequence[GateDecision], problems: Sequence[str]
) -> State[None] | None:
    """The table of a run's versions, and how the run ends.

    Raises:
        UnevaluatedError: a version or a split could not be evaluated.
    """
    show_versions(outcomes, {item.candidate.label: item.outcome for item in decisions})
    require_evaluated(outcomes, problems)
    verdict = worst(item.outcome for item in decisions)
    if verdict == "passed":
        return None
    lines = [f"{item.candidate.label}: gate {item.outcome}: {'; '.join(item.reasons)}" for item in decisions]
    for line in lines:
        get_run_logger().warning("%s", line)
    return Completed(name=f"Gate{verdict.capitalize()}", message="\n".join(lines))


def served_deployments(file: Path, name: str, cron: str, pool: str | None = None) -> list[RunnerDeployment]:
    """Returns the deployments ``name``, on a schedule, and ``name-new-version``, on the event that the receiver posts.

    Of the first one run is under way at a time; another that comes due meanwhile is cancelled. They are carried out by
    the workers of a ``pool``, by default by the process that serves them.

    Raises:
        SettingsError: ``cron`` is no cron line.
    """
    parameters = {"file": str(file.resolve())}
    shared: dict[str, Any] = {"tags": ["congruence"], "entrypoint_type": EntrypointType.MODULE_PATH}
    if pool is not None:
        # Not through a pipe to the worker, which would break in the hands of the run where the worker is killed; the
        # run's page has its lines.
        shared |= {"work_pool_name": pool, "job_variables": {"stream_output": False}}
    try:
        scheduled: Any = watch_registry.to_deployment(
            name,
            cron=cron,
            parameters=parameters,
            concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
            description=f"Evaluate the registry versions that {file.name} watches and that lack an evaluation",
            **shared,
        )
    except ValueError as error:
        raise SettingsError(
            f'--cron: invalid cron expression {cron!r}; write for example "{QUARTER_HOURLY}"'
        ) from error
    trigger = DeploymentEventTrigger(
        name=f"{name}: a new version in MLflow",
        expect={EVENT},
        match={"prefect.resource.id": "mlflow.model-version.*"},
        parameters={**parameters, "model": "{{ event.payload.model }}"},
    )
    announced: Any = watch_registry.to_deployment(
        f"{name}-new-version",
        triggers=[trigger],
        parameters=parameters,
        description=f"Evaluate a version that {file.name} watches as soon as it is registered",
        **shared,
    )
    return [scheduled, announced]


def serve(settings: EvaluationSettings, file: Path, *, cron: str = QUARTER_HOURLY, name: str | None = None) -> None:
    """Register the deployments and carry out their runs, each of which reads ``file`` again, until stopped.

    Raises:
        SettingsError: no Prefect server named or there, no models to watch, or no cron line.
    """
    watched_patterns(settings)
    if not PREFECT_API_URL.value():
        raise SettingsError(
            "PREFECT_API_URL: not set; start a Prefect server (prefect server start) and point at it "
            "(export PREFECT_API_URL=http://127.0.0.1:4200/api), or use `congruence watch`, which needs none"
        )
    require_server(PREFECT_API_URL.value())
    deployments: Any = served_deployments(file, name or file.stem, cron)
    say(f"serving {file} (cron {cron!r} and new versions; stop with Ctrl-C)")
    # Not paused at the end: another process may serve the same, and what comes meanwhile is carried out at the return.
    runner = _Runner(pause_on_shutdown=False, limit=AT_ONCE)
    for deployment in deployments:
        runner.add_deployment(deployment)
    asyncio.run(runner.start())


class _Runner(Runner):
    """Prefect's, which SIGTERM ends as it ends every other command."""

    def handle_sigterm(self, *_: Any, **__: Any) -> None:
        """Instead of Prefect's own end, which takes as long as the runs."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        take_signals_back()
        signal.raise_signal(signal.SIGTERM)


_SAFE_CLUSTERS = ("threads", "local", "cuda")


def require_inert(settings: EvaluationSettings) -> None:
    """Refuse inline settings that would choose what code runs on the worker.

    A custom encoder is code. So is a registry, whose models are loaded, and a home folder other than the worker's own,
    which may hold one; and a cluster that somebody else names, whose scheduler, class or image the worker would trust.
    They belong into an evaluation file on the worker, which only those can write who may log in there.

    Raises:
        SettingsError: names every such key.
    """
    tracking = settings.tracking
    found: dict[str, Any] = {
        "encoder.kind: custom": settings.encoder.kind == "custom",
        f"cluster.kind: {settings.cluster.kind}": settings.cluster.kind not in _SAFE_CLUSTERS,
        "tracking.uri": tracking.uri,
        "tracking.registry_uri": tracking.registry_uri,
        "home": settings.home_folder != default_home(),
    }
    named = [key for key, given in found.items() if given]
    if named:
        raise SettingsError(
            f"settings: {', '.join(named)} cannot be given with a run, since it chooses what runs on the worker; write "
            "it into an evaluation file on the worker, and give the run file: its path"
        )
