"""Files that are there whole or not at all, whatever kills their writer; the home folder, and who works in a folder.

Records are kept with a checksum, arrays as bytes. A process has a folder of its own for temporary files, and opens a
thing once.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import tempfile
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from multiprocessing.util import Finalize
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

from congruence.kernels.errors import CongruenceError

if TYPE_CHECKING:  # every command finds its home here, and most load no arrays
    from congruence.kernels.arrays import Array

ENDING = ".partial"
ABANDONED_SECONDS = 24 * 3600
_UNLOCKED_SECONDS = 60.0  # between making a file and locking it, at most
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

    Of others than ours (Zarr's, which locks nothing), and where nothing can be locked, those that nobody has written to
    for a day.
    """
    try:
        found = [Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith(ENDING)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for path in found if _is_abandoned(path)]


def _is_abandoned(path: Path) -> bool:
    try:
        if path.name.startswith("."):  # as ours are called
            with path.open("r+b") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = os.fstat(stream.fileno())
                # Its writer may have made it just now, and lock it next.
                return found.st_size > 0 or time.time() - found.st_mtime > _UNLOCKED_SECONDS
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        pass
    try:
        return time.time() - path.stat().st_mtime > ABANDONED_SECONDS
    except FileNotFoundError:
        return False


_DIGITS = 32


def digest_of(value: Any) -> str:
    """32 hexadecimal digits for a value that JSON can hold."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def text_digest(*parts: object) -> str:
    """A short digest of the text of the parts."""
    return sha256("\n".join(str(part) for part in parts).encode()).hexdigest()[:16]


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
    import numpy as np

    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def from_npz(data: bytes) -> dict[str, Array]:
    """The arrays of a file.

    Raises:
        ValueError: it is none, or damaged.
    """
    import numpy as np

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

    It goes with this process, or, if that is killed, as soon as another one calls this: a living process holds a lock.
    """
    if Path(tempfile.gettempdir()).parent == place:
        return
    with ExitStack() as locks:
        _lock(place, fcntl.LOCK_EX, locks)  # nobody removes a folder that is made, and not locked yet
        for left in [path for path in place.iterdir() if path.is_dir()]:
            with suppress(OSError), ExitStack() as tried:
                _lock(left, fcntl.LOCK_EX | fcntl.LOCK_NB, tried)
                shutil.rmtree(left, ignore_errors=True)
        folder = tempfile.mkdtemp(prefix="process-", dir=place)
        _lock(Path(folder), fcntl.LOCK_EX, _held)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    # After the folder of multiprocessing in it, which goes at -100.
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=-101)


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


Value = TypeVar("Value")


class MadeOnce(Generic[Value]):
    """At most so many values by their keys, for any thread; one is made at a time."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, RLock()
        self._held: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of that key, by ``make`` where it is not held."""
        with self._lock:
            if key not in self._held:
                while len(self._held) >= self._most:  # before, so that there are never more in memory
                    self._held.popitem(last=False)
                self._held[key] = make()
            self._held.move_to_end(key)
            return self._held[key]

    def clear(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            self._held.clear()
