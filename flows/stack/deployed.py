"""Deployments on the work pool of a stack."""

from __future__ import annotations

import os
from pathlib import Path

from congruence.flows.stack.place import POOL, read_environment, stack_folder
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.stack.account import is_up
from congruence.tasks.stack.errors import StackError


def use_stack(home: Path) -> None:
    """Point this process at the servers of the stack that is up in a home folder; before Prefect is loaded.

    Raises:
        StackError: none is up there.
    """
    if not is_up(stack_folder(home)):
        raise StackError(f"no stack is up in {home}; start one with `congruence stack up --detach`, or give its --home")
    os.environ |= read_environment(home)


def deploy_on_stack(settings: EvaluationSettings, file: Path, *, cron: str, name: str | None) -> list[str]:
    """Register the deployments of an evaluation file on the stack's work pool; a line about each.

    Raises:
        SettingsError: no models to watch, or no cron line.
    """
    from congruence.flows.scheduling.serve import require_watched, served_deployments

    require_watched(settings)
    lines = []
    for deployment in served_deployments(file, name or file.stem, cron, pool=POOL):
        deployment.apply()
        lines.append(f"deployed {deployment.full_name}: {deployment.description}")
    return lines
