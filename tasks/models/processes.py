"""The Python environment that was logged with a version, made once and kept by MLflow; and the variables it runs with.

A model's process, and the making of its environment, are given nothing of ours: what is passed on is listed; of that,
names that tell of a secret and addresses with a password in them are left out.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.exceptions import MlflowException
from mlflow.models import Model

from congruence.tasks import readers
from congruence.tasks.models import model_process
from congruence.tasks.readers.base import UnreadableOutputError, unflatten
from congruence.tasks.readers.read import installed_readers
from congruence.tasks.runtime.errors import ContractError, SettingsError, mask_text
from congruence.tasks.settings.sections import PredictSettings

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
        with Path(home, "log").open("w+b") as log:
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
            log.seek(max(0, log.tell() - _TAIL))
            said = in_one_line(log.read())
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


def in_one_line(said: bytes) -> str:
    """The last lines of what a process wrote on one line, passwords masked, without colours and control characters."""
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


_SCRIPT = str(Path(model_process.__file__).resolve())
_OF_ALL = ["mlflow.pyfunc", "pandas", "pyarrow.parquet", "congruence.tasks.contract.predictors"]
_OF_PACKAGES = {"scikit-learn": "sklearn.pipeline", "scipy": "scipy.stats", "torch": "torch"}
"""What the nursery imports once for all versions that need it: these take most of the time of loading."""


class ModelProcess:
    """The model in a folder, run by this interpreter or by that of the environment that was logged with it.

    It has the ``metadata`` and the ``predict`` of MLflow's ``PyFuncModel``. The process is started at once, to see
    whether the model loads; it ends with this object, and where it died it is started again at the next question. The
    folder is removed with the object.
    """

    def __init__(self, folder: Path, label: str, settings: PredictSettings, environments: Path) -> None:
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.metadata = Model.load(str(folder))
        self.label = label
        self._folder = folder
        self._timeout = settings.timeout
        self._python: Path | None = None
        if settings.isolation == "environment":
            self._python = logged_environment(folder, environments, label=label, timeout=settings.build_timeout)
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._start()

    def predict(self, data: pd.DataFrame | np.ndarray[Any, Any]) -> Any:
        """What the model returns for ``data``: a frame, a mapping of arrays or an array.

        Raises:
            ContractError: the model raised, its process died, or it took longer than ``predict.timeout``.
            MlflowException: the data do not fit its signature.
        """
        return self._answer(data, {})

    def answer_of(
        self,
        data: pd.DataFrame | np.ndarray[Any, Any],
        method: str | None,
        *,
        as_spec: bool,
        levels: Sequence[float] | None = None,
    ) -> Any:
        """The same of its native model, see ``readers.read.answer_of``: a ``Spec``, or columns.

        Raises:
            ContractError, MlflowException: as ``predict``.
            UnreadableOutputError: what came back is no distribution that can be read.
        """
        asked = {"method": method, "as_spec": as_spec, "levels": levels, "readers": installed_readers()}
        return self._answer(data, asked)

    @cached_property
    def said(self) -> str:
        """The class of the native model and how it is asked, where its class tells; else ""."""
        with self._lock:
            return str(self._ask(self._running(), {"said": True, "readers": installed_readers()})["said"])

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _answer(self, data: pd.DataFrame | np.ndarray[Any, Any], asked: dict[str, Any]) -> Any:
        with self._lock:
            process = self._running()
            source, result = process.home / "input", process.home / "output.npz"
            source = _write_input(data, source, ours=self._python is None)
            try:
                self._ask(process, {"input": str(source), "output": str(result), **asked})
                return _read_output(result)
            finally:
                source.unlink(missing_ok=True)
                result.unlink(missing_ok=True)

    def _running(self) -> _Process:
        if self._process is None:
            self._start()
        assert self._process is not None
        return self._process

    def _start(self) -> None:
        self._process = _Process(self._folder, self._python)
        self._ask(self._process, None)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _ask(self, process: _Process, request: dict[str, Any] | None) -> dict[str, Any]:
        answer = process.ask(request, self._timeout)
        if answer is None or "ended" in answer:
            doing = "loading" if request is None else "predicting"
            why = f"took longer than {self._timeout:g} s (predict.timeout)"
            if answer is not None:
                why = f"ended it with status {answer['ended']}"
            self._stop()
            raise ContractError(f"{doing} in a separate process {why}; its output ended with: {process.tail()}")
        if "error" not in answer:
            return answer
        error = _as_raised(str(answer.get("kind")), str(answer["error"]), own=self._python is not None)
        if request is not None:
            raise error
        self._stop()
        raise error if isinstance(error, ContractError) else ContractError(str(error))


def _as_raised(kind: str, text: str, *, own: bool) -> Exception:
    """The error that a model's process told of, where its class matters here."""
    if kind == "UnreadableOutputError":
        return UnreadableOutputError(text)
    if kind == "MlflowException":
        return MlflowException(text)
    if kind != "TypeError" or not text.startswith(("output column", "predict returned")):
        text = f"{kind}: {text}" if text else kind
    if own and "No module named" in text:
        text += "; add it to the version's pip_requirements (rows are handed over by pyarrow, to mlflow)"
    return ContractError(text)


