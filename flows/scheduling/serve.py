"""`congruence serve`: one process that looks at the registry on a schedule, and at once when a version is registered.

Two deployments of one flow are registered with the Prefect server, one with a schedule and one with a trigger, and
their runs are carried out here until the process is stopped. Starting it again changes nothing; any number may run.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import prefect
from prefect.deployments.runner import RunnerDeployment
from prefect.events import DeploymentEventTrigger
from prefect.settings import PREFECT_API_URL
from prefect.types.entrypoint import EntrypointType

from congruence.flows.cli.console import say
from congruence.flows.receiver import EVENT
from congruence.flows.scheduling.deployed_flows import watch_registry
from congruence.flows.scheduling.poll import watched_patterns
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings

QUARTER_HOURLY = "*/15 * * * *"
AT_ONCE = 2


def served_deployments(file: Path, name: str, cron: str, pool: str | None = None) -> list[RunnerDeployment]:
    """The deployments ``name``, on a schedule, and ``name-new-version``, on the event that the receiver emits.

    Args:
        file: the evaluation file.
        name: tells the deployments of several files on one Prefect server.
        cron: when to look, in UTC.
        pool: the work pool whose workers carry out the runs; by default the process that serves them.

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
            description=f"Evaluate the registry versions that {file.name} watches and that lack an evaluation",
            **shared,
        )
    except ValueError as error:
        raise SettingsError(f'--cron: {cron!r} is no cron line; write for example "{QUARTER_HOURLY}"') from error
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
    """Register the deployments and carry out their runs until stopped by SIGTERM or Ctrl-C.

    Args:
        settings: the content of ``file``, for the checks before anything is registered.
        file: the evaluation file; each run reads it again.
        cron: when to look, in UTC.
        name: of the deployments; by default the file's.

    Raises:
        SettingsError: no Prefect server, no models to watch, or no cron line.
    """
    watched_patterns(settings)
    if not PREFECT_API_URL.value():
        raise SettingsError(
            "PREFECT_API_URL: not set; start a Prefect server (prefect server start) and point at it "
            "(export PREFECT_API_URL=http://127.0.0.1:4200/api), or use `congruence watch`, which needs none"
        )
    _require_storage()
    deployments: Any = served_deployments(file, name or file.stem, cron)
    say(f"serving {file} (cron {cron!r} and new versions; stop with Ctrl-C)")
    # No limit on the Prefect server, where a run that died would hold its place for minutes. Claims in MLflow see to it
    # that a version is evaluated once: a second look beside a long evaluation finds nothing to do and ends. Not paused
    # at the end: another process may serve the same, and what comes meanwhile is carried out at the return.
    prefect.serve(*deployments, limit=AT_ONCE, print_starting_message=False, pause_on_shutdown=False)


def _require_storage() -> None:
    """Prefect keeps what its runs need under one name in the temporary folder, by whichever process is first.

    Raises:
        SettingsError: that was another user.
    """
    storage = Path(tempfile.gettempdir()) / "runner_storage"
    if storage.exists() and not os.access(storage, os.W_OK | os.X_OK):
        raise SettingsError(
            f"TMPDIR: {storage}, where Prefect keeps what its runs need, is {storage.owner()}'s; give it a temporary "
            "folder of your own (export TMPDIR=$(mktemp -d))"
        )
