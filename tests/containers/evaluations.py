"""Versions evaluated in every way that a deployment has: by hand, by the work pool, on a schedule, by webhook."""

import time

from client import Client, eventually
from deployment import Deployment

MODEL = SPLIT = "circle"
FILE = "/etc/congruence/evaluation.yaml"
LONGEST = 600.0


def doctor(deployment: Deployment) -> str:
    """The doctor in the worker's container, all of whose lines are well."""
    found = deployment.inside("congruence", "doctor", FILE, service="worker")
    assert "error" not in found.lower(), found
    return found


def by_hand(deployment: Deployment, client: Client) -> dict[str, float]:
    """`congruence evaluate` of a version in the worker's container."""
    label = client.register(MODEL, seconds=0.2)
    deployment.inside("congruence", "evaluate", FILE, service="worker")
    return dict(client.require_once(SPLIT, label))


def by_deployment(deployment: Deployment, client: Client) -> dict[str, float]:
    """A run of the deployment `by-hand`."""
    label = client.register(MODEL, seconds=0.2)
    client.start_run("by-hand", "evaluate-version")
    return _numbers(client, label)


def on_schedule(deployment: Deployment, client: Client) -> dict[str, float]:
    """The deployment `watch` with a schedule of every minute, and the schedule of its file again."""
    label = client.register(MODEL, seconds=0.2)
    _schedule(deployment, "* * * * *")
    try:
        return _numbers(client, label)
    finally:
        _schedule(deployment, "*/15 * * * *")


def _schedule(deployment: Deployment, cron: str) -> None:
    words = ("schedule", "create", "watch-registry/watch", "--cron", cron, "--replace", "--accept-yes")
    deployment.inside("prefect", "--no-prompt", "deployment", *words)


def set_webhook(deployment: Deployment, client: Client) -> None:
    """MLflow's webhook, by the service of the profile `setup`."""
    deployment.compose("--profile", "setup", "run", "--rm", "--no-deps", "webhook")
    time.sleep(65)  # each process of MLflow's server reads its list of webhooks once a minute


def by_webhook(deployment: Deployment, client: Client) -> dict[str, float]:
    """A version that is registered, and nothing else."""
    label = client.register(MODEL, seconds=0.2)
    eventually(lambda: client.runs("new-version"), 120, "the run of the event")
    return _numbers(client, label)


def _numbers(client: Client, label: str) -> dict[str, float]:
    eventually(lambda: client.done(SPLIT, label), LONGEST, f"the evaluation of {label}")
    return dict(client.require_once(SPLIT, label))
