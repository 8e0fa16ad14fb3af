"""Who works in a folder: runs share it, cleaning has it to itself."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from congruence.kernels.errors import CongruenceError

LOCK = ".in-use"


class InUseError(CongruenceError):
    """A folder that others work in: says what to wait for."""


@contextmanager
def in_use(*folders: str | Path) -> Iterator[None]:
    """For as long as the body runs, nobody cleans these local folders; others may use them as well.

    The lock is the operating system's (flock): it ends with the process, however that ends. A cleaning that has begun
    is waited for.
    """
    with _locked(folders, fcntl.LOCK_SH):
        yield


@contextmanager
def alone(*folders: str | Path) -> Iterator[None]:
    """For as long as the body runs, no other process works in these local folders.

    Raises:
        InUseError: one does now.
    """
    with _locked(folders, fcntl.LOCK_EX | fcntl.LOCK_NB):
        yield


@contextmanager
def _locked(folders: tuple[str | Path, ...], how: int) -> Iterator[None]:
    with ExitStack() as locks:
        for folder in sorted({Path(folder).resolve() for folder in folders}):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            locks.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, how)
            except BlockingIOError:
                raise InUseError(f"{folder}: a run is working here; clean it when that has ended") from None
        yield
