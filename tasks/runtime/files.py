"""Files that are there whole or not at all, whatever kills their writer; records with a checksum; arrays as bytes."""

from __future__ import annotations

import fcntl
import io
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from congruence.kernels.arrays import Array

ENDING = ".partial"
ABANDONED_SECONDS = 24 * 3600
_PARSED_AGAIN = 20  # times at most


@contextmanager
def whole_file(path: str | Path, unfinished: str | Path | None = None, *, replace: bool = True) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file at ``path`` at once when the body ends; nothing of them where it raises.

    They are written to a file of this process's own, given to the disk (fsync) and renamed, so that a reader, a kill or
    a second writer meets the old file or the new one.

    Args:
        path: the file; its folder is made if need be.
        unfinished: a folder of the same file system for the file while it is written; by default that of ``path``,
            under a hidden name, which ``abandoned`` knows.
        replace: False keeps a file that is there already: of several writers the first wins, where the disk has hard
            links.
    """
    target = Path(path)
    folder = target.parent if unfinished is None else Path(unfinished)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{target.name[:100]}.{uuid.uuid4().hex}{ENDING}"
    try:
        with temporary.open("xb") as stream:
            with suppress(OSError):  # nothing can be locked here
                fcntl.flock(stream, fcntl.LOCK_EX)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if replace:
                os.replace(temporary, target)
                return
            try:
                os.link(temporary, target)
            except FileExistsError:
                pass
            except OSError:  # no hard links here: the last one wins
                os.replace(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def write_whole(path: str | Path, data: bytes, unfinished: str | Path | None = None, *, replace: bool = True) -> None:
    """``data`` as the file at ``path``, whole or not at all; see ``whole_file``."""
    with whole_file(path, unfinished, replace=replace) as stream:
        stream.write(data)


def is_local(filesystem: Any) -> bool:
    """Whether an fsspec file system is this machine's own, where files are renamed at once."""
    return "file" in ((filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol)


def abandoned(folder: str | Path) -> list[Path]:
    """Files in ``folder`` that a writer began and will never finish: its lock on them has ended with it.

    Where nothing can be locked, those that nobody has written to for a day.
    """
    try:
        found = [Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith(ENDING)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for path in found if _is_abandoned(path)]


def _is_abandoned(path: Path) -> bool:
    try:
        with path.open("r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        return time.time() - path.stat().st_mtime > ABANDONED_SECONDS
    return True


_DIGITS = 32


def digest_of(value: Any) -> str:
    """32 hexadecimal digits for a value that JSON can hold."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def save_record(path: Path, content: Mapping[str, Any]) -> None:
    """Keep ``content`` in a file as JSON with a checksum of itself, whole or not at all."""
    write_whole(path, json.dumps({**content, "checksum": digest_of(dict(content))}, sort_keys=True).encode())


def load_record(path: Path) -> dict[str, Any] | None:
    """What was kept, None where nothing is, or where it is damaged."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        checksum = content.pop("checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return content if checksum == digest_of(content) else None


def to_npz(arrays: Mapping[str, Array]) -> bytes:
    """The file: the same bytes for the same arrays."""
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def from_npz(data: bytes) -> dict[str, Array]:
    """The arrays of a file.

    Raises:
        ValueError: it is none, or damaged.
    """
    for attempt in reversed(range(_PARSED_AGAIN)):
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except SystemError:
            # Python 3.11 counts the depth of the literals that its threads parse in one number (gh-106905), and NumPy's
            # headers are literals.
            if not attempt:
                raise
        except Exception as error:  # zipfile, zlib and NumPy each have their own
            raise ValueError(f"no NPZ file: {error}") from error
    raise AssertionError
