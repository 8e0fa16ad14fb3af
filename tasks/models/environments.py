"""The Python environment that was logged with a version, made once and kept: by MLflow, with uv or pyenv."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from congruence.tasks.contract.errors import ContractError
from congruence.tasks.models.variables import build_variables
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.masking import mask_text

_FORMAT = "1"
_READY = "ready"
_SAID = ("python_env.yaml", "requirements.txt", "conda.yaml", "uv.lock")
_TAIL = 1500


def logged_environment(model: Path, cache: Path, *, label: str, timeout: float) -> Path:
    """The Python interpreter of the environment that the model in the folder ``model`` was logged with.

    Environments are kept in ``cache`` by what was logged about them, so versions of one environment share it. Processes
    of one machine make one at a time; what a killed one left half made is made again.

    Raises:
        ContractError: it cannot be made, or not within ``timeout`` seconds.
        SettingsError: neither uv nor pyenv is there to make it.
    """
    said = b"\0".join((model / name).read_bytes() for name in _SAID if (model / name).exists())
    folder = cache / sha256(_FORMAT.encode() + said).hexdigest()[:16]
    if not (folder / _READY).exists():
        with _alone(folder):
            if not (folder / _READY).exists():
                shutil.rmtree(folder, ignore_errors=True)
                _make(model, folder, cache, label, timeout)
                (folder / _READY).touch()
    (python,) = folder.glob("*/bin/python")
    return python


def _make(model: Path, folder: Path, cache: Path, label: str, timeout: float) -> None:
    with tempfile.TemporaryDirectory(prefix="congruence-build-", ignore_cleanup_errors=True) as home:
        variables = build_variables(Path(home), cache) | {"MLFLOW_ENV_ROOT": str(folder)}
        command = [sys.executable, "-m", "mlflow", "models", "prepare-env", "--model-uri", str(model)]
        command += ["--env-manager", _manager(variables)]
        log = Path(home) / "log"
        status = run_bounded(command, variables, Path(home), log, timeout)
        if status == 0:
            return
        shutil.rmtree(folder, ignore_errors=True)
        why = f"did not end within {timeout:g} s" if status is None else f"ended with status {status}"
        raise ContractError(
            f"{label}: making the environment that was logged with it {why}: {tail_of(log)}; correct its "
            "pip_requirements, give its packages to the index that pip uses here, or raise predict.build_timeout"
        )


def _manager(variables: Mapping[str, str]) -> str:
    for manager, program in (("uv", "uv"), ("virtualenv", "pyenv")):
        if shutil.which(program, path=variables["PATH"]):
            return manager
    raise SettingsError(
        "predict.isolation: environment needs uv or pyenv on the path of every worker; install uv there "
        "(pip install uv), or set isolation: none"
    )


def run_bounded(
    command: Sequence[str], variables: Mapping[str, str], folder: Path, log: Path, timeout: float
) -> int | None:
    """Run a command in a session of its own, its output to ``log``: its status, None where it had to be ended."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=dict(variables), cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail_of(log: Path) -> str:
    """The end of a log on one line, passwords masked."""
    try:
        return in_one_line(log.read_bytes()[-_TAIL:])
    except OSError:
        return "no output"


def in_one_line(said: bytes) -> str:
    """The last lines of what a process wrote on one line, passwords masked, without colours and control characters."""
    plain = re.sub(r"\x1b\[[0-9;]*m|[^\n\x20-\x7e\x80-\U0010ffff]", "", said.decode(errors="replace"))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return mask_text(" | ".join(lines[-8:])) or "no output"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process ends, however it ends
        yield
