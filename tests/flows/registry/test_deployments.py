"""What infra/ holds is what the program accepts: example files load, deployments reach a real Prefect server."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.concurrency.sync import concurrency
from prefect.settings import PREFECT_API_URL

from congruence.flows.deployed import UnevaluatedError, _settings, evaluate_version, watch_registry
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.folders import HOME_VARIABLE
from congruence.tasks.settings.evaluation import EvaluationSettings, load_settings

INFRA = Path(__file__).parents[3] / "infra"


@pytest.mark.parametrize("file", sorted((INFRA / "examples").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_example_files_are_accepted(file: Path) -> None:
    assert load_settings(file).splits


async def create_pool_of_pods() -> None:
    template = json.loads((INFRA / "kubernetes" / "work-pool.json").read_text())
    async with get_client() as client:
        await client.create_work_pool(WorkPoolCreate(name="pods", type="kubernetes", base_job_template=template))


async def read(name: str) -> tuple[DeploymentResponse, list[Any]]:
    async with get_client() as client:
        deployment = await client.read_deployment_by_name(name)
        automations = await client.read_automations()
    return deployment, automations


@pytest.mark.usefixtures("prefect_server")
def test_the_deployments_reach_a_server_with_schedule_schema_and_trigger() -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt"]
    environment = os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())}

    def prefect(*arguments: str) -> None:
        done = subprocess.run(
            [*command, *arguments], env=environment, cwd=INFRA, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr

    prefect("work-pool", "create", "congruence", "--type", "process")
    prefect("deploy", "--all", "--prefect-file", "prefect.yaml")
    asyncio.run(create_pool_of_pods())
    watch, _ = asyncio.run(read("watch-registry/watch"))
    assert watch.entrypoint == "congruence.flows.deployed.watch_registry"
    assert [str(item.schedule.cron) for item in watch.schedules] == ["*/15 * * * *"]
    assert watch.global_concurrency_limit is not None
    assert watch.global_concurrency_limit.limit == 1
    assert "EvaluationSettings" in str(watch.parameter_openapi_schema)
    assert watch.parameters == {"file": "/etc/congruence/evaluation.yaml"}
    assert str(INFRA) not in json.dumps(watch.pull_steps), "runs are carried out where this folder is not"
    version, automations = asyncio.run(read("watch-registry/new-version"))
    (automation,) = (item for item in automations if str(version.id) in str(item.actions))
    assert "mlflow.model_version.created" in automation.trigger.expect
    assert automation.actions[0].parameters["model"] == "{{ event.payload.model }}"


@pytest.fixture
def inline(registry: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EvaluationSettings]:
    """Settings that come with a run: the worker's home folder is named by its environment."""
    monkeypatch.setenv(HOME_VARIABLE, str(registry.folder))
    return lambda **changes: registry.settings(**{"home": None, **changes})


@pytest.mark.usefixtures("prefect_server")
def test_a_run_that_cannot_evaluate_a_version_fails(registry: Any, inline: Callable[..., EvaluationSettings]) -> None:
    registry.register("good")
    evaluate_version(model="good/1", settings=inline())
    assert "cce" in MlflowClient().get_model_version("good", "1").tags
    registry.register("bad", fails=True)
    with pytest.raises(UnevaluatedError, match="bad/1 on circle"):
        watch_registry(file=registry.file(models=["good", "bad"]))


@pytest.mark.usefixtures("prefect_server")
def test_a_gate_that_did_not_pass_is_a_verdict_and_no_failure_to_try_again(
    registry: Any, inline: Callable[..., EvaluationSettings]
) -> None:
    registry.register("judged")
    settings = inline(gate={"maximum": {"cce_mean": 0.0001}})
    for _ in range(2):  # evaluated, and found
        state = evaluate_version(model="judged/1", settings=settings, return_state=True)
        assert (state.type, state.name) == (StateType.COMPLETED, "GateFailed")
        assert "judged/1: gate failed: cce_mean is" in str(state.message)
    passed = inline(gate={"maximum": {"cce_mean": 9.0}})
    assert evaluate_version(model="judged/1", settings=passed, return_state=True).name == "Completed"


@pytest.mark.usefixtures("prefect_server")
def test_runs_on_one_model_wait_for_each_other(registry: Any, inline: Callable[..., EvaluationSettings]) -> None:
    registry.register("busy")
    settings = inline(models=["busy"])
    evaluate_version(settings=settings)
    ended: list[str] = []

    def run() -> None:
        watch_registry(settings=settings)
        ended.append("busy")

    with concurrency("congruence busy", occupy=1):
        other = threading.Thread(target=contextvars.copy_context().run, args=(run,))
        other.start()
        other.join(timeout=8.0)
        assert ended == []
    other.join(timeout=60.0)
    assert ended == ["busy"]


@pytest.mark.usefixtures("prefect_server")
def test_a_scheduled_run_without_settings_says_what_to_give() -> None:
    with pytest.raises(SettingsError, match="give either file"):
        watch_registry()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"encoder": {"kind": "custom", "path": "os:system"}}, "encoder.kind: custom"),
        ({"cluster": {"kind": "address", "address": "tcp://elsewhere:8786"}}, "cluster.kind: address"),
        ({"cluster": {"kind": "spec", "file": "/tmp/cluster.yaml"}}, "cluster.kind: spec"),
        ({"tracking": {"uri": "http://elsewhere"}}, r"tracking\.uri"),
        ({"home": "/tmp/elsewhere"}, "home"),
    ],
)
def test_inline_settings_choose_nothing_that_runs_on_the_worker(
    registry: Any, inline: Callable[..., EvaluationSettings], changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingsError, match=rf"settings: {named} cannot be given with a run.*file"):
        _settings(None, inline(models=["good"], **changes))
    assert _settings(registry.file(models=["good"], **changes), None).models == ["good"]
