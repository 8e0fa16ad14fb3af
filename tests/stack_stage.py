"""The servers of infra/compose.yaml as processes on loopback, and what their clients see of them.

PostgreSQL, an S3-protocol server, MLflow, Prefect with a worker, Dask over TLS and the receiver of webhooks, for tests
that kill some of them; all of them end with this process.
"""

import os
import secrets
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
from client_stage import BUCKET, Stage
from loopback import HttpServer, PostgreSQL, Server, free_port, is_alive

from congruence.flows.receiver import register_webhook
from congruence.tasks.dask.clusters import dask_environment
from congruence.tasks.dask.workers import WORKER_ENVIRONMENT, total_memory
from congruence.tasks.settings.sections import TrackingSettings

sys.path.append(str(Path(__file__).parents[1] / "infra"))

POOL = "congruence"
WORKERS = ("worker-1", "worker-2")
NAMES = ("s3", "scheduler", "dashboard", "mlflow", "prefect", *WORKERS, "runs", "receiver")
TLS = {"ca_file": "dask_ca", "cert_file": "dask_certificate", "key_file": "dask_key"}
BEFORE = ("setpriv", "--pdeathsig", "KILL")


class StackStage(Stage):
    """The servers, each of which is started once those before it answer, in a home folder of their own."""

    def __init__(self) -> None:
        from certificates import make_certificates

        home = Path(tempfile.mkdtemp(prefix="congruence-stack-"))
        self.folder = home / "stack"
        self.folder.mkdir()
        make_certificates(self.folder)
        self.ports = {name: free_port() for name in NAMES}
        self.words = {name: secrets.token_urlsafe(24) for name in ("prefect", "s3", "webhook", "key")}
        self.postgresql = PostgreSQL()
        self.words["postgresql"] = self.postgresql.password
        known = {
            "AWS_ACCESS_KEY_ID": "congruence",
            "AWS_SECRET_ACCESS_KEY": self.words["s3"],
            "AWS_ENDPOINT_URL": self.http("s3"),
            "AWS_DEFAULT_REGION": "us-east-1",
            "MLFLOW_TRACKING_URI": self.http("mlflow"),
            "PREFECT_API_URL": f"{self.http('prefect')}/api",
            "PREFECT_API_AUTH_STRING": f"congruence:{self.words['prefect']}",
            "CONGRUENCE_HOME": str(home),
        }
        tls = {key: str(self.folder / name) for key, name in TLS.items()}
        address = f"tls://127.0.0.1:{self.ports['scheduler']}"
        super().__init__(home, known, {"kind": "address", "address": address, "tls": tls})
        self.servers = {"postgresql": self.postgresql} | self._topology()
        self.seen: set[int] = set()

    def http(self, name: str) -> str:
        """The address of a server that speaks HTTP."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def up(self) -> None:
        for name, server in self.servers.items():
            server.before = BEFORE
            server.start()
            if name == "postgresql":
                self.postgresql.execute("CREATE DATABASE mlflow", "CREATE DATABASE prefect")
            if name == "s3":
                self.s3().create_bucket(Bucket=BUCKET)
            if name == "receiver":
                settings = TrackingSettings(uri=self.http("mlflow"))
                register_webhook(f"{self.http('receiver')}/mlflow", self.words["webhook"], settings)
        self.look()

    def down(self) -> None:
        self.look()
        for server in reversed(self.servers.values()):
            server.kill()
        self.postgresql.end()

    def look(self) -> None:
        """Note every process of the servers, for the question what is left of them."""
        for server in self.servers.values():
            with suppress(psutil.NoSuchProcess):
                if server.running is not None and server.alive:
                    below = psutil.Process(server.running.pid).children(recursive=True)
                    self.seen |= {server.running.pid, *(process.pid for process in below)}

    def left(self) -> list[str]:
        found = []
        for pid in filter(is_alive, self.seen):
            with suppress(psutil.NoSuchProcess):  # it has ended since
                found.append(f"{pid} {' '.join(psutil.Process(pid).cmdline())[:150]}")
        return found

    def _topology(self) -> dict[str, Server]:
        made: dict[str, Server] = {}

        def server(name: str, *command: object, path: str = "/health", at: str = "", **environment: str) -> None:
            log = self.folder / f"{name}.log"
            made[name] = one = HttpServer([sys.executable, "-m", *map(str, command)], log, environment)
            one.url = self.http(at or name) + path

        files = {key: self.folder / name for key, name in TLS.items()}
        tls = ["--tls-ca-file", files["ca_file"], "--tls-cert", files["cert_file"], "--tls-key", files["key_file"]]
        encrypted = dask_environment() | {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true"}
        encoders = str(Path(__file__).parent)
        evaluating = {"PREFECT_HOME": str(self.home / "prefect"), "PREFECT_LOGGING_EXTRA_LOGGERS": "congruence"}
        evaluating |= {**self.known, **WORKER_ENVIRONMENT}
        evaluating["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), encoders]))
        (self.folder / "temporary").mkdir()
        on = ("--host", "127.0.0.1", "--port")

        server("s3", "moto.server", "-H", "127.0.0.1", "-p", self.ports["s3"], path="/moto-api/")
        server(
            "scheduler", "dask", "scheduler", "--host", "tls://127.0.0.1", "--port", self.ports["scheduler"],
            "--dashboard-address", f"127.0.0.1:{self.ports['dashboard']}", *tls, at="dashboard", **encrypted,
        )  # fmt: skip
        server(
            "mlflow", "mlflow", "server", *on, self.ports["mlflow"], "--workers", 1,
            "--artifacts-destination", f"s3://{BUCKET}/mlflow",
            **self.known | {
                "MLFLOW_BACKEND_STORE_URI": self.postgresql.address("mlflow"),
                "MLFLOW_S3_ENDPOINT_URL": self.http("s3"),
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
                "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
                "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": self.words["key"] + "A" * 11 + "=",
            },
        )  # fmt: skip
        server(
            "prefect", "prefect", "server", "start", *on, self.ports["prefect"], path="/api/health",
            PREFECT_HOME=str(self.folder / "prefect-server"),
            PREFECT_SERVER_DATABASE_CONNECTION_URL=self.postgresql.address("prefect", "postgresql+asyncpg"),
            PREFECT_SERVER_API_AUTH_STRING=f"congruence:{self.words['prefect']}",
        )  # fmt: skip
        for name in WORKERS:
            server(
                name, "dask", "worker", self.cluster["address"], "--host", "tls://127.0.0.1", "--name", name,
                "--nthreads", 1, "--no-nanny", "--memory-limit", total_memory() // len(WORKERS),
                "--dashboard-address", f"127.0.0.1:{self.ports[name]}", *tls, **evaluating | encrypted,
            )  # fmt: skip
        server(
            "receiver", "congruence.flows.cli.main", "receive", "--port", self.ports["receiver"],
            **evaluating | {"CONGRUENCE_WEBHOOK_SECRET": self.words["webhook"]},
        )  # fmt: skip
        # Prefect's worker: another user's may hold the name "runner_storage" in /tmp.
        server(
            "runs", "prefect", "worker", "start", "--pool", POOL, "--type", "process",
            "--limit", len(WORKERS), "--with-healthcheck",
            **evaluating | {
                "TMPDIR": str(self.folder / "temporary"),
                "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
                "PREFECT_WORKER_WEBSERVER_PORT": str(self.ports["runs"]),
                "PREFECT_WORKER_QUERY_SECONDS": "5",
                "PREFECT_WORKER_PREFETCH_SECONDS": "5",
            },
        )  # fmt: skip
        return made
