"""The services of infra/compose.yaml: started in order by their own health checks, killed, looked into, taken down."""

import base64
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import yaml
from client import INSIDE, Client
from engine import PROJECT, Engine, until
from images import Bases

ROOT = Path(__file__).parents[2]
CLIENT = "client"
"""The service of the exercise: where models are registered and results are read, with the settings of `worker`."""


class Deployment:
    """A copy of the project's files with secrets, an evaluation file and the exercise's override."""

    def __init__(self, engine: Engine, tree: Path, bases: Bases) -> None:
        self.engine, self.infra, self.bases = engine, tree / "infra", bases
        file = self.infra / "compose.yaml"
        file.write_text(
            re.sub(r"127\.0\.0\.1:\d+:", "127.0.0.1::", file.read_text())
        )  # other programs may have those ports
        self.content: dict[str, Any] = yaml.safe_load(file.read_text())
        self.services: dict[str, dict[str, Any]] = self.content["services"]
        self.content = {"services": self._changes()}
        (self.infra / "exercise.yaml").write_text(yaml.safe_dump(self.content))

    def _changes(self) -> dict[str, dict[str, Any]]:
        """What this machine and the exercise need beside compose.yaml."""
        limits = {"ulimits": {name: {"soft": most, "hard": most} for name, most in self.engine.limits.items()}}
        client = self.services["worker"] | {
            "command": ["sleep", "infinity"],
            "restart": "no",
            "networks": ["work", "storage"],
        }
        for key in ("depends_on", "healthcheck", "stop_grace_period"):
            client.pop(key)
        self.services[CLIENT] = client
        changes = {name: dict(limits) for name in self.services}
        changes[CLIENT] = client | limits
        for name in ("worker", "dask-worker", CLIENT):
            changes[name]["environment"] = {"PYTHONPATH": INSIDE}
            own = [f"{ROOT / 'tests'}:{INSIDE}:ro", "./evaluations:/evaluations"]
            changes[name]["volumes"] = [*(client["volumes"] if name == CLIENT else []), *own]
        changes[CLIENT]["environment"] |= client["environment"] | {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
        if self.bases.from_debian:
            changes["postgres"]["image"] = self.bases.postgres
            changes["s3"]["image"] = self.bases.s3
        return changes

    def compose(self, *words: str, seconds: float = 900, check: bool = True) -> str:
        """A command of compose on both files; what it printed."""
        files = [self.infra / "compose.yaml", self.infra / "exercise.yaml"]
        command = [*self.engine.compose, "-p", PROJECT, *(word for file in files for word in ("-f", str(file))), *words]
        done = subprocess.run(
            command, cwd=self.infra, capture_output=True, text=True, timeout=seconds, env=self.engine.environment
        )
        if check and done.returncode:
            raise RuntimeError(
                f"{' '.join(words)}: status {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-3000:]}"
            )
        return done.stdout + done.stderr

    def up(self, *names: str) -> None:
        """Start services, each after those that it needs are well or have ended well."""
        wanted = list(names) or [name for name, service in self.services.items() if "profiles" not in service]
        if self.engine.name == "docker":  # waits by itself, as infra/README.md has it
            self.compose("up", "-d", "--no-build", "--wait", *wanted)
            return
        started: set[str] = set()

        def start(name: str) -> None:
            if name in started:
                return
            for needed in self.services[name].get("depends_on", {}):
                start(needed)
                self.wait(needed)
            self.compose("up", "-d", "--no-build", "--no-deps", name)
            started.add(name)

        for name in wanted:
            start(name)
        for name in wanted:
            self.wait(name)

    def wait(self, name: str, seconds: float = 300) -> None:
        """Return once a service is well by its health check or, where it ends, has ended well."""
        until(lambda: self.is_well(name), name, seconds, lambda: self.logs(name)[-3000:])

    def is_well(self, name: str) -> bool:
        """Whether every container of a service runs and its health check says so now, or has ended well."""
        found = self.containers(name)
        service = self.services[name]
        if len(found) < service.get("scale", 1):
            return False
        for each in found:
            state = self.engine.inspect(each)["State"]
            if "healthcheck" not in service and name != CLIENT:
                if state["Running"] or state["Status"] in ("created", "configured"):
                    return False
                if state["ExitCode"]:
                    raise RuntimeError(f"{each} ended with status {state['ExitCode']}:\n{self.logs(name)[-1500:]}")
            elif not state["Running"]:
                return False
            elif name == CLIENT:
                continue
            elif self.engine.name == "podman":  # asks by itself only where systemd is
                if self.engine("healthcheck", "run", each, check=False).returncode:
                    return False
            elif state["Health"]["Status"] != "healthy":
                return False
        return True

    def containers(self, name: str | None = None) -> list[str]:
        """The names of the containers of a service, or of all."""
        wanted = [f"label=com.docker.compose.project={PROJECT}"]
        wanted += [f"label=com.docker.compose.service={name}"] if name else []
        filters = [word for each in wanted for word in ("--filter", each)]
        return sorted(self.engine("ps", "--all", *filters, "--format", "{{.Names}}").stdout.split())

    def logs(self, name: str) -> str:
        """What the containers of a service printed."""
        return "".join(
            done.stdout + done.stderr
            for done in (self.engine("logs", each, check=False) for each in self.containers(name))
        )

    def kill(self, name: str) -> None:
        """SIGKILL to the first container's first process, as a fault of its own would end it; it is started again."""
        pid = self.engine.inspect(self.containers(name)[0])["State"]["Pid"]
        os.kill(pid, signal.SIGKILL)

    def inside(self, *words: str, service: str = CLIENT, seconds: float = 900, check: bool = True) -> str:
        """What a command printed in a service's container, with its secrets."""
        done = self.engine(
            "exec", self.containers(service)[0], "congruence-entrypoint", *words, seconds=seconds, check=check
        )
        return done.stdout + done.stderr

    def client(self) -> Client:
        """Calls into the exercise's container."""
        return Client(self.engine, self.containers(CLIENT)[0])

    def down(self, *, volumes: bool) -> None:
        """Stop and remove everything; the volumes stay unless they are to go."""
        self.compose("down", *(["--volumes"] if volumes else []), seconds=600)

    def left(self) -> list[str]:
        """What there is of this project in the engine."""
        label = f"label=com.docker.compose.project={PROJECT}"
        named = [
            *(("container", name) for name in self.containers()),
            *(("volume", name) for name in self.engine("volume", "ls", "-q", "--filter", label).stdout.split()),
            *(("network", name) for name in self.engine("network", "ls", "-q", "--filter", label).stdout.split()),
        ]
        return [" ".join(each) for each in named]

    def secrets(self) -> dict[str, str]:
        """The words that nobody is to see, by the file that they are in."""
        found = {}
        for file in (self.infra / "secrets").iterdir():
            if not file.name.startswith(("dask_c", "mlflow_auth")):
                found[file.name] = file.read_text().strip().splitlines()[-1].rpartition(" = ")[2]
        login = found["prefect_login"]
        return found | {
            "prefect_password": login.partition(":")[2],
            "prefect_header": base64.b64encode(login.encode()).decode(),
        }
