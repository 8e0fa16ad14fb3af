"""The environment that every test runs in: quiet, offline, one BLAS thread."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# For the many commands and servers that tests start: each would compile thousands of files again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A million objects of imported packages stay to the end: searched for garbage again and again, they took a tenth of it.
gc.set_threshold(100_000, 20, 20)

# A job in the background ignores them, and so would every command that a test starts and stops.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# The same examples for everybody: a commit that passes here passes there. To search on: HYPOTHESIS_PROFILE=search.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

for name, value in {
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_TASKS_TAG_CONCURRENCY_SLOT_WAIT_SECONDS": "1",  # until who waits for a slot asks again: 30
    "DASK_LOGGING__DISTRIBUTED": "error",
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while others have the core: 6 s became 170 on a busy machine
    "OPENBLAS_NUM_THREADS": "1",  # test processes share the cores: BLAS threads of several wait for each other
    # Arrays that come and go keep their pages, whose clearing is a tenth of the time in kernels: read at a start.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}.items():
    os.environ.setdefault(name, value)


def pytest_configure(config: pytest.Config) -> None:
    """What tests, and processes that they kill, leave in the folder for temporary files goes with this process."""
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist has the variable of its parent
        return
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # the folders of the last three runs stay
    folder = tempfile.mkdtemp(prefix="congruence-tests-")
    os.chmod(folder, 0o711)  # databases of another user stand in it
    os.environ["TMPDIR"], tempfile.tempdir = folder, None
    # After multiprocessing's own folder in it (-100) and that of a command (-101), which remove theirs themselves.
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=-102)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file first, then those of all rooms side by side: while some wait for servers, others compute."""
    places = [item.path.relative_to(Path(__file__).parent) for item in items]
    rooms: dict[str, list[Path]] = {}
    for place in dict.fromkeys(places):
        rooms.setdefault(place.parts[0], []).append(place)
    rank = {file: number / len(files) for files in rooms.values() for number, file in enumerate(files)}
    rank[Path("test_documentation.py")] = -1.0
    items[:] = [items[number] for number in sorted(range(len(items)), key=lambda number: rank[places[number]])]


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.fixture(autouse=True)
def _temporary_files_stay_where_they_were() -> Iterator[None]:
    """A command that a test calls in this process keeps them in its home, which another user may not enter."""
    variable, folder = os.environ.get("TMPDIR"), tempfile.tempdir
    yield
    tempfile.tempdir = folder
    if variable is not None:
        os.environ["TMPDIR"] = variable


@pytest.fixture(autouse=True)
def _no_experiment_outlives_its_database() -> Iterator[None]:
    """MLflow keeps the experiment that a test has set, also when the next test has a new database."""
    yield
    fluent = sys.modules.get("mlflow.tracking.fluent")
    if fluent is not None:
        fluent._active_experiment_id = None
        os.environ.pop("MLFLOW_EXPERIMENT_ID", None)


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, Any]]:
    """A server that speaks S3 on loopback, with the bucket ``congruence``: what fsspec is to be told."""
    moto = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "test", "secret": "test", "endpoint_url": f"http://{host}:{port}"}
    s3fs.S3FileSystem(**options).mkdir("congruence")
    yield options
    server.stop()
