"""What runs a model, in a process of its own: python model_process.py FOLDER FD, or a fork of the nursery.

This file alone runs in the environment that was logged with a version, so it needs nothing but the standard library,
MLflow and what MLflow needs. Over the socket FD (a ``Connection``) it is asked in pairs of JSON and bytes: {"input":
KIND, "output": PATH} and the input, a frame in Parquet, an array of NumPy or a pickle of ours. It writes the columns of
its output by their number to PATH, an .npz, and answers {"ok": true, "output": what they are}, or {"error": TEXT,
"kind": CLASS}. The first message says that it was started, the next one whether the model was loaded. With "method",
"as_spec" and "levels" the native model is asked, with "said" what is asked of it in words
(``congruence.tasks.readers.read``), by the readers in "readers", which need NumPy alone and lie below ``READERS``.

The nursery, python model_process.py --nursery FD or a fork that a worker begins with (``be_nursery``), has imported
what most models need, and forks a supervisor for each that is asked for over FD: so a model is there in some tens of
milliseconds, and no thread of ours is. A supervisor forks the process of the model, and waits until that ends or the
asking process is gone, however that came. Then it kills the process and all that it started, and writes how it ended
into ``STATUS``.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

READERS = "readers/congruence/tasks/readers"
"""Where the readers are found, in the folder that a process with packages of its own is started in."""
REQUEST, LOG, STATUS = "request.json", "log", "status"
"""In that folder: what to start; what the process writes; the status with which it ended."""


def be_nursery(descriptor: int) -> None:
    """Be the nursery from here on, in a fork that has all loaded, without the files and the session of its parent."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        null = os.open(os.devnull, os.O_RDWR)
        for place in range(3):
            os.dup2(null, place)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != descriptor:
                with suppress(OSError):  # what it was listed by
                    os.close(int(name))
        nursery(descriptor)
    finally:
        os._exit(0)


def nursery(descriptor: int) -> None:
    """Start what is asked for, until the asking process has ended."""
    asked = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for supervisors
    while True:
        home, ends, _, _ = socket.recv_fds(asked, 4096, 1)
        if not home:
            return
        request = None
        with suppress(OSError), open(os.path.join(home.decode(), REQUEST), encoding="utf-8") as file:
            request = json.load(file)
        for module in request["preload"] if request else ():
            with suppress(Exception):  # it is the model's matter what it lacks
                importlib.import_module(module)
        if request and os.fork() == 0:  # else the asking process has gone meanwhile
            asked.close()
            try:
                supervise(home.decode(), request, ends[0])
            finally:
                os._exit(0)
        os.close(ends[0])


def supervise(home: str, request: dict[str, Any], end: int) -> None:
    """Start a model's process, and end it with all that it started when it ends or nobody can ask it any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _become(home, request, end)
    watched = select.poll()
    watched.register(os.pidfd_open(pid), select.POLLIN)
    watched.register(end, select.POLLRDHUP)
    watched.poll()
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
        os.killpg(pid, signal.SIGKILL)  # before it is waited for: its number cannot be another's yet
    _, status = os.waitpid(pid, 0)
    with open(os.path.join(home, STATUS), "w", encoding="utf-8") as file:
        file.write(str(os.waitstatus_to_exitcode(status)))


def _become(home: str, request: dict[str, Any], end: int) -> None:
    """Be the process of a model from here on: by another interpreter, or by this one."""
    try:
        os.setsid()
        log = os.open(os.path.join(home, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for place, one in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(one, place)  # what the model prints must not look like an answer
        os.chdir(request["folder"])
        if request["python"]:
            os.set_inheritable(end, True)
            command = [request["python"], "-I", os.path.realpath(__file__), request["model"], str(end)]
            os.execve(command[0], command, request["variables"])
        os.environ.clear()
        os.environ.update(request["variables"])
        sys.path[:] = request["path"]
        main(request["model"], end)
    finally:
        os._exit(1)


def main(folder: str, end: int) -> None:
    """Load the model, then answer until nobody can ask any more."""
    connection = Connection(end)
    base = _base()

    def send(content: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(content).encode())

    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(place, "w", 1, closefd=False) for place in (1, 2))
    send({"started": True})
    try:
        from mlflow.pyfunc import load_model

        model = load_model(folder, suppress_warnings=True)
    except BaseException as error:
        send(failure(error))
        os._exit(1)
    send({"ok": True})
    while True:
        try:
            request, data = json.loads(connection.recv_bytes()), connection.recv_bytes()
        except EOFError:
            os._exit(0)
        try:
            with suppress(OSError):
                os.ftruncate(1, 0)  # what it writes now is all that is kept
            if "said" in request:
                send({"ok": True, "said": _reading(request).said_of(model)})
                continue
            output = answered(model, request, read(request["input"], data))
            send({"ok": True, "output": store(output, request["output"], base)})
        except BaseException as error:
            send(failure(error))


def answered(model: Any, request: dict[str, Any], inputs: Any) -> Any:
    """What the model returns: by MLflow's ``predict``, or by its native model."""
    if "as_spec" not in request:
        return model.predict(inputs)
    reading = _reading(request)
    return reading.answer_of(model, inputs, request["method"], as_spec=request["as_spec"], levels=request["levels"])


