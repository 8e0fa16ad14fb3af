"""How many files of ours a reader walks through from `congruence evaluate` to a logged run, beside the kernels."""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml

from congruence.flows.cli.app import app
from congruence.tasks.contract import log_predictive_model

ROWS = 60
MOST = {"contract": 2, "data": 7, "encoders": 1, "mlflow": 4, "models": 3, "plots": 2, "readers": 1, "runtime": 3}
MOST |= {"dask": 2, "evaluate": 4, "scores": 7, "settings": 3, "solving": 1}
"""Files of rooms of tasks that carry a table to what is logged."""
MOST_OF_ALL = 50


def walked(call: Callable[[], object]) -> set[str]:
    """The files of tasks and flows whose functions ran; what an import runs does not count."""
    files: set[str] = set()

    def seen(frame: FrameType, event: str, _: object) -> None:
        caller = frame.f_back
        if event == "call" and caller is not None and "<module>" not in (frame.f_code.co_name, caller.f_code.co_name):
            _, ours, file = frame.f_code.co_filename.partition("/congruence/")
            if ours and file.startswith(("tasks/", "flows/")) and file.endswith(".py"):
                files.add(file)

    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return files


@pytest.mark.usefixtures("prefect_server")
def test_from_the_command_to_a_logged_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("congruence.flows.cli.options.embed_servers", lambda folder, writes=True: folder)
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.standard_normal(ROWS)})
    rows.assign(y=rows["x"] + rng.standard_normal(ROWS)).to_csv(home / "rows.csv", index=False)
    log_predictive_model(
        lambda frame: pd.DataFrame({"loc": frame["x"], "scale": 1.0}),
        family="normal", input_example=rows.head(), registered_model_name="m",
    )  # fmt: skip
    split = {"uri": "rows.csv", "input": ["x"], "input_kind": "features", "target": "y"}
    content = {"models": ["m"], "splits": [split], "encoder": {"kind": "identity"}, "cluster": {"kind": "threads"}}
    (home / "evaluation.yaml").write_text(yaml.safe_dump(content))
    command = ["evaluate", str(home / "evaluation.yaml"), "--home", str(home)]
    found = walked(lambda: app(command, standalone_mode=False))
    assert "evaluated now" in capsys.readouterr().out
    assert len(mlflow.search_runs(search_all_experiments=True, filter_string="attributes.status = 'FINISHED'"))
    rooms = Counter(file.split("/")[1] for file in found if file.startswith("tasks/"))
    assert {room: rooms[room] for room in MOST if rooms[room] > MOST[room]} == {}, sorted(found)
    assert len(found) <= MOST_OF_ALL, sorted(found)
