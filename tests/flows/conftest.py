"""A real Prefect server for the run, a real SQLite MLflow per test, and a small evaluation on digits."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from fcntl import LOCK_SH, flock
from pathlib import Path
from typing import Any

import cloudpickle
import mlflow
import pandas as pd
import pytest
from databases import mlflow_database
from filelock import FileLock
from loopback import PrefectServer
from prefect.context import _temporary_global_settings_context, get_settings_context
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from congruence.flows.evaluate import alone
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.digits.dataset import write_digits
from congruence.tasks.digits.models import TrueLaw

ROWS, SHARD_ROWS = 240, 40


@pytest.fixture(autouse=True)
def functions_travel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Functions of the tests are pickled with their code: a version's process does not find their modules."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One server for all processes of a run: the first that asks starts it, and it ends after the last."""
    base = tmp_path_factory.getbasetemp()
    server = PrefectServer(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)
    with server.users.open("a") as used, ExitStack() as stack:
        with FileLock(f"{server.address}.lock"):
            flock(used, LOCK_SH)
            if not server.address.exists():
                server.start()
                server.address.write_text(server.uri)
        given = {PREFECT_API_URL: server.address.read_text(), PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
        stack.enter_context(temporary_settings(given))
        # Threads that tests start have a context of their own.
        stack.enter_context(_temporary_global_settings_context(get_settings_context()))
        stack.enter_context(alone())
        yield


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder / "test", "test", rows=ROWS)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    mlflow.set_tracking_uri(mlflow_database(folder))
    return folder


Register = Callable[..., str]
Content = Callable[..., dict[str, Any]]


@pytest.fixture
def register_law(home: Path) -> Register:
    """Registers a version that knows the true law, with its scale multiplied; gives its URI."""

    def register(name: str = "angle", scale: float = 1.0) -> str:
        law = TrueLaw()

        def predict(frame: pd.DataFrame) -> pd.DataFrame:
            columns = law.columns(frame)
            return columns.assign(scale=columns["scale"] * scale)

        return register_callable(predict, name)

    return register


def register_callable(predict: Callable[[pd.DataFrame], pd.DataFrame], name: str) -> str:
    example = pd.DataFrame({"angle": [0.0, 10.0], "digit": [2.0, 4.0]})
    info = log_predictive_model(predict, name=name, family="normal", input_example=example, registered_model_name=name)
    return f"models:/{name}/{info.registered_model_version}"


@pytest.fixture
def content(digits: Path) -> Content:
    """The content of an evaluation file on the digits, with changes."""
    return lambda **changes: evaluation_content(digits, **changes)


def evaluation_content(digits: Path, **changes: Any) -> dict[str, Any]:
    return {
        "splits": [
            {
                "name": "digits",
                "uri": str(digits / "test"),
                "key": "key",
                "input": "image",
                "target": "target",
                "model_inputs": ["angle", "digit"],
                "slices": ["digit"],
                "shard_rows": SHARD_ROWS,
            }
        ],
        "encoder": {"kind": "open_clip", "model": "compact"},
        "cluster": {"kind": "local", "workers": 2},
        **changes,
    }
