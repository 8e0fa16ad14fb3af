"""What runs a model, in a process of its own: python model_process.py FOLDER, or a fork of the nursery.

This file alone runs in the environment that was logged with a version, so it needs nothing but the standard library,
MLflow and what MLflow needs. It reads lines of JSON from its standard input, {"input": PATH, "output": PATH}, and
answers each with {"ok": true} or {"error": TEXT, "kind": CLASS}; the first answer says whether the model was loaded.
With "method", "as_spec" and "levels" the native model is asked, with "said" what is asked of it in words
(``congruence.tasks.readers.read``), by the readers in "readers", which need NumPy alone and lie below ``READERS``.

Inputs are Parquet (a frame), .npy (a matrix) or a pickle of ours, outputs .npz: the columns by their number, and
"description", JSON of what they are.

The nursery, python model_process.py --nursery FD, is a process that has imported what most models need and forks one
for each that is asked for over the socket FD: a model is there in some tens of milliseconds, and no thread of ours is.
Where one ends, so does what it started, and {"ended": STATUS} is its last answer. The nursery and all that it forked
end when the socket closes, however the process at its other end came to that.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

READERS = "readers/congruence/tasks/readers"
"""Where the readers are found, in the folder that a process with packages of its own is started in."""


def nursery(descriptor: int) -> None:
    """Start what is asked for, until whoever asks has ended."""
    asked = socket.socket(fileno=descriptor)
    rung, bell = os.pipe()
    os.set_blocking(bell, False)
    signal.set_wakeup_fd(bell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    answers: dict[int, int] = {}
    watched: list[Any] = [asked, rung]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if rung in ready:
            os.read(rung, 4096)
            _tell_of_ended(answers)
            continue
        line, given, _, _ = socket.recv_fds(asked, 4096, 3)
        if not line:
            break
        with open(line.decode().strip(), encoding="utf-8") as file:
            request = json.load(file)
        for module in request["preload"]:
            with suppress(Exception):  # it is the model's matter what it lacks
                importlib.import_module(module)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (asked.detach(), rung, bell, *answers.values()):
                os.close(one)
            _become(request, given)
        answers[pid] = os.dup(given[1])
        handle = os.pidfd_open(pid)
        socket.send_fds(asked, [b"started"], [handle])
        for one in (handle, *given):
            os.close(one)
    for pid in answers:
        _end_session(pid)
    os._exit(0)


def _tell_of_ended(answers: dict[int, int]) -> None:
    """End what ended processes had started, and tell their status to those who wait for an answer."""
    with suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            _end_session(found.si_pid)  # before it is waited for: its number cannot be another's yet
            _, status = os.waitpid(found.si_pid, 0)
            if (answer := answers.pop(found.si_pid, None)) is not None:  # else of what an import had started
                with suppress(OSError):
                    os.write(answer, b'{"ended": %d}\n' % os.waitstatus_to_exitcode(status))
                os.close(answer)


def _end_session(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _become(request: dict[str, Any], given: list[int]) -> None:
    """Be the process of a model from here on: by another interpreter, or by this one."""
    try:
        os.setsid()
        for place, one in enumerate(given):
            os.dup2(one, place)
            os.close(one)
        os.chdir(request["folder"])
        if request["command"]:
            os.execve(request["command"][0], request["command"], request["variables"])
        os.environ.clear()
        os.environ.update(request["variables"])
        sys.path[:] = request["path"]
        main(request["model"])
    finally:
        os._exit(1)


def main(folder: str) -> None:
    """Load the model, then predict until the input ends, which ends this process."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the model prints must not look like an answer
    requests = os.fdopen(os.dup(0), "r")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(place, "w", 1, closefd=False) for place in (1, 2))

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        from mlflow.pyfunc import load_model

        model = load_model(folder, suppress_warnings=True)
    except BaseException as error:
        answer(failure(error))
        os._exit(1)
    answer({"ok": True})
    asked: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in requests:
            asked.put(line)
        os._exit(0)  # also in the midst of a prediction: whoever asked has ended

    Thread(target=listen, daemon=True).start()
    while True:
        request = json.loads(asked.get())
        try:
            if "said" in request:
                answer({"ok": True, "said": _reading(request).said_of(model)})
                continue
            write(answered(model, request), request["output"])
            answer({"ok": True})
        except BaseException as error:
            answer(failure(error))


