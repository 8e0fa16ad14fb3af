"""The servers of infra/compose.yaml as processes on loopback, started in order and started again where they die.

PostgreSQL, an S3-protocol server, MLflow, Prefect with a worker, Dask over TLS and the receiver of webhooks, for tests
and exercises that kill them.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from loopback import QUIET, free_port

from congruence.flows.receiver import register_webhook
from congruence.tasks.dask.clusters import dask_environment
from congruence.tasks.dask.fork_server import WORKER_ENVIRONMENT
from congruence.tasks.runtime.memory import total_memory
from congruence.tasks.settings.sections import TrackingSettings

sys.path.append(str(Path(__file__).parents[1] / "infra"))

BUCKET = POOL = "congruence"
WORKERS = ("worker-1", "worker-2")
NAMES = ("postgresql", "s3", "scheduler", "dashboard", "mlflow", "prefect", *WORKERS, "runs", "receiver")
_MODULE = (sys.executable, "-m")
_LOOK_SECONDS = 0.2


def postgresql_program(name: str) -> str | None:
    """The path of one of PostgreSQL's programs: on the path, else the newest of Debian's."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    return shutil.which(name) or (str(versions[-1]) if versions else None)


def is_alive(pid: int) -> bool:
    """Whether the process is there and not only waited for."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@dataclass
class Part:
    """One server: how it is started, and what must hold before those that need it start."""

    name: str
    command: tuple[str, ...]
    is_well: Callable[[], bool]
    environment: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] | None = None
    user: str | None = None
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    well: bool = False

    @property
    def pid(self) -> int | None:
        """Of its process, while it runs."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None