class _Process:
    """One process of a model, with a folder of its own; what it writes is read away, and its end kept."""

    def __init__(self, folder: Path, python: Path | None) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="congruence-process-"))
        if python is None:
            asked = {
                "command": [], "model": str(folder), "folder": os.getcwd(), "path": sys.path,
                "variables": {**os.environ, "TMPDIR": str(self.home)}, "preload": _preloaded(folder),
            }  # fmt: skip
        else:
            place = self.home / model_process.READERS
            place.parent.mkdir(parents=True)
            place.symlink_to(Path(readers.__file__).resolve().parent)
            asked = {
                "command": [str(python), "-I", _SCRIPT, str(folder)], "folder": str(self.home),
                "variables": model_variables(self.home), "preload": [],
            }  # fmt: skip
        (self.home / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
        theirs_in, self._requests = os.pipe()
        self._answers, theirs_out = os.pipe()
        log, theirs_log = os.pipe()
        try:
            self._handle = _Nursery.start(self.home / "asked.json", (theirs_in, theirs_out, theirs_log))
        finally:
            for one in (theirs_in, theirs_out, theirs_log):
                os.close(one)
        self._said = bytearray()
        self._drain = threading.Thread(target=_keep_tail, args=(log, self._said), daemon=True)
        self._drain.start()
        self._buffer = b""
        self.end = weakref.finalize(self, _clear, self._handle, self._requests, self._answers, self.home)

    def ask(self, request: dict[str, Any] | None, timeout: float) -> dict[str, Any] | None:
        """The answer to a request, or the next one; None where none came in time; "ended" where the process has."""
        if request is not None:
            with suppress(OSError):  # it has ended, of which the next answer tells
                os.write(self._requests, json.dumps(request).encode() + b"\n")
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            # Without any answer whoever forked it has ended, too.
            self._buffer += os.read(self._answers, 65536) or b'{"ended": null}\n'
        line, _, self._buffer = self._buffer.partition(b"\n")
        with suppress(ValueError):
            found = json.loads(line)
            return found if isinstance(found, dict) else None
        return None

    def tail(self) -> str:
        """The end of what it wrote, on one line."""
        self._drain.join(1.0)
        return in_one_line(bytes(self._said))


class _Nursery:
    """The one process of this one that models' processes are forked from; see ``model_process``."""

    _lock = threading.Lock()
    _socket: socket.socket | None = None
    _owner = 0

    @classmethod
    def start(cls, asked: Path, descriptors: Sequence[int]) -> int:
        """Start what the file says; returns a handle of the process (a pidfd)."""
        with cls._lock:
            try:
                return cls._started(asked, descriptors)
            except OSError:  # the nursery was killed, or an import that a model needs ended it
                cls._socket = None
                return cls._started(asked, descriptors)

    @classmethod
    def _started(cls, asked: Path, descriptors: Sequence[int]) -> int:
        if cls._socket is None or cls._owner != os.getpid():
            cls._socket, cls._owner = _new_nursery(), os.getpid()
        socket.send_fds(cls._socket, [str(asked).encode()], descriptors)
        _, handles, _, _ = socket.recv_fds(cls._socket, 64, 1)
        if not handles:
            raise ConnectionResetError("the process that starts models has ended")
        return handles[0]


def _new_nursery() -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [sys.executable, _SCRIPT, "--nursery", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    return ours


def _preloaded(folder: Path) -> list[str]:
    try:
        said = (folder / "requirements.txt").read_text(encoding="utf-8")
    except OSError:
        return _OF_ALL
    return _OF_ALL + [module for package, module in _OF_PACKAGES.items() if f"{package}==" in said]


def _keep_tail(log: int, said: bytearray) -> None:
    """Read what a process writes for as long as it writes, and keep the end of it."""
    with open(log, "rb", buffering=0) as stream:
        while content := stream.read(65536):
            said += content
            del said[:-_TAIL]


def _clear(handle: int, requests: int, answers: int, home: Path) -> None:
    """End a process; the nursery ends what it started."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    for one in (handle, requests, answers):
        os.close(one)
    shutil.rmtree(home, ignore_errors=True)


def _write_input(data: pd.DataFrame | np.ndarray[Any, Any], path: Path, *, ours: bool) -> Path:
    if ours:
        path = path.with_suffix(".pickle")
        with path.open("wb") as file:
            pickle.dump(data, file, protocol=5)
    elif isinstance(data, pd.DataFrame):
        path = path.with_suffix(".parquet")
        # Without what pandas notes about itself: the model's may be of another age.
        pq.write_table(pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None), path)
    else:
        path = path.with_suffix(".npy")
        np.save(path, data, allow_pickle=False)
    return path


def _read_output(path: Path) -> Any:
    """What the process stored; never a pickle, which could run what a model put there."""
    with np.load(path, allow_pickle=False) as file:
        said = json.loads(file["description"].tobytes())
        columns = [file[str(index)] for index in range(len(file.files) - 1)]
    columns = [values.astype(object) if values.dtype.kind == "U" else values for values in columns]
    if said["kind"] == "spec":
        return unflatten(said["spec"], columns)
    if said["kind"] == "array":
        return columns[0]
    if said["kind"] == "mapping":
        return dict(zip(said["names"], columns, strict=True))
    cells = [values if values.ndim == 1 else list(values) for values in columns]
    frame = pd.concat([pd.Series(values) for values in cells], axis=1) if cells else pd.DataFrame()
    return frame.set_axis(said["names"], axis=1)
