"""A version, loaded once in a process of its own: what it answers, and the nursery that its process is a fork of."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.exceptions import MlflowException
from mlflow.models import Model

from congruence.tasks import readers
from congruence.tasks.contract import PredictionSettings, PredictiveModel
from congruence.tasks.contract.model import failure_text, fetch
from congruence.tasks.data.settings import StoredColumns
from congruence.tasks.mlflow.connection import use_tracking
from congruence.tasks.models import model_process
from congruence.tasks.models.environments import logged_environment, model_variables, tail_of
from congruence.tasks.readers.base import UnreadableOutputError, unflatten
from congruence.tasks.readers.read import installed_readers
from congruence.tasks.runtime.errors import ContractError, SettingsError
from congruence.tasks.runtime.files import MadeOnce
from congruence.tasks.settings.parts import PredictSettings
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

logger = logging.getLogger(__name__)

_SCRIPT = str(Path(model_process.__file__).resolve())
_OF_ALL = ["mlflow.pyfunc", "pandas", "pyarrow.parquet", "congruence.tasks.contract.predictors"]
_OF_PACKAGES = {"scikit-learn": "sklearn.pipeline", "scipy": "scipy.stats", "torch": "torch"}
"""What the nursery imports once for all versions that need it: these take most of the time of loading."""
_TO_END = 5.0
"""Seconds for a killed process to be gone."""


@dataclass(frozen=True)
class ServedVersion:
    """All that a worker needs to load a version: small, picklable, without the version itself.

    Attributes:
        version: which.
        contract: how its output is read, see ``resolved_contract``.
        tracking: MLflow's servers; the process's current ones where they name none.
        settings: whether it runs in a process of its own.
        environments: folder, on the worker's machine, that keeps the environments of versions.
        inputs: the columns that it is given, where its entry of ``models:`` names them.
        stored: where its predictions are columns of the split, these: then no model is loaded.
    """

    version: ModelVersion
    contract: PredictionSettings
    tracking: TrackingSettings = field(default_factory=TrackingSettings, repr=False)
    settings: PredictSettings = field(default_factory=PredictSettings)
    environments: str = ".congruence/environments"
    inputs: tuple[str, ...] | None = None
    stored: StoredColumns | None = None

    @property
    def label(self) -> str:
        """``name/version``."""
        return self.version.label

    @property
    def key(self) -> str:
        """What differs between two versions, or two ways to read or run one."""
        parts = (self.tracking.uri, self.version.model_id or self.version.uri, self.version.run_id)
        read = f"{self.contract.model_dump_json()} {self.inputs} {self.stored}"
        return f"{parts} {read} {self.settings.model_dump_json()} {self.environments}"


def warm_model(served: ServedVersion) -> PredictiveModel:
    """The version, loaded at most once in this process while it is one of the two asked last; for any thread.

    Raises:
        ContractError: it cannot be loaded.
        MlflowException: MLflow does not answer.
    """
    return _models.get(served.key, lambda: _load(served))


_models = MadeOnce[PredictiveModel](2)
"""One is loaded at a time: MLflow's addresses and the import path belong to the process."""


class _Answers:
    """Stored predictions as a model that answers with the columns that it is given, under their own names."""

    metadata = Model()

    def __init__(self, columns: dict[str, str]) -> None:
        self.columns = columns

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        return data.rename(columns=self.columns)


def _load(served: ServedVersion) -> PredictiveModel:
    if served.stored is not None:
        answers = _Answers(served.stored.columns)
        return PredictiveModel(served.version, served.contract, answers, tuple(served.stored.columns))
    use_tracking(served.tracking)
    started = time.perf_counter()
    folder = fetch(served.version)
    try:
        model = ModelProcess(folder, served.label, served.settings, Path(served.environments))
    except SettingsError:
        raise
    except Exception as error:
        from congruence.tasks.contract.log import loading_remedy  # nothing else of how models are logged is needed here

        remedy = f"; {loading_remedy(error, served.version.uri)}" if served.settings.isolation == "none" else ""
        raise ContractError(f"{served.label}: loading failed: {failure_text(error)}{remedy}") from error
    logger.info("%s loaded in %.1f s", served.label, time.perf_counter() - started)
    return PredictiveModel(served.version, served.contract, model, served.inputs)


