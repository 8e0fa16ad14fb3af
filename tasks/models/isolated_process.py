"""Runs a model in the environment that was logged with it: python -I isolated_process.py FOLDER.

This file alone runs there, so it needs nothing but the standard library, MLflow and what MLflow needs. It reads lines
of JSON from its standard input, {"input": PATH, "output": PATH}, and answers each with {"ok": true} or
{"error": TEXT}; the first answer says whether the model was loaded. With "method", "as_spec", "levels" and "readers"
the native model is asked (``readers.read.answer_of``), by readers that need NumPy alone and lie below ``READERS``.

Inputs are Parquet (a frame) or .npy (a matrix),
outputs .npz: the columns by their number, and "description", JSON of what they are.
"""

from __future__ import annotations

import json
import os
import sys
from queue import SimpleQueue
from threading import Thread
from typing import Any

READERS = "readers/congruence/tasks/readers"
"""Where the readers are found, in the folder that the process is started in."""


def main() -> None:
    """Load the model, then predict until the input ends, which ends this process."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the model prints must not look like an answer
    requests = os.fdopen(os.dup(0), "r")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        from mlflow.pyfunc import load_model

        model = load_model(sys.argv[1])
    except BaseException as error:
        answer({"error": text_of(error)})
        return
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
            write(answered(model, request), request["output"])
            answer({"ok": True})
        except BaseException as error:
            answer({"error": text_of(error)})


def answered(model: Any, request: dict[str, Any]) -> Any:
    """What the model returns: by MLflow's ``predict``, or by its native model."""
    inputs = read(request["input"])
    if "as_spec" not in request:
        return model.predict(inputs)
    place = os.path.join(os.getcwd(), READERS.split("/")[0])
    if place not in sys.path:  # last: a model that brings congruence itself reads by its own
        sys.path.append(place)
    from congruence.tasks.readers.read import answer_of, lend

    lend(request["readers"])
    return answer_of(model, inputs, request["method"], as_spec=request["as_spec"], levels=request["levels"])


def text_of(error: BaseException) -> str:
    """What was raised, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def read(path: str) -> Any:
    """The input: a frame or a matrix."""
    if path.endswith(".npy"):
        import numpy as np

        return np.load(path, allow_pickle=False)
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
    _store(kind, names, [numbers(column, name) for column, name in zip(columns, names, strict=True)], path)


def _store(kind: str, names: list[str], columns: list[Any], path: str, spec: Any = None) -> None:
    import numpy as np

    arrays = {str(index): column for index, column in enumerate(columns)}
    description = json.dumps({"kind": kind, "names": names, "spec": spec}).encode()
    with open(path, "wb") as file:
        np.savez(file, description=np.frombuffer(description, dtype=np.uint8), **arrays)


def numbers(column: Any, name: str) -> Any:
    """One column as an array of numbers: cells that are arrays are stacked."""
    import numpy as np

    if hasattr(column, "detach"):
        column = column.detach().cpu()
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
        values = np.stack([cell(value, name, row) for row, value in enumerate(values)])
    if values.dtype.kind not in "biuf":
        raise TypeError(f"output column {name!r} holds {values.dtype} values, expected numbers")
    return values


def cell(value: Any, name: str, row: int) -> Any:
    """One cell as an array of numbers."""
    import numpy as np

    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        shown = repr(value)[:60]
        expected = "expected a number or an array of numbers"
        raise TypeError(f"output column {name!r}: row {row} is {shown}, {expected}") from None


if __name__ == "__main__":
    main()
