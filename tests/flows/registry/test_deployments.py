"""What infra/ and serve register is what a Prefect server takes: schedules, triggers, limits; runs and verdicts."""

import contextvars
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.concurrency.sync import concurrency
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.testing.cli import invoke_and_assert

from congruence.flows.cli import session
from congruence.flows.deployed import (
    _settings,
    evaluate_version,
    serve,
    served_deployments,
    watch_registry,
)
from congruence.flows.evaluate import STAGES, UnevaluatedError, evaluate, is_alone
from congruence.tasks.evaluate.plan import Plan
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.files import HOME_VARIABLE
from congruence.tasks.settings.evaluation import EvaluationSettings, load_settings

INFRA = Path(__file__).parents[3] / "infra"


@pytest.mark.parametrize("file", sorted((INFRA / "examples").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_example_files_are_accepted(file: Path) -> None:
    assert load_settings(file).splits


def deployed(name: str) -> tuple[DeploymentResponse, list[Any]]:
    """A deployment as the server has it, and the automations that run it."""
    with get_client(sync_client=True) as client:
        found = client.read_deployment_by_name(f"watch-registry/{name}")
        return found, [item for item in client.read_automations() if str(found.id) in str(item.actions)]


def test_the_deployments_reach_a_server_with_schedule_schema_and_trigger(
    prefect_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = json.loads((INFRA / "kubernetes" / "work-pool.json").read_text())
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="congruence", type="process"))
        client.create_work_pool(WorkPoolCreate(name="pods", type="kubernetes", base_job_template=template))
    monkeypatch.chdir(INFRA)
    invoke_and_assert(["--no-prompt", "deploy", "--all", "--prefect-file", "prefect.yaml"], expected_code=0)
    watch, _ = deployed("watch")
    assert watch.entrypoint == "congruence.flows.deployed.watch_registry"
    assert [str(item.schedule.cron) for item in watch.schedules] == ["*/15 * * * *"]
    assert watch.global_concurrency_limit is not None
    assert watch.global_concurrency_limit.limit == 1
    assert "EvaluationSettings" in str(watch.parameter_openapi_schema)
    assert watch.parameters == {"file": "/etc/congruence/evaluation.yaml"}
    assert str(INFRA) not in json.dumps(watch.pull_steps), "runs are carried out where this folder is not"
    _, (automation,) = deployed("new-version")
    assert "mlflow.model_version.created" in automation.trigger.expect
    assert automation.actions[0].parameters["model"] == "{{ event.payload.model }}"


@pytest.fixture
def inline(registry: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EvaluationSettings]:
    """Settings that come with a run: the worker's home folder is named by its environment."""
    monkeypatch.setenv(HOME_VARIABLE, str(registry.folder))
    return lambda **changes: registry.settings(**{"home": None, "metrics": ["cce"], **changes})


def test_a_run_that_cannot_evaluate_a_version_fails(registry: Any) -> None:
    registry.register("bad", fails=True)
    with pytest.raises(UnevaluatedError, match="bad/1 on circle"):
        watch_registry(file=registry.file(models=["bad"], metrics=["cce"]))
    with pytest.raises(SettingsError, match="give either file"):
        watch_registry()


def test_a_run_shows_its_versions_with_their_verdicts(registry: Any, inline: Callable[..., EvaluationSettings]) -> None:
    registry.register("shown")
    registry.register("silent", fails=True)
    settings = inline(models=["shown", "silent"], metrics=["cce"])
    before = is_alone.set(False)
    try:
        evaluate(Plan(settings))
    finally:
        is_alone.reset(before)
    with get_client(sync_client=True) as client:
        named = FlowRunFilter(name={"any_": ["evaluate shown, silent on circle"]})
        (run,) = client.read_flow_runs(flow_run_filter=named)
        assert run.state_name == "Failed"
        assert "UnevaluatedError: silent/1 on circle: Normal.scale" in str(run.state.message)
        stages = client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [run.id]}))
        states = {stage.name.split()[0]: stage.state_name for stage in stages}
        assert states["check"] == "Failed", "of the version that ended there"
        assert states["predict"] == states["score"] == "Completed", "of the other one"
        artifacts = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id={"any_": [run.id]}))
        (found,) = (each for each in artifacts if each.key == "congruence-run")  # beside how the run failed
    shown, silent = json.loads(str(found.data))
    assert (shown["version"], shown["status"]) == ("shown/1", "evaluated")
    assert MlflowClient().get_run(shown["run in MLflow"]).data.tags["verdict"] == shown["verdict"]
    assert (silent["status"], silent["verdict"], silent["run in MLflow"]) == ("failed", "", "")
    assert silent["error"]


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
        other.join(timeout=4.0)
        assert ended == []
    other.join(timeout=60.0)
    assert ended == ["busy"]


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


