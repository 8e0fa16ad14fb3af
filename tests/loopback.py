"""Real servers as processes on loopback, which tests and exercises stop, kill and start again."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import psutil
from databases import mlflow_database
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(condition: Callable[[], object], seconds: float = 120, what: str = "it") -> None:
    """Return once ``condition`` holds."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    """Whether the process is there and not only waited for."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


class Process:
    """A command with a log file, in a process group of its own."""

    user: str | None = None
    before: tuple[str, ...] = ()
    """What the command is started by."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.arguments, self.log = list(arguments), log
        self.environment = os.environ | QUIET | dict(environment or {})
        self.running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                [*self.before, *self.arguments],
                stdout=log, stderr=log, env=self.environment, start_new_session=True, user=self.user,
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self.running is not None and self.running.poll() is None

    def stop(self, number: int = signal.SIGTERM, seconds: float = 60) -> int:
        """Signal the whole group and wait for its end; the exit status."""
        assert self.running is not None
        if self.alive:
            os.killpg(self.running.pid, number)
        return self.running.wait(timeout=seconds)

    def kill(self) -> None:
        if self.running is not None:
            self.stop(signal.SIGKILL)

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class Server(Process):
    """A process that answers once it is ready."""

    def start(self) -> None:
        super().start()
        wait_until(self._is_ready, what=f"an answer of {self.arguments}")

    def _is_ready(self) -> bool:
        if not self.alive:
            raise RuntimeError(self.text()[-2000:])
        return self.answers()

    def answers(self) -> bool:
        """Whether it does now."""
        raise NotImplementedError


class HttpServer(Server):
    """A server whose ``url`` is a page."""

    url: str

    def answers(self) -> bool:
        try:
            with urlopen(self.url, timeout=2):
                return True
        except OSError:
            return False


class MlflowServer(HttpServer):
    """``mlflow server`` on SQLite in ``folder``, or on another store; its webhooks may go to loopback."""

    def __init__(self, folder: Path, store: str | None = None) -> None:
        port = free_port()
        self.uri = f"http://127.0.0.1:{port}"
        self.url = f"{self.uri}/health"
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--backend-store-uri", store or mlflow_database(folder)]
        command += ["--artifacts-destination", str(folder / "artifacts")]
        allowed = {"MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https", "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true"}
        # 32 bytes in URL-safe base64; without it every process of the server makes up its own.
        key = {"MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": secrets.token_urlsafe(32) + "="}
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        super().__init__(command, folder / "mlflow.log", allowed | key | quiet)


class PrefectServer(HttpServer):
    """Prefect's server on SQLite in ``folder``, for several processes, each of which holds a shared lock on ``users``.

    It ends, and ``address`` goes, once none of them does, however they ended.
    """

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.users, self.address = folder / "prefect-users", folder / "prefect-address"
        self.uri = f"http://127.0.0.1:{port}/api"
        self.url = f"{self.uri}/health"
        lasts = '(flock "$0" rm "$1"; kill -KILL $$) & shift; exec "$@"'
        command = ["sh", "-c", lasts, str(self.users), str(self.address), sys.executable, "-m", "uvicorn", "--factory"]
        command += ["prefect.server.api.server:create_app", "--port", str(port), "--log-level", "error"]
        from congruence.flows.cli.session import make_database  # seconds, which other servers do without

        make_database(folder / "prefect.db")
        database = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder / 'prefect.db'}"}
        # As Prefect's client starts its own.
        marks = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
        super().__init__(command, folder / "prefect.log", database | marks)


class PostgreSQL(Server):
    """A cluster of its own, with a password, in a temporary folder."""

    def __init__(self) -> None:
        self.password, self.port = secrets.token_urlsafe(24), free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="congruence-postgresql-"))
        self.user = "postgres" if os.geteuid() == 0 else None  # PostgreSQL refuses root
        data, word = self.folder / "data", self.folder / "password"
        data.mkdir(mode=0o700)
        word.write_text(self.password)
        if self.user is not None:
            for path in (self.folder, data, word):
                shutil.chown(path, self.user)
        command = [str(postgresql_program("initdb")), "-D", str(data), "-U", "congruence", "--auth=scram-sha-256"]
        command += [f"--pwfile={word}", "--encoding=UTF8", "--no-locale", "--no-sync"]
        subprocess.run(command, user=self.user, cwd="/", check=True, capture_output=True)
        word.unlink()
        command = [str(postgresql_program("postgres")), "-D", str(data), "-p", str(self.port)]
        for option in ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "max_connections=200"):
            command += ["-c", option]
        super().__init__(command, self.folder / "log")

    def answers(self) -> bool:
        with suppress(OperationalError):
            self.execute()
            return True
        return False

    def execute(self, *statements: str) -> None:
        engine = create_engine(self.address(), isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 5})
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
        engine.dispose()

    def address(self, database: str = "postgres", driver: str = "postgresql") -> str:
        """What MLflow's and Prefect's stores take, with the password in it."""
        return f"{driver}://congruence:{self.password}@127.0.0.1:{self.port}/{database}"

    def end(self) -> None:
        """Kill it, and remove what it kept."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def postgresql_program(name: str) -> str | None:
    """The path of one of PostgreSQL's programs: on the path, else the newest of Debian's."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    return shutil.which(name) or (str(versions[-1]) if versions else None)
