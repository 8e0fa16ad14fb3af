"""What infra/ holds is what containers, Kubernetes and Dask accept, and its parts fit each other."""

import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import jsonschema
import pytest
import typer
import yaml
from loopback import HttpServer, Process, free_port

from congruence.flows.operations import doctor
from congruence.tasks.dask.clusters import ClusterSpec, dask_client, read_cluster_spec
from congruence.tasks.settings.evaluation import load_settings
from congruence.tasks.settings.parts import TlsSettings

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
KUBERNETES = INFRA / "kubernetes"
MANIFESTS = sorted(KUBERNETES.glob("[!dk]*.yaml"))  # neither the operator's values nor the kustomization
POD_CLUSTERS = sorted(KUBERNETES.glob("settings/cluster*.yaml"))
SECRETS = yaml.safe_load((KUBERNETES / "secrets" / "kustomization.yaml").read_text())["secretGenerator"]
VERSION = "1.37"
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|_KEY|AUTH_STRING|DATABASE_CONNECTION|STORE_URI|CREDENTIALS")


def compose(file: str = "compose.yaml") -> dict[str, Any]:
    return dict(yaml.safe_load((INFRA / file).read_text()))


SERVICES: dict[str, dict[str, Any]] = compose()["services"]
LASTING = {name: service for name, service in SERVICES.items() if service.get("restart") != "no"}


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("infra") / "secrets"
    runpy.run_path(str(INFRA / "make_secrets.py"))["make"](folder)
    return folder


