"""`congruence serve` registers a schedule and a trigger once, and what cannot be served is said."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from congruence.flows.deployed import serve, served_deployments, watch_registry
from congruence.tasks.runtime.errors import SettingsError


async def _on_the_server() -> tuple[dict[str, Any], list[Any]]:
    async with get_client() as client:
        deployments = {item.name: item for item in await client.read_deployments()}
        return deployments, await client.read_automations()


@pytest.mark.usefixtures("prefect_server")
def test_the_deployments_are_registered_once_with_schedule_and_trigger(registry: Any) -> None:
    file = registry.file(models=["angle"])
    for _ in range(2):
        for deployment in served_deployments(file, "circle", "*/5 * * * *"):
            deployment.apply()
    deployments, automations = asyncio.run(_on_the_server())
    scheduled, announced = deployments["circle"], deployments["circle-new-version"]
    assert [item.schedule.cron for item in scheduled.schedules] == ["*/5 * * * *"]
    assert announced.schedules == []
    assert scheduled.global_concurrency_limit.limit == 1
    assert scheduled.concurrency_options.collision_strategy == "CANCEL_NEW"
    for deployment in (scheduled, announced):
        assert deployment.parameters == {"file": str(file)}
        assert deployment.entrypoint == "congruence.flows.deployed.watch_registry"
    (automation,) = (item for item in automations if str(announced.id) in str(item.actions))
    assert automation.trigger.expect == {"mlflow.model_version.created"}
    assert automation.actions[0].parameters == {"file": str(file), "model": "{{ event.payload.model }}"}


def test_what_cannot_be_served_is_said_at_once(registry: Any) -> None:
    file = registry.file()
    with pytest.raises(SettingsError, match=r"watch\.models: none given"):
        serve(registry.settings(), file)
    settings = registry.settings(models=["angle"])
    with temporary_settings(restore_defaults={PREFECT_API_URL}), pytest.raises(SettingsError, match="prefect server"):
        serve(settings, file)
    with pytest.raises(SettingsError, match="invalid cron expression 'hourly'"):
        served_deployments(file, "circle", "hourly")


@pytest.mark.usefixtures("prefect_server")
def test_the_storage_of_another_user_is_said(registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runner_storage").touch(0o600)  # what not even root can enter
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SettingsError, match=r"TMPDIR: .*runner_storage.* is .*'s; .*export TMPDIR="):
        serve(registry.settings(models=["angle"]), registry.file(models=["angle"]))


@pytest.mark.usefixtures("prefect_server")
def test_an_announced_version_is_evaluated_if_it_is_watched(registry: Any) -> None:
    registry.register("announced")
    registry.register("announced")
    registry.register("other")
    file = registry.file(models=["announced"])
    for model in ("models:/announced/2", "models:/other/1"):
        watch_registry(file=file, model=model)
    client = MlflowClient()
    versions = [("announced", "1"), ("announced", "2"), ("other", "1")]
    assert ["cce" in client.get_model_version(*version).tags for version in versions] == [False, True, False]
