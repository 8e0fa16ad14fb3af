"""The manifests of infra/kubernetes as pods of `podman kube play`, on one network in place of a cluster's.

PostgreSQL and S3 are containers beside them, as they are outside of the cluster; Dask's pods are made by the operator's
own functions from settings/cluster.yaml, the run's pod is the work pool's Job. What podman 4.3 cannot take is changed
in `_playable` and nowhere else; roles, network policies and limits mean nothing to it.
"""

import base64
import copy
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from client import INSIDE, Client
from engine import PROJECT, Engine, NotHereError, until
from images import ROOT, Bases
from safety import require_confined

NETWORK, CLUSTER = f"{PROJECT}-pods", "congruence-exercise"
IMAGE = "registry.example.org/congruence:0.1.0-cpu"
SPLIT = "pods"
SECRETS = "infra/kubernetes/secrets"
DOMAIN = "congruence.svc.cluster.local"


def exercise(engine: Engine, tree: Path, bases: Bases, image: str) -> str:
    """An evaluation by a run's pod on two workers' pods, and an event by MLflow's webhook; what was seen."""
    if engine.name != "podman":
        raise NotHereError("kube play is podman's")
    if shutil.which("kubectl") is None:
        raise NotHereError("kubectl is not installed")
    engine("tag", image, IMAGE)
    limits = [f"{name}={most}:{most}" for name, most in engine.limits.items()]  # pods have no field for them
    settings = engine.folder / "containers.conf"
    settings.write_text(f"[containers]\ndefault_ulimits = {json.dumps(limits)}\n")
    engine = replace(engine, variables={"CONTAINERS_CONF": str(settings)})
    with _network(engine) as play:
        _outside(engine, tree, bases)
        for document in _manifests(tree, "secrets"):
            _keep(engine, document)
        for document in _manifests(tree):
            if document["kind"] == "PersistentVolumeClaim":
                play(document)  # as a volume
        servers = {_name(each)[1]: each for each in _manifests(tree) if each["kind"] == "Deployment"}
        for name in ("mlflow", "prefect", "receiver"):
            play(servers[name], name)
            _wait(engine, name, servers[name])
        for name, aliases, deployment in _dask(tree):
            play(deployment, *aliases)
            _wait(engine, name, deployment)
        found = _evaluation(engine, tree, play)
        confined = sorted(_confined(engine))
        return f"{found}; {len(confined)} containers without root, capability and new privileges"


@contextmanager
def _network(engine: Engine) -> Iterator[Any]:
    """A network, and a function that plays a document on it under some names; all of it is gone afterwards."""
    played: list[Path] = []

    def play(document: dict[str, Any], *names: str, more: Iterable[dict[str, Any]] = ()) -> None:
        file = engine.folder / f"pod-{len(played):02d}.yaml"
        file.write_text(yaml.safe_dump_all([*more, _playable(document)]))
        played.append(file)
        aliases = ",".join(f"alias={name}" for name in names)
        engine("kube", "play", "--network", f"{NETWORK}:{aliases}" if aliases else NETWORK, file)

    engine("network", "create", "--label", f"{PROJECT}=pods", NETWORK)
    try:
        yield play
    finally:
        for file in reversed(played):
            engine("kube", "down", file, check=False)
        names = engine("ps", "-aq", "--filter", f"label={PROJECT}=pods").stdout.split()
        engine("rm", "-fv", *names, check=False)
        engine("network", "rm", "-f", NETWORK, check=False)
        for kind in ("volume", "secret"):
            for name in engine(kind, "ls", "--format", "{{.Name}}").stdout.split():
                if name.startswith("congruence-"):
                    engine(kind, "rm", name, check=False)


def _playable(document: dict[str, Any]) -> dict[str, Any]:
    """A document as podman 4.3 takes it.

    It ends with a nil pointer where a Secret's `optional` is not said; without `fsGroup` a folder in memory is root's;
    it gives a container's ports to the whole machine, its probes want curl in the image, and $(NAME) stays as it is.
    """
    made = copy.deepcopy(document)
    spec = made["spec"]["template"]["spec"] if made["kind"] == "Deployment" else made["spec"]
    in_memory = {each["name"] for each in spec.get("volumes", []) if each.get("emptyDir", {}).get("medium") == "Memory"}
    spec["volumes"] = [each for each in spec.get("volumes", []) if each["name"] not in in_memory]
    for volume in spec["volumes"]:
        if "secret" in volume:
            volume["secret"]["optional"] = False
    for container in spec.get("containers", []):
        for key in {"ports", "livenessProbe", "readinessProbe", "startupProbe"} & set(container):
            del container[key]
        for item in container.get("env", []):
            container["args"] = [
                word.replace(f"$({item['name']})", item.get("value", "")) for word in container["args"]
            ]
        mounts = container.get("volumeMounts", [])
        container["volumeMounts"] = [each for each in mounts if each["name"] not in in_memory]
    return made