def answered(model: Any, request: dict[str, Any]) -> Any:
    """What the model returns: by MLflow's ``predict``, or by its native model."""
    inputs = read(request["input"])
    if "as_spec" not in request:
        return model.predict(inputs)
    reading = _reading(request)
    return reading.answer_of(model, inputs, request["method"], as_spec=request["as_spec"], levels=request["levels"])


def _reading(request: dict[str, Any]) -> Any:
    """The module that reads what models return, with the readers of whoever asks."""
    place = os.path.join(os.getcwd(), READERS.split("/")[0])
    if place not in sys.path:  # last: a model that brings congruence itself reads by its own
        sys.path.append(place)
    from congruence.tasks.readers import read

    read.lend(request["readers"])
    return read


def failure(error: BaseException) -> dict[str, Any]:
    """What was raised, on one line."""
    return {"error": " ".join(str(error).split()), "kind": type(error).__name__}


def read(path: str) -> Any:
    """The input: a frame or a matrix."""
    if path.endswith(".npy"):
        import numpy as np

        return np.load(path, allow_pickle=False)
    if path.endswith(".pickle"):
        import pickle

        with open(path, "rb") as file:
            return pickle.load(file)
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pandas()


def write(output: Any, path: str) -> None:
    """Store what the model returned: its kind, its names, its columns."""
    import pandas as pd

    if type(output).__name__ == "Spec":
        description, values = output.flatten()
        _store("spec", [], values, path, description)
        return
    if isinstance(output, pd.DataFrame):
        kind, names = "frame", [str(name) for name in output.columns]
        columns = [output.iloc[:, index] for index in range(output.shape[1])]
    elif isinstance(output, pd.Series):
        kind, names, columns = "frame", [str(0 if output.name is None else output.name)], [output]
    elif hasattr(output, "items"):
        kind, names, columns = "mapping", [str(name) for name in output], [output[name] for name in output]
    else:
        kind, names, columns = "array", ["0"], [output]
    _store(kind, names, [as_stored(column, name) for column, name in zip(columns, names, strict=True)], path)


def _store(kind: str, names: list[str], columns: list[Any], path: str, spec: Any = None) -> None:
    import numpy as np

    arrays = {str(index): column for index, column in enumerate(columns)}
    description = json.dumps({"kind": kind, "names": names, "spec": spec}).encode()
    with open(path, "wb") as file:
        np.savez(file, description=np.frombuffer(description, dtype=np.uint8), **arrays)


def as_stored(column: Any, name: str) -> Any:
    """One column as an array of numbers, cells that are arrays stacked; else of texts, which may be left alone."""
    import numpy as np

    for step in ("detach", "cpu"):
        if hasattr(column, step):
            column = getattr(column, step)()
    if str(getattr(column, "dtype", "")) == "torch.bfloat16":  # which NumPy does not have
        column = column.float()
    if hasattr(column, "to_numpy"):
        dtype = getattr(column, "dtype", None)
        nullable = getattr(dtype, "na_value", None) is not None and getattr(dtype, "kind", "O") in "biuf"
        column = column.to_numpy(dtype=np.float64, na_value=np.nan) if nullable else column.to_numpy()
    try:
        values = np.asarray(column)
    except ValueError:
        values = np.empty(len(column), dtype=object)
        values[:] = list(column)
    if values.ndim == 0:
        raise TypeError(f"predict returned {type(column).__name__}; return a DataFrame, a dict of arrays or an array")
    if values.dtype.kind == "O":
        try:
            cells = [np.asarray(cell, dtype=np.float64) for cell in values]
        except (TypeError, ValueError):
            return np.asarray([str(cell) for cell in values])
        if len({cell.shape for cell in cells}) > 1:
            raise TypeError(f"output column {name!r}: its rows have different numbers of values; give each as many")
        return np.stack(cells)
    return values if values.dtype.kind in "biuf" else values.astype(str)


if __name__ == "__main__":
    if sys.argv[1] == "--nursery":
        nursery(int(sys.argv[2]))
    else:
        main(sys.argv[1])
