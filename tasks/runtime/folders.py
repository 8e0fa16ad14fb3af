"""The home folder and MLflow's database in it; who works in a folder; a process's own folder for temporary files."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from congruence.kernels.errors import CongruenceError

LOCK = ".in-use"


class InUseError(CongruenceError):
    """A folder that others work in: says what to wait for."""


@contextmanager
def in_use(*folders: str | Path) -> Iterator[None]:
    """For as long as the body runs, nobody cleans these local folders; others may use them as well.

    The lock is the operating system's (flock): it ends with the process, however that ends. A cleaning that has begun
    is waited for. A folder where nothing can be locked is used all the same.
    """
    with ExitStack() as locks:
        for folder in _each(folders):
            with suppress(OSError):
                _lock(folder, fcntl.LOCK_SH, locks)
        yield


@contextmanager
def alone(*folders: str | Path) -> Iterator[None]:
    """For as long as the body runs, no other process works in these local folders.

    Raises:
        InUseError: one does now, or nothing can be locked there.
    """
    with ExitStack() as locks:
        for folder in _each(folders):
            try:
                _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB, locks)
            except BlockingIOError:
                raise InUseError(f"{folder}: a run is working here; clean it when that has ended") from None
            except OSError as error:
                raise InUseError(
                    f"{folder}: cannot be locked ({error}); clean it by hand while no run works"
                ) from error
        yield


def keep_temporary_files_in(place: Path) -> None:
    """Have this process, and those that it starts, keep temporary files in a folder of their own in ``place``.

    It goes with this process, or, should that be killed, as soon as another one calls this: whoever lives has a lock.
    """
    if Path(tempfile.gettempdir()).parent == place:
        return
    with ExitStack() as locks:
        _lock(place, fcntl.LOCK_EX, locks)  # nobody removes a folder that is made, and not locked yet
        for left in [path for path in place.iterdir() if path.is_dir()]:
            with suppress(OSError), ExitStack() as tried:
                _lock(left, fcntl.LOCK_EX | fcntl.LOCK_NB, tried)
                shutil.rmtree(left, ignore_errors=True)
        folder, owner = tempfile.mkdtemp(prefix="process-", dir=place), os.getpid()
        _lock(Path(folder), fcntl.LOCK_EX, _held)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)


_held = ExitStack()
"""Never closed: locks end with the process."""


def _each(folders: tuple[str | Path, ...]) -> list[Path]:
    """The folders in one order for everybody, so that two processes never wait for each other."""
    return sorted({Path(folder).resolve() for folder in folders})


def _lock(folder: Path, how: int, locks: ExitStack) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    locks.callback(os.close, descriptor)
    fcntl.flock(descriptor, how)


HOME_VARIABLE = "CONGRUENCE_HOME"
DEFAULT_HOME = ".congruence"
SERVED_HOME = "CONGRUENCE_SERVED_HOME"
"""What `congruence serve` chose, for its runs, which are processes of their own: before ``home:`` of the file."""


def default_home() -> Path:
    """$CONGRUENCE_HOME, else .congruence in the working folder."""
    return Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).resolve()


def home_store(home: Path) -> str:
    """The address of MLflow's database in a home folder."""
    return f"sqlite:///{home / 'mlflow.db'}"


def tracking_uri(home: Path) -> str:
    """The user's MLFLOW_TRACKING_URI, else MLflow on SQLite in ``home``."""
    return os.environ.get("MLFLOW_TRACKING_URI") or home_store(home)
