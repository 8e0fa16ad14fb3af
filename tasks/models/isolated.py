"""A version in a process of its own: it is asked like a loaded model, over files, and cannot see our credentials."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.models import Model

from congruence.tasks import readers
from congruence.tasks.contract.errors import ContractError
from congruence.tasks.models import isolated_process
from congruence.tasks.models.environments import end, logged_environment, tail_of
from congruence.tasks.models.settings import PredictSettings
from congruence.tasks.models.variables import model_variables
from congruence.tasks.readers.base import unflatten
from congruence.tasks.readers.read import installed_readers


class IsolatedModel:
    """The model in a folder, run by the interpreter of the environment that was logged with it.

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
        self._python = logged_environment(folder, environments, label=label, timeout=settings.build_timeout)
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._start()

    def predict(self, data: pd.DataFrame | np.ndarray[Any, Any]) -> Any:
        """What the model returns for ``data``: a frame, a mapping of arrays or an array.

        Raises:
            ContractError: the model raised, its process died, or it took longer than ``predict.timeout``.
        """
        return self._answer(data, {})

    def _answer(self, data: pd.DataFrame | np.ndarray[Any, Any], asked: dict[str, Any]) -> Any:
        with self._lock:
            if self._process is None:
                self._start()
            process = self._process
            assert process is not None
            source, result = process.home / "input", process.home / "output.npz"
            source = _write_input(data, source)
            try:
                self._ask(process, json.dumps({"input": str(source), "output": str(result), **asked}))
                return _read_output(result)
            finally:
                source.unlink(missing_ok=True)
                result.unlink(missing_ok=True)

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
            ContractError: as ``predict``; or what came back is no distribution that can be read.
        """
        asked = {"method": method, "as_spec": as_spec, "levels": levels, "readers": installed_readers()}
        return self._answer(data, asked)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._process = process = _Process(self._python, self._folder)
        self._ask(process, None)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.finalize()
            self._process = None

    def _ask(self, process: _Process, request: str | None) -> None:
        answer = process.ask(request, self._timeout)
        if answer is None:
            doing = "loading" if request is None else "predicting"
            why = process.why_silent(self._timeout)
            self._stop()
            raise ContractError(f"{doing} in a separate process {why}")
        if "error" in answer:
            if request is None:
                self._stop()
            raise ContractError(_with_remedy(str(answer["error"])))


class _Process:
    """One process of a model, with a folder of its own as its home."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="congruence-isolated-"))
        self._log = self.home / "log"
        place = self.home / isolated_process.READERS
        place.parent.mkdir(parents=True)
        place.symlink_to(Path(readers.__file__).resolve().parent)
        script = str(Path(isolated_process.__file__).resolve())
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(python), "-I", script, str(folder)],
                env=model_variables(self.home),
                cwd=self.home,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        self._answers = b""
        self.finalize = weakref.finalize(self, _end, self._process, self.home)

    def ask(self, request: str | None, timeout: float) -> dict[str, Any] | None:
        """The answer to a request, or the next one; None where none came in time or the process has ended."""
        stdin: IO[bytes] | None = self._process.stdin
        assert stdin is not None
        if request is not None:
            try:
                stdin.write(request.encode() + b"\n")
            except OSError:
                return None
        line = self._line(time.monotonic() + timeout)
        try:
            found = json.loads(line) if line is not None else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def why_silent(self, timeout: float) -> str:
        """Why there was no answer, with the end of what the process wrote."""
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"took longer than {timeout:g} s (predict.timeout); its output ended with: {tail_of(self._log)}"
        return f"ended it with status {status}; its output ended with: {tail_of(self._log)}"

    def _line(self, deadline: float) -> bytes | None:
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n" not in self._answers:
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            content = os.read(stdout.fileno(), 65536) if ready else b""
            if not content:
                return None
            self._answers += content
        line, _, self._answers = self._answers.partition(b"\n")
        return line


def _with_remedy(text: str) -> str:
    if "No module named" not in text:
        return text
    return f"{text}; add it to the version's pip_requirements (rows are handed over by pyarrow, to mlflow)"


def _end(process: subprocess.Popen[bytes], home: Path) -> None:
    end(process)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    shutil.rmtree(home, ignore_errors=True)


def _write_input(data: pd.DataFrame | np.ndarray[Any, Any], path: Path) -> Path:
    if isinstance(data, pd.DataFrame):
        path = path.with_suffix(".parquet")
        # Without what pandas notes about itself: the model's may be of another age.
        pq.write_table(pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None), path)
    else:
        path = path.with_suffix(".npy")
        np.save(path, data, allow_pickle=False)
    return path


def _read_output(path: Path) -> Any:
    with np.load(path, allow_pickle=False) as file:
        said = json.loads(file["description"].tobytes())
        columns = [file[str(index)] for index in range(len(file.files) - 1)]
    if said["kind"] == "spec":
        return unflatten(said["spec"], columns)
    if said["kind"] == "array":
        return columns[0]
    if said["kind"] == "mapping":
        return dict(zip(said["names"], columns, strict=True))
    cells = [values if values.ndim == 1 else list(values) for values in columns]
    frame = pd.concat([pd.Series(values) for values in cells], axis=1) if cells else pd.DataFrame()
    return frame.set_axis(said["names"], axis=1)