@pytest.mark.parametrize("file", ["compose.yaml", "compose.gpu.yaml"])
def test_compose_files_keep_to_the_specification(file: str) -> None:
    schema = json.loads((ROOT / "tests" / "schemas" / "compose_spec.json").read_text())
    build = schema["definitions"]["service"]["properties"]["build"]["oneOf"][1]["properties"]
    build["secrets"] = {"type": "array", "items": {"type": "string"}}  # came after docker-compose 1.29.2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its $schema is a name that jsonschema does not know
        found = [
            f"{list(error.path)}: {error.message}"
            for error in jsonschema.Draft201909Validator(schema).iter_errors(compose(file))
        ]
    assert found == []
    if shutil.which("docker") and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        files = [item for name in dict.fromkeys(["compose.yaml", file]) for item in ("-f", str(INFRA / name))]
        done = subprocess.run(["docker", "compose", *files, "config", "--quiet"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_every_service_says_that_it_is_well_and_waits_for_those_that_are() -> None:
    assert set(LASTING) >= {"postgres", "s3", "mlflow", "prefect", "worker", "scheduler", "dask-worker", "receiver"}
    for name, service in LASTING.items():
        assert service["healthcheck"]["test"][0] == "CMD", name
    for name, service in SERVICES.items():
        for other, wanted in service.get("depends_on", {}).items():
            ends = other not in LASTING
            assert wanted == {"condition": "service_completed_successfully" if ends else "service_healthy"}, (
                name,
                other,
            )
    assert SERVICES["dask-worker"]["deploy"]["replicas"] == 2


def test_secrets_are_files_that_are_made_and_given_to_those_who_read_them(secrets: Path) -> None:
    declared = compose()["secrets"]
    assert declared.pop("pip") == {"file": "${PIP_CONFIG_FILE:-/dev/null}"}
    assert {name: item["file"] for name, item in declared.items()} == {
        file.name: f"./secrets/{file.name}" for file in secrets.iterdir()
    }
    for name, service in SERVICES.items():
        given = set(service.get("secrets", []))
        read = set(re.findall(r"/run/secrets/(\w+)", json.dumps(service)))
        assert read <= given, (name, "reads what it is not given", read - given)
        for variable, value in service.get("environment", {}).items():
            if SECRET.search(variable):
                assert variable.endswith("_FILE") or str(value).startswith("/run/secrets/"), (name, variable)
        words = json.dumps([service.get("command"), service.get("environment")])
        assert not re.search(r"://[^/\s\"]+:[^/\s\"]+@|\$\{", words), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    assert [name for name, service in SERVICES.items() if "postgres_password" in service.get("secrets", [])] == [
        "postgres"
    ]
    assert (secrets.stat().st_mode & 0o777, secrets.joinpath("dask_key").stat().st_mode & 0o777) == (0o700, 0o444)


def test_secrets_that_are_there_are_kept(secrets: Path) -> None:
    before = {file.name: file.read_bytes() for file in secrets.iterdir()}
    runpy.run_path(str(INFRA / "make_secrets.py"))["make"](secrets)
    assert {file.name: file.read_bytes() for file in secrets.iterdir()} == before


def test_the_entrypoint_gives_a_program_what_a_file_holds(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("open sesame")

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        show = 'echo "$PASS_WORD,${PASS_WORD_FROM_FILE-unset},$SSL_CERT_FILE"'
        command = ["sh", str(INFRA / "entrypoint.sh"), "sh", "-c", show]
        base = {"PATH": os.environ["PATH"], "SSL_CERT_FILE": "/a"}
        return subprocess.run(command, env=base | environment, capture_output=True, text=True)

    assert run(PASS_WORD_FROM_FILE=str(tmp_path / "word")).stdout == "open sesame,unset,/a\n"
    refused = run(PASS_WORD_FROM_FILE=str(tmp_path / "none"))
    assert (refused.returncode, "PASS_WORD_FROM_FILE" in refused.stderr) == (1, True)


def test_a_changed_line_of_source_installs_no_package_again() -> None:
    lines = (INFRA / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line for line in lines if line and not line.startswith("#")]
    assert [step for step in steps if step.startswith("FROM")] == ["FROM ${PYTHON_IMAGE}"]
    source = steps.index("COPY kernels ./kernels")
    (installing,) = (index for index, step in enumerate(steps) if "install.py --packages" in step)
    assert installing < source
    (building,) = (step for step in steps[source:] if step.startswith("RUN"))
    assert "--offline" in building
    assert "--no-deps" in building
    users = [step for step in steps if step.startswith("USER")]
    assert users == ["USER 1000:1000"]
    assert not any(step.startswith("RUN") for step in steps[steps.index(users[0]) :])
    assert any("dask.yaml /etc/dask" in step for step in steps)
    given = re.findall("^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copies = (re.sub(r"--\S+", "", step).split() for step in steps if step.startswith("COPY"))
    for source in {source for _, *sources, _ in copies for source in sources}:
        assert (ROOT / source).exists(), source
        assert any(source == item or source.startswith(f"{item}/") for item in given), f".dockerignore hides {source}"
    assert (ROOT / ".containerignore").read_text() == (ROOT / ".dockerignore").read_text()


def test_the_image_s_packages_are_what_the_project_needs_without_its_source() -> None:
    requirements = runpy.run_path(str(INFRA / "install.py"))["requirements"]
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (words,) = re.findall(r"--packages\s+\\\n\s+([\w ]+) \$device", (INFRA / "Containerfile").read_text())
    found = set(requirements(described, [*words.split(), "gpu"]))
    names = {re.split("[<>=!~;]", each)[0].strip() for each in found}
    assert {"torch", "prefect", "typer", "matplotlib", "uv", "dask-kubernetes", "cupy-cuda13x[ctk]"} <= names
    assert set(described["build-system"]["requires"]) <= found
    assert not [each for each in found if each.startswith("congruence")]


@pytest.fixture
def dask_of_compose(secrets: Path, tmp_path: Path) -> Iterator[int]:
    """The scheduler and one worker as compose.yaml starts them, on loopback, with the secrets that were made."""
    ports = {"8786": str(free_port()), "8787": str(free_port()), "8788": str(free_port())}
    here = {
        "0.0.0.0": "127.0.0.1",
        "//scheduler": "//127.0.0.1",
        "address=:": "address=127.0.0.1:",
        "=/tmp": f"={tmp_path}",
    }
    processes: list[Process] = []
    try:
        for name in ("scheduler", "dask-worker"):
            words = re.sub("878[678]", lambda port: ports[port[0]], " ".join(SERVICES[name]["command"]))
            for there, own in (here | {"/run/secrets": str(secrets)}).items():
                words = words.replace(there, own)
            command = [sys.executable, "-m", *words.split()]
            server = HttpServer(
                command, tmp_path / f"{name}.log", {"DASK_CONFIG": str(ROOT / "tasks" / "dask" / "dask.yaml")}
            )
            check = SERVICES[name]["healthcheck"]["test"][-1]
            server.url = re.sub("878[78]", lambda port: ports[port[0]], check)
            processes.append(server)
            server.start()
        yield int(ports["8786"])
    finally:
        for process in reversed(processes):
            process.kill()


def test_the_scheduler_and_worker_of_compose_serve_the_example(dask_of_compose: int, secrets: Path) -> None:
    settings = load_settings(INFRA / "examples" / "compose.yaml")
    cluster = settings.cluster
    assert cluster.tls is not None
    tls = {key: secrets / getattr(cluster.tls, key).name for key in TlsSettings.model_fields}
    here = cluster.model_copy(update={"address": f"tls://127.0.0.1:{dask_of_compose}", "tls": TlsSettings(**tls)})
    with dask_client(here) as client:
        assert client.submit(sum, [1, 2]).result(30) == 3
        told = client.run_on_scheduler(lambda: dask.config.get("distributed.scheduler.allowed-failures"))
        assert told == 10, "Dask's settings are the scheduler's, not the client's alone"
    (found,) = doctor.dask_cluster(settings.model_copy(update={"cluster": here}))
    assert found.level == "ok", found


def commands() -> Iterator[tuple[str, list[str]]]:
    """What the services of compose.yaml and the pods run, by whose it is."""
    for name, service in SERVICES.items():
        yield name, [str(word) for word in service.get("command", [])]
    for name, service in compose("compose.gpu.yaml")["services"].items():
        yield f"{name} (gpu)", [str(word) for word in service["command"]]
    for name, pod in pods():
        for container in pod["containers"]:
            yield name, [str(word) for word in container.get("args", [])]


def test_the_commands_have_the_options_that_they_are_given() -> None:
    from distributed.cli.dask_scheduler import main as scheduler
    from distributed.cli.dask_worker import main as worker
    from mlflow.cli import cli as mlflow_cli

    from congruence.flows.cli.app import app

    parts = {
        "dask scheduler": scheduler,
        "dask worker": worker,
        "mlflow server": mlflow_cli.commands["server"],
        **{f"congruence {name}": each for name, each in typer.main.get_command(app).commands.items()},
    }
    seen = set()
    for name, words in commands():
        part = parts.get(" ".join(words[:2]))
        if part is None:
            assert words[:1] not in (["mlflow"], ["congruence"]), (name, words)
            continue
        seen.add(words[0])
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= {option for parameter in part.params for option in parameter.opts}, (name, words)
    assert seen == {"dask", "mlflow", "congruence"}


def documents(*files: Path) -> list[dict[str, Any]]:
    return [item for file in files for item in yaml.safe_load_all(file.read_text())]


def require_valid(document: dict[str, Any]) -> None:
    pytest.importorskip("kubernetes_validate").validate(document, VERSION, strict=True)


@pytest.mark.parametrize("file", [*MANIFESTS, "job"], ids=lambda file: Path(file).stem)
def test_manifests_are_what_the_api_takes(file: Path | str) -> None:
    for document in documents(file) if isinstance(file, Path) else [work_pool_job()]:
        require_valid(document)


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod's specification, by whose it is."""
    for item in documents(*MANIFESTS):
        if item["kind"] == "Deployment":
            yield item["metadata"]["name"], item["spec"]["template"]["spec"]
    for file in POD_CLUSTERS:
        resource = read_cluster_spec(file).arguments["custom_cluster_spec"]
        for part in ("scheduler", "worker"):
            yield f"{file.stem} {part}", resource["spec"][part]["spec"]
    yield "job", work_pool_job()["spec"]["template"]["spec"]


def work_pool_job() -> dict[str, Any]:
    """The manifest of a run as the Prefect worker fills it in."""
    template = json.loads((KUBERNETES / "work-pool.json").read_text())
    values = {key: item.get("default") for key, item in template["variables"]["properties"].items()}
    values |= {"name": "run", "command": ["prefect"], "labels": {}, "env": [{"name": "A", "value": "b"}]}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [filled(item) for item in value]
        whole = re.fullmatch(r"\{\{ (\w+) \}\}", value) if isinstance(value, str) else None
        if whole:
            return values[whole[1]]
        return re.sub(r"\{\{ (\w+) \}\}", lambda name: str(values[name[1]]), value) if isinstance(value, str) else value

    job: dict[str, Any] = filled(template["job_configuration"]["job_manifest"])
    pod = job["spec"]["template"]["spec"]
    # Prefect's worker refuses a Job without them; the API knows no such fields of a pod and drops them.
    assert (pod.pop("parallelism"), pod.pop("completions")) == (1, 1)
    return job


@pytest.mark.parametrize(("name", "pod"), list(pods()))
def test_pods_are_valid_bounded_and_nobody_s_root(name: str, pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        resources = container["resources"]
        assert {"cpu", "memory"} <= set(resources["requests"])
        assert "memory" in resources["limits"]
    kinds = {item["kind"] + " " + item["metadata"]["name"] for item in documents(*MANIFESTS)}
    (generated,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["configMapGenerator"]
    made = {item["name"] for item in SECRETS}
    for volume in pod.get("volumes", []):
        if "persistentVolumeClaim" in volume:
            assert f"PersistentVolumeClaim {volume['persistentVolumeClaim']['claimName']}" in kinds
        if "configMap" in volume:
            assert volume["configMap"]["name"] == generated["name"]
        if "secret" in volume:
            assert volume["secret"]["secretName"] in made
    if "serviceAccountName" in pod:
        assert f"ServiceAccount {pod['serviceAccountName']}" in kinds
    require_valid({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod})


def test_pods_that_hold_the_bucket_s_keys_know_where_and_the_run_knows_the_registry() -> None:
    for name, pod in pods():
        for container in pod["containers"]:
            given = {item["name"]: item["value"] for item in container.get("env", [])}
            mounted = {item["name"]: item["mountPath"] for item in container.get("volumeMounts", [])}
            if "s3" in mounted:
                assert given["AWS_SHARED_CREDENTIALS_FILE"] == f"{mounted['s3']}/credentials", name
            if name == "job" or (name.endswith("worker") and "cluster" in name):
                assert given["MLFLOW_TRACKING_URI"] == "http://mlflow:5000", name


def test_runs_take_prefect_s_login_from_a_secret_that_their_pods_have() -> None:
    (pod,) = (pod for name, pod in pods() if name == "prefect-worker")
    given = {item["name"]: item["value"] for item in pod["containers"][0]["env"]}
    words = "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET_"
    name, key = given[f"{words}NAME"], given[f"{words}KEY"]
    (made,) = (item for item in SECRETS if item["name"] == name)
    assert key in {word.partition("=")[0] for word in made["files"]}
    (container,) = work_pool_job()["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": name}}]


@pytest.mark.parametrize("file", POD_CLUSTERS, ids=lambda file: file.stem)
def test_clusters_of_pods_are_what_the_operator_takes(file: Path) -> None:
    operator = pytest.importorskip("dask_kubernetes.operator")
    spec = read_cluster_spec(file)
    inspect.signature(operator.KubeCluster.__init__).bind(None, **spec.arguments)
    resource = spec.named("congruence-0123abcd")["custom_cluster_spec"]
    folder = Path(inspect.getfile(operator)).parent
    (definition,) = folder.rglob("crds/daskcluster.yaml")
    (version,) = yaml.safe_load(definition.read_text())["spec"]["versions"]
    jsonschema.validate(resource, version["schema"]["openAPIV3Schema"])
    assert resource["metadata"]["name"] == "congruence-0123abcd"
    assert resource["spec"]["scheduler"]["service"]["selector"]["dask.org/cluster-name"] == "congruence-0123abcd"


def test_workers_with_cards_ask_for_cards_where_cards_are() -> None:
    resource = read_cluster_spec(KUBERNETES / "settings" / "cluster-gpu.yaml").arguments["custom_cluster_spec"]
    pod = resource["spec"]["worker"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["args"][:3] == ["dask", "cuda", "worker"]
    assert (pod["nodeSelector"], pod["tolerations"][0]["key"]) == ({"nvidia.com/gpu.present": "true"}, "nvidia.com/gpu")


def test_one_scheduler_starts_runs() -> None:
    assert not [item for item in documents(*MANIFESTS) if item["kind"] == "CronJob"]
    evaluation = load_settings(KUBERNETES / "settings" / "evaluation.yaml")
    assert evaluation.cluster.file == KUBERNETES / "settings" / "cluster.yaml"
    (generated,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["configMapGenerator"]
    assert {"settings/evaluation.yaml", "settings/cluster.yaml"} <= set(generated["files"])


def kustomized(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_every_file_of_the_kustomization_is_there_and_joins() -> None:
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == [file.name for file in MANIFESTS]
    if shutil.which("kubectl"):
        made = kustomized(KUBERNETES)
        assert {item["metadata"].get("namespace", "congruence") for item in made} == {"congruence"}
        assert "ConfigMap" in {item["kind"] for item in made}


@pytest.mark.parametrize("file", sorted((INFRA / "clusters").glob("*.yaml")), ids=lambda file: file.stem)
def test_cluster_files_name_arguments_that_their_class_has(file: Path) -> None:
    spec: ClusterSpec = read_cluster_spec(file)
    module, _, name = spec.class_path.rpartition(".")
    found = getattr(pytest.importorskip(module), name)
    taken = set(inspect.signature(found).parameters) | set(inspect.signature(found.__mro__[1]).parameters)
    assert set(spec.arguments) - {"env", "memory_limit"} <= taken


def test_the_capacity_page_holds_what_its_formulas_give() -> None:
    table: str = runpy.run_path(str(INFRA / "capacity.py"))["table"]()
    assert table in (INFRA / "CAPACITY.md").read_text()


def test_every_file_that_the_pages_name_is_there() -> None:
    pages = [INFRA / "README.md", INFRA / "SECURITY.md", INFRA / "CAPACITY.md"]
    made = {"infra/evaluation.yaml"}
    for page in pages:
        text = page.read_text()
        for named in set(re.findall(r"\binfra/[\w./-]*[\w/]", text)) - made:
            assert (ROOT / named).exists() or "/secrets/" in f"{named}/", (page.name, named)
        for record in set(re.findall(r"`(\w+\.md)`", text)):
            assert (ROOT / "tests" / "benchmarks" / record).exists() or (INFRA / record).exists(), (page.name, record)
        for place in set(re.findall(r"`((?:kubernetes|clusters|settings|dask)/[\w./-]*)`", text)):
            assert (INFRA / place).exists() or (KUBERNETES / place).exists(), (page.name, place)


def test_the_secrets_of_kubernetes_are_of_files_that_are_made(secrets: Path, tmp_path: Path) -> None:
    named = {word.partition("=")[2] for item in SECRETS for word in item["files"]}
    named |= set(re.findall(r"infra/(?:kubernetes/)?secrets/(\w+)", (INFRA / "README.md").read_text()))
    assert named <= {file.name for file in secrets.iterdir()}
    if shutil.which("kubectl"):
        shutil.copytree(secrets, tmp_path, dirs_exist_ok=True)
        shutil.copy(KUBERNETES / "secrets" / "kustomization.yaml", tmp_path)
        assert {item["metadata"]["name"] for item in kustomized(tmp_path)} == {item["name"] for item in SECRETS}
