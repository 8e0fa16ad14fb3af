"""Workers of a local cluster that begin with everything loaded: one process loads it, and each worker is its fork.

Loading Dask, MLflow and ourselves takes a worker five seconds of a core. On Linux one process, the fork server of
Python's multiprocessing, does so once, beside the command that still loads itself; workers, and those that replace
them, are there at once and share its memory. Elsewhere, where a fork of what system libraries are loaded in is not
safe, each worker loads for itself.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import tempfile
from contextlib import suppress
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any

import yaml

DASK_SETTINGS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("dask.yaml").read_text(encoding="utf-8"))
WORKER_ENVIRONMENT: dict[str, str] = DASK_SETTINGS["distributed"]["nanny"]["pre-spawn-environ"]

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
