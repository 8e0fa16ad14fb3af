"""Copies of compressed arrays, decompressed once on each machine: any rows of a copy are read where they lie."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from congruence.tasks.runtime.atomic_files import sweep, whole_file

PIECE_BYTES = 2**22
_UNUSED_SECONDS = 24 * 3600
_LOCK = "lock"


class UnpackingError(Exception):
    """There is no place for a copy."""


def unpacked(folder: Path, source: str, state: str, size: int, pieces: Iterator[bytes]) -> Path:
    """The copy of ``source`` below ``folder``: made now by the first process, while all others wait for it.

    It is found again for as long as the source keeps its state; copies of earlier states go once nobody has asked for
    them for a day.

    Args:
        folder: made if need be.
        source: names what is copied.
        state: size and times of the file that holds it, or its ETag.
        size: bytes of the copy.
        pieces: these bytes, asked for only where there is no copy.

    Raises:
        UnpackingError: the folder cannot be written to, or is full.
    """
    home = folder / _digest(source)
    copy = home / _digest(state)
    with _alone(home):
        if copy.is_file() and copy.stat().st_size == size:
            os.utime(copy)
            return copy
        _sweep(home)
        with whole_file(copy) as stream:
            for piece in pieces:
                _write(stream, piece, home)
    return copy


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Nobody else on this machine is inside; the lock goes with the process that holds it."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / _LOCK).open("ab")
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise UnpackingError(f"{home}: {error.strerror}") from error
    with lock:
        yield


def _write(stream: BinaryIO, piece: bytes, home: Path) -> None:
    try:
        stream.write(piece)
        stream.flush()
    except OSError as error:
        raise UnpackingError(f"{home}: {error.strerror}") from error


def _sweep(home: Path) -> None:
    """Remove copies that nobody asked for lately, and what killed processes left."""
    sweep(home)
    for path in home.iterdir():
        if path.name != _LOCK and time.time() - path.stat().st_mtime > _UNUSED_SECONDS:
            path.unlink(missing_ok=True)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]