def _keep(engine: Engine, secret: dict[str, Any]) -> None:
    """Make a Secret in podman, which 4.3 reads in two ways: as a text for files, as its data alone for variables."""
    name, data = secret["metadata"]["name"], secret["data"]
    if not all(key.isupper() for key in data):
        data = secret | {"data": {key: base64.b64decode(value).decode() for key, value in data.items()}}
    engine("secret", "create", name, "-", given=json.dumps(data))


def _manifests(tree: Path, folder: str = "") -> list[dict[str, Any]]:
    command = ["kubectl", "kustomize", tree / "infra" / "kubernetes" / folder]
    return list(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def _name(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def _outside(engine: Engine, tree: Path, bases: Bases) -> None:
    """PostgreSQL with the databases and S3 with the bucket; the credentials name the server of the latter."""
    infra, secrets, label = tree / "infra", tree / SECRETS, ["--label", f"{PROJECT}=pods"]
    subprocess.run([sys.executable, infra / "make_secrets.py", secrets], check=True, capture_output=True)
    credentials = secrets / "aws_credentials"
    if "endpoint_url" not in credentials.read_text():
        credentials.chmod(0o644)
        credentials.write_text(credentials.read_text() + "endpoint_url = http://s3:9000\nregion = us-east-1\n")
    services = yaml.safe_load((infra / "compose.yaml").read_text())["services"]
    for name, image, words in (("postgres", bases.postgres, []), ("s3", bases.s3, services["s3"]["command"])):
        options = ["--name", f"{NETWORK}-{name}", "--network", NETWORK, "--network-alias", name, *label]
        for variable, value in services[name]["environment"].items():
            options += ["--env", f"{variable}={value}"]
        for secret in services[name]["secrets"]:
            options += ["--volume", f"{secrets / secret}:/run/secrets/{secret}:ro"]
        if name == "postgres":
            options += [
                "--volume",
                f"{infra / 'postgres' / 'databases.sql'}:/docker-entrypoint-initdb.d/databases.sql:ro",
            ]
        for limit, most in engine.limits.items():
            options += ["--ulimit", f"{limit}={most}:{most}"]
        engine("run", "--detach", *options, image, *words)
        check = services[name]["healthcheck"]["test"][1:]
        until(
            lambda name=name, check=check: not engine("exec", f"{NETWORK}-{name}", *check, check=False).returncode, name
        )


def _dask(tree: Path) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    """A scheduler and two workers as the operator makes them of a cluster file: pod's name, its names, Deployment."""
    from dask_kubernetes.operator.controller import controller

    content = (tree / "infra" / "kubernetes" / "settings" / "cluster.yaml").read_text().replace("${name}", CLUSTER)
    spec = yaml.safe_load(content)["arguments"]["custom_cluster_spec"]["spec"]
    scheduler, worker = spec["scheduler"], spec["worker"]
    made = controller.build_scheduler_deployment_spec(CLUSTER, scheduler["spec"], {}, scheduler["metadata"]["labels"])
    name = made["metadata"]["name"]
    yield name, [name, f"{name}.{DOMAIN}"], made
    for number in range(2):
        made = controller.build_worker_deployment_spec(
            f"{CLUSTER}-default", "congruence", CLUSTER, f"{number}", worker["spec"], {}, worker["metadata"]["labels"]
        )
        yield made["metadata"]["name"], [made["metadata"]["name"]], made


def _wait(engine: Engine, name: str, deployment: dict[str, Any], seconds: float = 240) -> None:
    """Return once the answer is well that the manifest's probe asks for."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    probe = container.get("readinessProbe") or {"httpGet": {"path": "/health", "port": "http-dashboard"}}
    if "exec" in probe:
        command = probe["exec"]["command"]
    else:
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        command = ["healthy", f"http://127.0.0.1:{ports[probe['httpGet']['port']]}{probe['httpGet']['path']}"]
    pod = _container(engine, name)
    until(lambda: not engine("exec", pod, *command, check=False).returncode, name, seconds, lambda: _lines(engine, pod))


def _container(engine: Engine, name: str) -> str:
    """The name of the one container of a pod, less that which holds its network."""
    listed = json.loads(engine("ps", "--all", "--format", "json").stdout)
    (found,) = [
        item["Names"][0]
        for item in listed
        if not item["IsInfra"] and re.fullmatch(rf"{re.escape(name)}(-pod-\d+)?-[^-]+(-job)?", item["Names"][0])
    ]
    return str(found)


def _lines(engine: Engine, container: str) -> str:
    done = engine("logs", "--tail", "30", container, check=False)
    return (done.stdout + done.stderr)[-3000:]


def _evaluation(engine: Engine, tree: Path, play: Any) -> str:
    """A version evaluated by the pod of a run, and one whose registration reaches Prefect as an event."""
    files = engine.folder / "pods"
    files.mkdir(exist_ok=True)
    files.chmod(0o777)
    with _client(engine, tree, files) as client:
        client.bucket()
        client.file(SPLIT)
        label = client.register(SPLIT, seconds=0.2)
        began = time.monotonic()
        play(_run(engine), more=[_settings(files / f"{SPLIT}.yaml")])
        name = _container(engine, "run")
        until(lambda: not engine.inspect(name)["State"]["Running"], "the run", 420, lambda: _lines(engine, name))
        assert engine.inspect(name)["State"]["ExitCode"] == 0, _lines(engine, name)
        numbers = client.require_once(SPLIT, label)
        took = time.monotonic() - began
        client.webhook("http://receiver:4280/mlflow")
        time.sleep(65)  # each process of MLflow's server reads its list of webhooks once a minute
        client.register(SPLIT, seconds=0.2)
        until(lambda: client.events("mlflow.model_version.created"), "the event")
    return f"evaluated in {took:.0f} s by two workers, CCE {numbers['cce_mean']:.6f}; the receiver's event"


def _settings(file: Path) -> dict[str, Any]:
    """The ConfigMap with the evaluation of a split's features as they are, on the pods' scheduler."""
    content = yaml.safe_load(file.read_text())
    (split,) = content["splits"]
    split |= {"input_kind": "features", "input": split.pop("model_inputs")}
    content |= {"encoder": {"kind": "identity"}, "home": "/data"}
    content["cluster"] = {"kind": "address", "address": f"tcp://{CLUSTER}-scheduler.{DOMAIN}:8786"}
    del content["tracking"]["uri"]
    name = {"name": "congruence-settings"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": name,
        "data": {"evaluation.yaml": yaml.safe_dump(content)},
    }


@contextmanager
def _client(engine: Engine, tree: Path, files: Path) -> Iterator[Client]:
    """The exercise's own container on the pods' network: where versions are registered and results are read."""
    infra, secrets = tree / "infra", tree / SECRETS
    variables = yaml.safe_load((infra / "compose.yaml").read_text())["services"]["worker"]["environment"] | {
        "PYTHONPATH": INSIDE,
        "CONGRUENCE_WEBHOOK_SECRET_FROM_FILE": "/run/secrets/webhook_secret",
    }
    mounts = {files: "/evaluations", ROOT / "tests": INSIDE, infra: "/infra"}
    mounts |= {infra / "examples" / "compose.yaml": "/etc/congruence/evaluation.yaml"}
    (worker,) = (each for each in _manifests(tree) if _name(each) == ("Deployment", "prefect-worker"))
    for item in worker["spec"]["template"]["spec"]["containers"][0]["env"]:
        if item["name"].startswith("PREFECT_INTEGRATIONS"):
            variables[item["name"]] = item["value"]
    mounts |= {
        secrets / name.rpartition("/")[2]: name for name in variables.values() if name.startswith("/run/secrets/")
    }
    options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    options += [word for here, there in mounts.items() for word in ("--volume", f"{here}:{there}")]
    options += ["--name", f"{NETWORK}-client", "--network", NETWORK, "--label", f"{PROJECT}=pods"]
    engine("run", "--detach", *options, IMAGE, "sleep", "infinity")
    client = Client(engine, f"{NETWORK}-client")
    try:
        yield client
    finally:
        client.close()


def _confined(engine: Engine) -> Iterator[str]:
    """The pods' containers that run, none of which is root or has a capability or may get one."""
    for item in json.loads(engine("ps", "--format", "json").stdout):
        if item["Pod"] and not item["IsInfra"]:
            require_confined(item["Names"][0], item["Pid"])
            yield item["Names"][0]


def _run(engine: Engine) -> dict[str, Any]:
    """The pod of a run of the deployment `by-hand`, as Prefect's Kubernetes worker makes it of the work pool's Job."""
    pool = "/infra/kubernetes/work-pool.json"
    for words in (
        f"work-pool create congruence --type kubernetes --base-job-template {pool} --overwrite",
        "--no-prompt deploy --all --prefect-file /infra/prefect.yaml",
    ):
        # From a folder that the run's pod does not have.
        engine("exec", "--workdir", "/infra", f"{NETWORK}-client", "congruence-entrypoint", "prefect", *words.split())
    words = [pool, "evaluate-version/by-hand", "{}"]
    command = ["congruence-entrypoint", "python", f"{INSIDE}/containers/job.py", *words]
    job = json.loads(engine("exec", f"{NETWORK}-client", *command).stdout.splitlines()[-1])
    spec = job["spec"]["template"]["spec"]
    said = json.dumps(spec)
    assert spec["containers"][0]["image"] == IMAGE, said
    assert not [item for item in spec["containers"][0]["env"] if "AUTH" in item["name"] and "value" in item], said
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "run"}, "spec": spec}