class Servers:
    """All of them in a folder that PostgreSQL's user may enter."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "stack"
        self.ports = {name: free_port() for name in NAMES}
        self.words = {name: secrets.token_urlsafe(24) for name in ("postgresql", "prefect", "s3", "webhook", "key")}
        self.stopped = threading.Event()
        for inner in (self.folder, self.folder / "logs", self.folder / "temporary"):
            inner.mkdir()
            inner.chmod(0o711)
        from certificates import make_certificates

        make_certificates(self.folder)
        self.parts = {part.name: part for part in self._topology()}
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def up(self, seconds: float = 300.0) -> None:
        """Start every part and return when all are well."""
        self._make_cluster()
        self._keeper.start()
        limit = time.monotonic() + seconds
        while not self.well():
            waiting = [part.name for part in self.parts.values() if not part.well]
            if time.monotonic() > limit:
                raise TimeoutError(f"{waiting} not well; see {self.folder / 'logs'}")
            time.sleep(_LOOK_SECONDS)

    def down(self) -> None:
        """End them all."""
        self.stopped.set()
        if self._keeper.is_alive():
            self._keeper.join()

    def well(self) -> bool:
        """Whether every part answered when it was last asked."""
        return all(part.well for part in self.parts.values())

    def _keep(self) -> None:
        try:
            while not self.stopped.wait(_LOOK_SECONDS):
                self._look()
        finally:
            for part in reversed(self.parts.values()):
                self._end(part)

    def _look(self) -> None:
        """Ask the parts in order: one that is not well is started if it has ended, and those after it wait."""
        for part in self.parts.values():
            if part.pid is None:
                self._end(part)
                part.well = False
                self._start(part)
            with suppress(Exception):  # of whatever client asks: it is asked again
                well = part.is_well()
                if well and not part.well and part.prepare is not None:
                    part.prepare()
                part.well = well
            if not part.well and part.starts == 1:
                return

    def _start(self, part: Part) -> None:
        def become() -> None:
            if part.user is not None:
                account = pwd.getpwnam(part.user)
                os.initgroups(part.user, account.pw_gid)
                os.setgid(account.pw_gid)
                os.setuid(account.pw_uid)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # with this process

        with (self.folder / "logs" / f"{part.name}.log").open("ab") as log:
            part.process = subprocess.Popen(
                part.command,
                env=os.environ | QUIET | part.environment,
                cwd="/" if part.user else self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=become,
            )
        part.starts += 1

    def _end(self, part: Part) -> None:
        if part.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(part.process.pid, signal.SIGKILL)
            part.process.wait()

    def http(self, name: str) -> str:
        """The address of a part that speaks HTTP."""
        return f"http://127.0.0.1:{self.ports[name]}"

    @property
    def cluster(self) -> dict[str, object]:
        """The settings ``cluster`` of an evaluation file."""
        files = {"ca_file": "dask_ca", "cert_file": "dask_certificate", "key_file": "dask_key"}
        tls = {key: str(self.folder / name) for key, name in files.items()}
        return {"kind": "address", "address": f"tls://127.0.0.1:{self.ports['scheduler']}", "tls": tls}

    @property
    def environment(self) -> dict[str, str]:
        """What evaluations on these servers read from their environment."""
        return {
            "AWS_ACCESS_KEY_ID": "congruence",
            "AWS_SECRET_ACCESS_KEY": self.words["s3"],
            "AWS_ENDPOINT_URL": self.http("s3"),
            "AWS_DEFAULT_REGION": "us-east-1",
            "MLFLOW_TRACKING_URI": self.http("mlflow"),
            "PREFECT_API_URL": f"{self.http('prefect')}/api",
            "PREFECT_API_AUTH_STRING": f"congruence:{self.words['prefect']}",
            "CONGRUENCE_HOME": str(self.home),
        }

    def database(self, name: str, driver: str = "postgresql") -> str:
        """The address of a database, with the password in it."""
        return f"{driver}://congruence:{self.words['postgresql']}@127.0.0.1:{self.ports['postgresql']}/{name}"

    def _topology(self) -> list[Part]:
        tls = ["--tls-ca-file", "dask_ca", "--tls-cert", "dask_certificate", "--tls-key", "dask_key"]
        encrypted = dask_environment() | {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true"}
        encoders = str(Path(__file__).parent / "tasks" / "embedding")
        evaluating = {"PREFECT_HOME": str(self.home / "prefect"), "PREFECT_LOGGING_EXTRA_LOGGERS": "congruence"}
        evaluating |= self.environment | WORKER_ENVIRONMENT
        evaluating["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), encoders]))

        def part(name: str, *command: object, path: str = "/health", health: str = "", **options: object) -> Part:
            is_well = options.pop("is_well", None) or answers(self.http(health or name) + path)
            return Part(name, tuple(map(str, command)), is_well, **options)  # type: ignore[arg-type]

        def worker(name: str) -> Part:
            return part(
                name, *_MODULE, "dask", "worker", str(self.cluster["address"]), "--host", "tls://127.0.0.1",
                "--name", name, "--nthreads", 1, "--no-nanny", "--memory-limit", total_memory() // len(WORKERS),
                "--dashboard-address", f"127.0.0.1:{self.ports[name]}", *tls,
                environment=evaluating | encrypted,
            )  # fmt: skip

        on = ("--host", "127.0.0.1", "--port")
        return [
            part(
                "postgresql", postgresql_program("postgres"), "-D", self.folder / "postgresql",
                "-p", self.ports["postgresql"], "-c", "listen_addresses=127.0.0.1",
                "-c", "unix_socket_directories=", "-c", "max_connections=200",
                is_well=self._postgresql_is_well, prepare=self._make_databases, user=_postgresql_user(),
            ),
            part("s3", *_MODULE, "moto.server", "-H", "127.0.0.1", "-p", self.ports["s3"],
                 path="/moto-api/", prepare=self._make_bucket),
            part("scheduler", *_MODULE, "dask", "scheduler", "--host", "tls://127.0.0.1", "--port",
                 self.ports["scheduler"], "--dashboard-address", f"127.0.0.1:{self.ports['dashboard']}", *tls,
                 health="dashboard", environment=encrypted),
            part("mlflow", *_MODULE, "mlflow", "server", *on, self.ports["mlflow"], "--workers", 1,
                 "--artifacts-destination", f"s3://{BUCKET}/mlflow",
                 environment=self.environment | {
                     "MLFLOW_BACKEND_STORE_URI": self.database("mlflow"),
                     "MLFLOW_S3_ENDPOINT_URL": self.http("s3"),
                     "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                     "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
                     "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
                     "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": self.words["key"] + "A" * 11 + "=",
                 }),
            part("prefect", *_MODULE, "prefect", "server", "start", *on, self.ports["prefect"], path="/api/health",
                 environment={
                     "PREFECT_HOME": str(self.folder / "prefect-server"),
                     "PREFECT_SERVER_DATABASE_CONNECTION_URL": self.database("prefect", "postgresql+asyncpg"),
                     "PREFECT_SERVER_API_AUTH_STRING": f"congruence:{self.words['prefect']}",
                 }),
            *(worker(name) for name in WORKERS),
            part("receiver", *_MODULE, "congruence.flows.cli.main", "receive", "--port", self.ports["receiver"],
                 environment=evaluating | {"CONGRUENCE_WEBHOOK_SECRET": self.words["webhook"]},
                 prepare=self._make_webhook),
            # Prefect's worker: another user's may hold the name "runner_storage" in /tmp.
            part("runs", *_MODULE, "prefect", "worker", "start", "--pool", POOL, "--type", "process",
                 "--limit", len(WORKERS), "--with-healthcheck",
                 environment=evaluating | {
                     "TMPDIR": str(self.folder / "temporary"),
                     "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
                     "PREFECT_WORKER_WEBSERVER_PORT": str(self.ports["runs"]),
                     "PREFECT_WORKER_QUERY_SECONDS": "5",
                     "PREFECT_WORKER_PREFETCH_SECONDS": "5",
                 }),
        ]  # fmt: skip

    def _make_cluster(self) -> None:
        data, user = self.folder / "postgresql", _postgresql_user()
        word = self.folder / "word"
        word.write_text(self.words["postgresql"])
        data.mkdir(mode=0o700)
        if user is not None:
            for path in (data, word):
                shutil.chown(path, user)
        command = [str(postgresql_program("initdb")), "-D", str(data), "-U", "congruence", "--auth=scram-sha-256"]
        command += [f"--pwfile={word}", "--encoding=UTF8", "--no-locale", "--no-sync"]
        subprocess.run(command, user=user, cwd="/", check=True, capture_output=True)
        word.unlink()

    def _postgresql_is_well(self) -> bool:
        import psycopg2

        psycopg2.connect(self.database("postgres"), connect_timeout=5).close()
        return True

    def _make_databases(self) -> None:
        import psycopg2

        connection = psycopg2.connect(self.database("postgres"), connect_timeout=5)
        connection.autocommit = True
        with connection.cursor() as cursor:
            for name in ("mlflow", "prefect"):
                with suppress(psycopg2.errors.DuplicateDatabase):
                    cursor.execute(f"CREATE DATABASE {name}")
        connection.close()

    def _make_bucket(self) -> None:
        import boto3

        known = self.environment
        client = boto3.client(
            "s3",
            endpoint_url=known["AWS_ENDPOINT_URL"],
            region_name=known["AWS_DEFAULT_REGION"],
            aws_access_key_id=known["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=known["AWS_SECRET_ACCESS_KEY"],
        )
        client.create_bucket(Bucket=BUCKET)

    def _make_webhook(self) -> None:
        settings = TrackingSettings(uri=self.http("mlflow"))
        register_webhook(f"{self.http('receiver')}/mlflow", self.words["webhook"], settings)


def answers(url: str) -> Callable[[], bool]:
    """Whether ``url`` answers with a page; one that asks who is there answers, too."""

    def ask() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=10.0) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            return error.code in (401, 403)
        except OSError:
            return False

    return ask


def _postgresql_user() -> str | None:
    """PostgreSQL refuses root."""
    return "postgres" if os.geteuid() == 0 else None
