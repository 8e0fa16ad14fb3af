"""The Python environment that was logged with a version, made once and kept by MLflow; and the variables it runs with.

A model's process, and the making of its environment, are given nothing of ours: what is passed on is listed; of that,
names that tell of a secret and addresses with a password in them are left out.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from congruence.tasks.runtime.errors import ContractError, SettingsError, mask_text

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
        cache.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process ends, however it ends
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
        with Path(home, "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=variables, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
            try:
                if process.wait(timeout) == 0:
                    return
                why = f"ended with status {process.returncode}"
            except subprocess.TimeoutExpired:
                why = f"did not end within {timeout:g} s"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and whatever it started
                process.wait()
        said = tail_of(Path(home, "log"))
        shutil.rmtree(folder, ignore_errors=True)
        raise ContractError(
            f"{label}: making the environment that was logged with it {why}: {said}; correct its "
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


def tail_of(log: Path) -> str:
    """The last lines of what a process wrote on one line, passwords masked, without colours and control characters."""
    said = b""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        said = file.read()
    plain = re.sub(r"\x1b\[[0-9;]*m|[^\n\x20-\x7e\x80-\U0010ffff]", "", said.decode(errors="replace"))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return mask_text(" | ".join(lines[-8:])) or "no output"


_OF_THE_MACHINE = re.compile(
    r"PATH|LANG|LANGUAGE|LC_\w+|TZ|LD_LIBRARY_PATH|CUDA_VISIBLE_DEVICES|CUDA_HOME|NVIDIA_VISIBLE_DEVICES"
    r"|(OMP|OPENBLAS|MKL|NUMEXPR)_NUM_THREADS|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE"
)
_PROXIES = re.compile(r"(https?|all|no)_proxy", re.IGNORECASE)
_OF_THE_INDEX = re.compile(r"(PIP|UV)_\w+|PYENV_ROOT")
_INDEX_SETTINGS = ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS")
_SECRET = re.compile(r"TOKEN|PASSWORD|PASSWD|SECRET|KEY|CREDENTIAL", re.IGNORECASE)
_USER_INFO = re.compile(r"//[^/\s]*@")
_OF_MLFLOW = re.compile(r"MLFLOW_ALLOW_(MODEL_CODE_EXECUTION|PICKLE_DESERIALIZATION)")
"""What MLflow is forbidden holds in the model's own process, too."""
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}


def model_variables(home: Path) -> dict[str, str]:
    """Variables of a process that runs a model's code, with ``home`` as its home and temporary folder."""
    passed_on = _passed_on(_OF_THE_MACHINE, _PROXIES, _OF_MLFLOW)
    found = {name: value for name, value in passed_on.items() if not _USER_INFO.search(value)}
    return {**found, **_QUIET, "HOME": str(home), "TMPDIR": str(home)}


def build_variables(home: Path, cache: Path) -> dict[str, str]:
    """Variables of a process that makes an environment: also how to reach the package index, password and all."""
    found = _passed_on(_OF_THE_MACHINE, _PROXIES, _OF_THE_INDEX)
    user = Path.home()
    settings = user / ".config" / "pip" / "pip.conf"
    defaults = {
        "PIP_CACHE_DIR": str(cache / "pip"),
        "UV_CACHE_DIR": str(cache / "uv"),
        "PIP_NO_INPUT": "1",
        "PIP_COMPILE": "0",  # what a model imports is compiled as it is loaded, which is a small part
        # uv does not read pip's settings.
        **{f"UV_{name}": found[f"PIP_{name}"] for name in _INDEX_SETTINGS if f"PIP_{name}" in found},
        **({"PIP_CONFIG_FILE": str(settings)} if settings.exists() else {}),
        **({"PYENV_ROOT": str(user / ".pyenv")} if (user / ".pyenv").exists() else {}),
    }
    beside_python = str(Path(sys.executable).parent)  # uv that was installed as a package
    path = found.get("PATH", os.defpath)
    if shutil.which("uv", path=path) is None and shutil.which("uv", path=beside_python):
        path = f"{path}{os.pathsep}{beside_python}"
    return {**defaults, **found, **_QUIET, "PATH": path, "HOME": str(home), "TMPDIR": str(home)}


def _passed_on(*kinds: re.Pattern[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if any(kind.fullmatch(name) for kind in kinds) and not _SECRET.search(name)
    }
