"""What workers have and how those of this machine begin: memory, and everything loaded, as forks of one process.

Loading Dask, MLflow and ourselves takes a worker five seconds of a core. On Linux one process, the fork server of
Python's multiprocessing, does so once, beside the command that still loads itself; workers, and those that replace
them, are there at once and share its memory. Elsewhere, where a fork of what system libraries are loaded in is not
safe, each worker loads for itself.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import forkserver, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import yaml

from congruence.tasks.runtime.errors import KEPT, ClusterError

if TYPE_CHECKING:
    from distributed import Client

DASK_SETTINGS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("dask.yaml").read_text(encoding="utf-8"))
WORKER_ENVIRONMENT: dict[str, str] = DASK_SETTINGS["distributed"]["nanny"]["pre-spawn-environ"]

_MEMBERSHIP, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
WORKERS_SECONDS = 120.0
_SHORT = "/tmp"  # where folders of runs lie so deep that the address of a socket, of a hundred letters, has no room
_LOADED = "congruence.tasks.evaluate.for_workers"
_LOADED_FOR_PICTURES = "congruence.tasks.encoders.for_workers"


def load_for_workers(*, pictures: bool = False) -> None:
    """Start the process that workers are forks of, without waiting for it; nothing where it is there, or cannot be.

    ``pictures``: they need PyTorch and the encoders that are trained with it, too.
    """
    if sys.platform != "linux":
        return
    variables, folder = dict(os.environ), tempfile.gettempdir()
    for name, value in WORKER_ENVIRONMENT.items():  # libraries read it as they are loaded
        os.environ.setdefault(name, value)
    try:
        if not takes_sockets(folder) and os.access(_SHORT, os.W_OK):
            tempfile.tempdir = _SHORT
        util.get_temp_dir()  # kept from now on
        forkserver.set_forkserver_preload([_LOADED_FOR_PICTURES, _LOADED] if pictures else [_LOADED])
        with suppress(OSError):  # no folder for its socket
            forkserver.ensure_running()
    finally:
        tempfile.tempdir = folder
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]


def takes_sockets(folder: str) -> bool:
    """Whether the socket of a fork server can lie in a folder, which then goes with those of this process."""
    path = os.path.join(folder, "pymp-12345678-listener-12345678")  # as long as the one of multiprocessing
    try:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.bind(path)
        os.unlink(path)
    except OSError:
        return False
    return True


def can_fork() -> bool:
    """Whether workers may be forks of that process, which has loaded what they need by then: by a first fork."""
    if sys.platform != "linux":
        return False
    load_for_workers()
    first = multiprocessing.get_context("forkserver").Process(target=int)
    try:
        first.start()
        first.join()
    except (OSError, EOFError):
        return False
    return first.exitcode == 0


def cluster_memory(client: Client) -> int:
    """Returns the sum of the workers' memory limits, in bytes; of workers on this machine no more than is free.

    Raises:
        ClusterError: no worker has come within WORKERS_SECONDS.
    """
    from distributed.utils import get_ip

    try:
        client.wait_for_workers(1, timeout=WORKERS_SECONDS)
    except TimeoutError as error:
        raise ClusterError(
            f"the Dask cluster has had no worker for {WORKERS_SECONDS:.0f} s; start some with 'dask worker' or see why "
            f"they end; {KEPT}"
        ) from error
    workers = list(client.scheduler_info(n_workers=-1)["workers"].values())
    memory = sum(int(worker["memory_limit"] or available_memory() // len(workers)) for worker in workers)
    here = {"127.0.0.1", "::1", "localhost", get_ip()}
    return min(memory, available_memory()) if all(worker["host"] in here for worker in workers) else memory


def available_memory() -> int:
    """Returns memory that is free or can be freed (the page cache), in bytes: of the machine, within its limits."""
    free, left = int(psutil.virtual_memory().available), memory_left()
    return free if left is None else min(free, left)


def total_memory() -> int:
    """Returns the memory of the machine in bytes, or the limit of this process's control group where it is smaller."""
    installed, limit = int(psutil.virtual_memory().total), memory_limit()
    return installed if limit is None else min(installed, limit)


def give_back() -> None:
    """Have the C library return what is free in its heap; workers keep freed arrays for the next ones (``clusters``).

    Before a step that holds columns of all rows, so that what earlier steps needed in passing does not lie beside them.
    Nothing where the library has no such function.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; musl has none
    if trim is not None:
        trim(0)


def memory_limit(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> int | None:
    """Bytes that the processes of the control groups may take together; None where nothing limits them.

    cgroup v1 writes a number beyond every machine's memory where there is no limit: compare with the machine's.
    """
    return min((limit for limit, _ in _groups(membership, root)), default=None)


def memory_left(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> int | None:
    """Bytes until the first limit is met, page cache counted as free; None where nothing limits them."""
    return min((left for _, left in _groups(membership, root) if left is not None), default=None)


def _groups(membership: Path, root: Path) -> Iterator[tuple[int, int | None]]:
    """The limits of this process's group and of those above it, and what is left of each, where the system says it."""
    folders: list[Path] = []
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "memory" in controllers.split(","):
                base = root if controllers == "" else root / "memory"
                group = base / path.strip("/")
                # In a container the path is the host's: what it sees of its own group lies at the root.
                folders += [folder for folder in (group, *group.parents) if folder == base or base in folder.parents]
    for folder in dict.fromkeys(folders):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None:
            yield limit, None if used is None else max(0, limit - used + _page_cache(folder))


def _number(*files: Path) -> int | None:
    for file in files:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None


def _page_cache(folder: Path) -> int:
    """Of the memory in use what the kernel gives back at need: pages of files, but not those of tmpfs."""
    try:
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    prefix = "total_" if "total_inactive_file" in counts else ""  # v1, with the groups below
    return sum(int(counts.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