class ModelProcess:
    """The model in a folder, run by this interpreter or by that of the environment that was logged with it.

    The process is started at once, to see whether the model loads; it ends with this object, and where it died it is
    started again at the next question. The folder is removed with the object.
    """

    def __init__(self, folder: Path, label: str, settings: PredictSettings, environments: Path) -> None:
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.metadata = Model.load(str(folder))
        self._folder = folder
        self._timeout = settings.timeout
        self._python: Path | None = None
        if settings.isolation == "environment":
            self._python = logged_environment(folder, environments, label=label, timeout=settings.build_timeout)
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._running()

    def answer_of(
        self,
        data: pd.DataFrame | np.ndarray[Any, Any],
        method: str | None = None,
        *,
        as_spec: bool = False,
        levels: Sequence[float] | None = None,
    ) -> Any:
        """What the model answers for ``data``, see ``readers.read.answer_of``: a ``Spec``, or columns.

        Raises:
            ContractError: the model raised, its process died, or it took longer than ``predict.timeout``.
            MlflowException: the data do not fit its signature.
            UnreadableOutputError: what came back is no distribution that can be read.
        """
        asked: dict[str, Any] = {}
        if method is not None or as_spec:
            asked = {"method": method, "as_spec": as_spec, "levels": levels, "readers": installed_readers()}
        kind, given = _as_input(data, ours=self._python is None)
        with self._lock:
            process = self._running()
            output = process.home / "output.npz"
            answer = self._ask(process, {"input": kind, "output": str(output), **asked}, given)
            return _as_output(answer["output"], output)

    @cached_property
    def said(self) -> str:
        """The class of the native model and how it is asked, where its class tells; else ""."""
        with self._lock:
            return str(self._ask(self._running(), {"said": True, "readers": installed_readers()})["said"])

    def _running(self) -> _Process:
        if self._process is None:
            self._process = _Process(self._folder, self._python)
            self._ask(self._process, None)
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _ask(self, process: _Process, request: dict[str, Any] | None, data: bytes = b"") -> dict[str, Any]:
        """The answer to a request, or the first one, which says whether the model was loaded."""
        try:
            if request is None:
                process.receive()  # that it was started, which waits for others' imports
            process.limit(self._timeout)
            if request is not None:
                with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, of which the answer tells
                    process.connection.send_bytes(json.dumps(request).encode())
                    process.connection.send_bytes(data)
            answer = process.receive()
        except (OSError, EOFError, ValueError) as error:
            _kill(process.socket)
            doing, tail = "loading" if request is None else "predicting", tail_of(process.home / model_process.LOG)
            why = f"ended it with status {process.status}"
            if isinstance(error, BlockingIOError):
                why = f"took longer than {self._timeout:g} s (predict.timeout)"
            self._stop()
            raise ContractError(f"{doing} in a separate process {why}; its output ended with: {tail}") from None
        if "error" not in answer:
            return answer
        raised = _as_raised(str(answer.get("kind")), str(answer["error"]), own=self._python is not None)
        if request is not None:
            raise raised
        self._stop()
        raise raised if isinstance(raised, ContractError) else ContractError(str(raised))


