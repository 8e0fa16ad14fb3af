"""A version in a process of its own, asked like a loaded model: whatever it does there, it does to itself alone.

It may raise, hang, print, exit, be killed or change what it imported: that is the version's failure, and the process is
started anew when it is asked again.
"""

from __future__ import annotations

import json
import os
import pickle
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
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
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
from congruence.tasks.models.environments import in_one_line, logged_environment, model_variables
from congruence.tasks.models.settings import PredictSettings
from congruence.tasks.readers.base import UnreadableOutputError, unflatten
from congruence.tasks.readers.read import installed_readers
from congruence.tasks.runtime.errors import ContractError

_SCRIPT = str(Path(model_process.__file__).resolve())
_OF_ALL = ["mlflow.pyfunc", "pandas", "pyarrow.parquet", "congruence.tasks.contract.predictors"]
_OF_PACKAGES = {"scikit-learn": "sklearn.pipeline", "scipy": "scipy.stats", "torch": "torch"}
"""What the nursery imports once for all versions that need it: these take most of the time of loading."""
_TAIL = 1500


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