def test_the_deployments_are_registered_once_with_schedule_and_trigger(registry: Any) -> None:
    file = registry.file(models=["angle"])
    for _ in range(2):
        for deployment in served_deployments(file, "circle", "*/5 * * * *"):
            deployment.apply()
    (scheduled, _), (announced, (automation,)) = deployed("circle"), deployed("circle-new-version")
    assert [item.schedule.cron for item in scheduled.schedules] == ["*/5 * * * *"]
    assert announced.schedules == []
    assert scheduled.global_concurrency_limit.limit == 1
    assert scheduled.concurrency_options.collision_strategy == "CANCEL_NEW"
    for deployment in (scheduled, announced):
        assert deployment.parameters == {"file": str(file)}
        assert deployment.entrypoint == "congruence.flows.deployed.watch_registry"
    assert automation.trigger.expect == {"mlflow.model_version.created"}
    assert automation.actions[0].parameters == {"file": str(file), "model": "{{ event.payload.model }}"}


def test_what_cannot_be_served_is_said_at_once(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = registry.file()
    with pytest.raises(SettingsError, match=r"watch\.models: none given"):
        serve(registry.settings(), file)
    settings = registry.settings(models=["angle"])
    with temporary_settings(restore_defaults={PREFECT_API_URL}), pytest.raises(SettingsError, match="prefect server"):
        serve(settings, file)
    monkeypatch.setattr(session, "REFUSED_SECONDS", 0.1)
    away = temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"})
    with away, pytest.raises(SettingsError, match="no Prefect server listens at"):
        serve(settings, file)
    with pytest.raises(SettingsError, match="invalid cron expression 'hourly'"):
        served_deployments(file, "circle", "hourly")


def test_an_announced_version_is_evaluated_if_it_is_watched(registry: Any) -> None:
    registry.register("announced")
    registry.register("announced")
    registry.register("other")
    file = registry.file(models=["announced"], metrics=["cce"])
    for model in ("models:/announced/2", "models:/other/1"):
        watch_registry(file=file, model=model)
    client = MlflowClient()
    versions = [("announced", "1"), ("announced", "2"), ("other", "1")]
    assert ["cce" in client.get_model_version(*version).tags for version in versions] == [False, True, False]


TAG = "congruence-predict"


@pytest.fixture
def one_at_a_time(prefect_server: None) -> Iterator[None]:
    with get_client(sync_client=True) as client:
        client.create_concurrency_limit(tag=TAG, concurrency_limit=1)
        before = is_alone.set(False)
        yield
        is_alone.reset(before)
        client.delete_concurrency_limit_by_tag(tag=TAG)


@pytest.mark.usefixtures("one_at_a_time")
def test_a_limit_on_the_tag_of_a_stage_is_kept() -> None:
    spans: list[tuple[float, float]] = []
    # The slot is taken before the second asks: two that ask at once are Prefect's own affair, and its SQLite's.
    held = threading.Event()

    def check(waits: bool) -> None:
        if waits:
            assert held.wait(timeout=60)

    def predict() -> None:
        held.set()
        began = time.monotonic()
        time.sleep(1.0)
        spans.append((began, time.monotonic()))

    @flow(name="of a test")
    def an_evaluation(waits: bool) -> None:
        STAGES.stage("check", "circle", lambda: check(waits))
        STAGES.stage("predict", "circle", predict)

    both = [
        threading.Thread(target=contextvars.copy_context().run, args=(an_evaluation, waits)) for waits in (False, True)
    ]
    for each in both:
        each.start()
    for each in both:
        each.join(timeout=100)
    first, second = sorted(spans)
    assert second[0] >= first[1]