def _as_raised(kind: str, text: str, *, own: bool) -> Exception:
    """The error that a model's process sent, where its class matters here."""
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
    """One process of a model, with a folder of its own, and what it and its supervisor leave there."""

    def __init__(self, folder: Path, python: Path | None) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="congruence-process-"))
        asked: dict[str, Any] = {"python": python and str(python), "model": str(folder), "path": sys.path}
        if python is None:
            asked |= {"folder": os.getcwd(), "variables": {**os.environ, "TMPDIR": str(self.home)}}
        else:
            asked |= {"folder": str(self.home), "variables": model_variables(self.home)}
            place = self.home / model_process.READERS
            place.parent.mkdir(parents=True)
            place.symlink_to(Path(readers.__file__).resolve().parent)
        asked["preload"] = _preloaded(folder) if python is None else []
        (self.home / model_process.REQUEST).write_text(json.dumps(asked), encoding="utf-8")
        self.socket, theirs = socket.socketpair()
        self.connection = Connection(os.dup(self.socket.fileno()))
        self.end = weakref.finalize(self, _end, self.socket, self.connection, self.home)
        with theirs:
            _start_from(self.home, theirs)

    def receive(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            EOFError, OSError: it has ended, or the time is up (``BlockingIOError``).
            ValueError: no answer.
        """
        found: dict[str, Any] = json.loads(self.connection.recv_bytes())
        return found

    def limit(self, seconds: float) -> None:
        """How long to wait whenever the process is to take or to give something."""
        limit = struct.pack("ll", *divmod(max(1, int(1e6 * seconds)), 10**6))
        for kind in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.socket.setsockopt(socket.SOL_SOCKET, kind, limit)

    @property
    def status(self) -> str:
        """With which it ended, as its supervisor says."""
        try:
            return (self.home / model_process.STATUS).read_text(encoding="utf-8")
        except OSError:
            return "unknown"


_NURSERY = threading.Lock()
_nurseries: dict[int, socket.socket] = {}
"""At the other end is the nursery of the process of this number: a fork has one of its own."""


def _start_from(home: Path, end: socket.socket) -> None:
    """Have the nursery start what the folder ``home`` says, to be asked at the other end of the socket ``end``."""
    with _NURSERY:
        try:
            socket.send_fds(_nursery(), [str(home).encode()], [end.fileno()])
        except OSError:  # it was killed, or an import that a model needs ended it
            del _nurseries[os.getpid()]
            socket.send_fds(_nursery(), [str(home).encode()], [end.fileno()])


def _nursery() -> socket.socket:
    if os.getpid() not in _nurseries:
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, _SCRIPT, "--nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        _nurseries[os.getpid()] = ours
    return _nurseries[os.getpid()]


def fork_nursery() -> None:
    """Begin with a nursery that is a fork of this process, which has one thread and has loaded what models need."""
    if _nurseries:  # a fork of a worker, or of its nursery
        return
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    _nurseries[os.getpid()] = ours
    if os.fork() == 0:
        model_process.be_nursery(theirs.fileno())
    theirs.close()


def _preloaded(folder: Path) -> list[str]:
    try:
        said = (folder / "requirements.txt").read_text(encoding="utf-8")
    except OSError:
        return _OF_ALL
    named = {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() for line in said.splitlines()}
    return _OF_ALL + [module for package, module in _OF_PACKAGES.items() if package in named]


def _kill(end: socket.socket) -> None:
    """Have the supervisor at the other end kill what it started, and wait until it has."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_WR)
        end.settimeout(_TO_END)
        while end.recv(2**20):
            pass


def _end(end: socket.socket, connection: Connection, home: Path) -> None:
    _kill(end)
    end.close()
    connection.close()
    shutil.rmtree(home, ignore_errors=True)


def _as_input(data: pd.DataFrame | np.ndarray[Any, Any], *, ours: bool) -> tuple[str, bytes]:
    """What a model is given, as a process with our packages reads it, or one with its own."""
    if ours:
        return "pickle", pickle.dumps(data, protocol=5)
    stream = io.BytesIO()
    if isinstance(data, pd.DataFrame):
        # Without what pandas notes about itself: the model's may be of another age.
        pq.write_table(pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None), stream)
        return "parquet", stream.getvalue()
    np.save(stream, data, allow_pickle=False)
    return "npy", stream.getvalue()


def _as_output(said: dict[str, Any], path: Path) -> Any:
    """What the model returned; never a pickle, which could run what a model put there."""
    with np.load(path, allow_pickle=False) as file:
        columns = [file[str(index)] for index in range(len(file.files))]
    path.unlink()
    columns = [values.astype(object) if values.dtype.kind == "U" else values for values in columns]
    if "spec" in said:
        return unflatten(said["spec"], columns)
    return dict(zip(said["names"], columns, strict=True)) if "names" in said else columns[0]
