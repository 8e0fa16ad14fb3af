"""Real servers as processes on loopback, which tests and exercises stop, kill and start again."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from databases import mlflow_database

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


class Process:
    """A command with a log file, in a process group of its own."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.arguments, self.log = list(arguments), log
        self.environment = os.environ | QUIET | dict(environment or {})
        self.running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                self.arguments, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

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


class HttpServer(Process):
    """A process that answers on ``url`` once it is ready."""

    url: str

    def start(self) -> None:
        super().start()
        wait_until(self._answers, what=f"an answer of {self.url}")

    def _answers(self) -> bool:
        if not self.alive:
            raise RuntimeError(self.text()[-2000:])
        try:
            with urlopen(self.url, timeout=2):
                return True
        except (URLError, OSError):
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


class PostgreSQL:
    """A cluster of its own, with a password, in a temporary folder; ``uri`` is what MLflow's stores take."""

    def __init__(self, encoding: str = "UTF8") -> None:
        self.password = secrets.token_urlsafe(12)
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="congruence-postgresql-"))
        self.uri = f"postgresql://mlflow:{self.password}@127.0.0.1:{self.port}/postgres"
        # PostgreSQL refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None
        word = self.folder / "password"
        word.write_text(self.password)
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            for path in (self.folder, word):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        data = str(self.folder / "data")
        self._run(
            "initdb",
            "-D",
            data,
            "-E",
            encoding,
            "--locale=C",
            "-U",
            "mlflow",
            "--auth=scram-sha-256",
            f"--pwfile={word}",
            "--no-sync",
        )
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self._run("pg_ctl", "-D", data, "-l", str(self.folder / "log"), "-o", options, "-w", "start")

    @staticmethod
    def missing() -> str | None:
        """Why there can be none here, if so."""
        absent = [name for name in ("initdb", "pg_ctl") if shutil.which(name) is None]
        return f"no {' and '.join(absent)} on the path: install PostgreSQL" if absent else None

    def stop(self) -> None:
        if not self.folder.exists():
            return
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, *command: str) -> None:
        # Into a file: the server inherits pg_ctl's output, so a pipe would never end.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command, user=self._user, cwd=self.folder, stdout=output, stderr=output, timeout=120, check=False
            )
            output.seek(0)
            if done.returncode != 0:
                raise RuntimeError(f"{command[0]}: {output.read()}")