def _base() -> Any:
    """``congruence.tasks.readers.base`` of the asking process, which needs NumPy alone."""
    place = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "readers", "base.py")
    found = importlib.util.spec_from_file_location("congruence_readers_base", place)
    assert found is not None
    assert found.loader is not None
    base = sys.modules[found.name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(base)
    return base


def _reading(request: dict[str, Any]) -> Any:
    """The module that reads what models return, with the readers of the asking process."""
    place = os.path.join(os.getcwd(), READERS.split("/")[0])
    if place not in sys.path:  # last: a model that brings congruence itself reads by its own
        sys.path.append(place)
    from congruence.tasks.readers import read

    read.lend(request["readers"])
    return read


def failure(error: BaseException) -> dict[str, Any]:
    """What was raised, on one line."""
    return {"error": " ".join(str(error).split()), "kind": type(error).__name__}


def read(kind: str, data: bytes) -> Any:
    """The input: a frame or a matrix."""
    if kind == "npy":
        import numpy as np

        return np.load(io.BytesIO(data), allow_pickle=False)
    if kind == "pickle":
        import pickle

        return pickle.loads(data)
    import pyarrow.parquet

    return pyarrow.parquet.read_table(io.BytesIO(data)).to_pandas()


def store(output: Any, path: str, base: Any) -> dict[str, Any]:
    """Write the columns of what the model returned; returns their names, or what a ``Spec`` made of them."""
    import numpy as np

    said: dict[str, Any] = {}
    if type(output).__name__ == "Spec":
        said["spec"], columns = output.flatten()
    elif hasattr(output, "iloc") or hasattr(output, "items"):
        found = base.columns_of(output)
        said["names"], columns = list(found), [without_objects(*column) for column in found.items()]
    else:
        columns = [without_objects("0", base.as_plain(output))]
    np.savez(path, **{str(place): column for place, column in enumerate(columns)})
    return said


def without_objects(name: str, values: Any) -> Any:
    """One column as numbers, cells that are arrays stacked; else as texts, which may be left alone."""
    import numpy as np

    if values.ndim == 0:
        raise TypeError(
            f"predict returned {type(values.item()).__name__}; return a DataFrame, a dict of arrays or an array"
        )
    if values.dtype.kind != "O":
        return values if values.dtype.kind in "biuf" else values.astype(str)
    try:
        cells = [np.asarray(cell, dtype=np.float64) for cell in values]
    except (TypeError, ValueError):
        return np.asarray([str(cell) for cell in values])
    if len({cell.shape for cell in cells}) > 1:
        raise TypeError(f"output column {name!r}: its rows have different numbers of values; give each as many")
    return np.stack(cells)


if __name__ == "__main__":
    if sys.argv[1] == "--nursery":
        nursery(int(sys.argv[2]))
    else:
        main(sys.argv[1], int(sys.argv[2]))
