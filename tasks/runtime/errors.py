"""The exceptions that steps raise; and what is wrong around a run: a full or read-only disk, a damaged SQLite file."""

from __future__ import annotations

import difflib
import errno
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from congruence.kernels.errors import CongruenceError, InvalidInputError


class SettingsError(CongruenceError, ValueError):
    """An evaluation file that cannot be run: names file, key, value and remedy."""


class TooManyInvalidRowsError(CongruenceError):
    """More rows of a split are unusable than ``max_invalid`` allows: lists them with their reasons."""


class ClusterError(CongruenceError):
    """A Dask cluster or an embedded server that did not start or was lost: says what died, and how to go on."""


_KEPT = "finished work is saved; run the same command to resume"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}
_RESTORE = (
    "restore it from a backup, or move it away to begin with an empty one, which knows none of the models and runs "
    "that were logged"
)
_SQLITE = {
    "database or disk is full": f"the disk is full; make room; {_KEPT}",
    "file is not a database": f"it is no SQLite database; {_RESTORE}",
    "malformed": f"it is damaged; {_RESTORE}",
    "unsupported file format": f"it is damaged; {_RESTORE}",
    "unable to open database file": "it cannot be opened as a file; see what stands there, and who may write it",
    "readonly database": "it is read-only; make it and its folder writable",
    "disk i/o error": "the disk does not read or write it; see whether the disk is full or failing",
    "no such table": f"tables are missing in it; {_RESTORE}",
}


class SurroundingsError(CongruenceError, OSError):
    """A disk, a folder or a file around a run that it cannot go on with: waiting changes nothing."""


def trouble(error: BaseException) -> str | None:
    """What is wrong with a disk, a folder or a database file, with the remedy; None where the error tells of none."""
    for cause in chain(error):
        if isinstance(cause, SurroundingsError):
            return str(cause)
        if isinstance(cause, OSError) and (found := _of_the_disk(cause)) is not None:
            return found
        if (found := database_trouble(cause)) is not None:
            return f"MLflow's database: {found}"
    return None


def database_trouble(error: BaseException) -> str | None:
    """What is wrong with an SQLite file, by SQLite's words in ``error``."""
    text = str(error).lower()
    if not isinstance(error, sqlite3.Error) and "sqlite" not in text:
        return None
    return next((remedy for words, remedy in _SQLITE.items() if words in text), None)


def require_database(path: Path, whose: str = "MLflow's") -> None:
    """Refuse an SQLite file that is none, is cut off or is damaged; one that is not there is made later.

    Another process may be writing it: it is read under SQLite's own locks.

    Raises:
        SurroundingsError: says what is wrong and what to do.
    """
    if (damage := _damage(path, whose)) is not None:
        raise SurroundingsError(f"{path}: {damage}")


def _damage(path: Path, whose: str) -> str | None:
    if path.is_dir():
        return f"{whose} database is expected there, found a folder; move it away"
    try:
        with path.open("rb") as file:
            beginning = file.read(16)
    except FileNotFoundError:
        return None
    if not beginning:
        return None
    if beginning != b"SQLite format 3\0":
        return f"{whose} database cannot be used: {_SQLITE['file is not a database']}"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=0.1)) as database:
            # SQLite sees by itself that a file is cut off.
            (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            is_small = path.stat().st_size < _CHECKED_BYTES
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone() if is_small else ("ok",)
    except sqlite3.Error as error:
        trouble_there = database_trouble(error)  # none where another process has locked it: opening it waits
        return None if trouble_there is None else f"{whose} database cannot be used: {trouble_there}"
    if found != "ok" or not tables:
        return f"{whose} database is damaged ({found.strip().splitlines()[-1][:120]}); {_RESTORE}"
    return None


_CHECKED_BYTES = 64 * 2**20
"""Up to this size a database is read through once: a tenth of a second."""


def _of_the_disk(error: OSError) -> str | None:
    name = error.filename2 or error.filename  # of a file that is put in place: where it should go
    path = Path(str(name)) if name else None
    if error.errno in _FULL:
        place = next((part for part in (path, *path.parents) if part.exists()), None) if path is not None else None
        free = f"that holds {place} ({shutil.disk_usage(place).free / 2**20:.0f} MiB free) " if place else ""
        return f"the disk {free}is full; make room; {_KEPT}"
    if error.errno == errno.EFBIG:
        return f"{path or 'a file'} would be larger than files may be here (see ulimit -f); allow more; {_KEPT}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open for this process (see ulimit -n); allow more, for example 4096; {_KEPT}"
    if path is None:
        return None
    if error.errno in _REFUSED:
        return f"{path} cannot be written ({error.strerror}); make it writable, or give another folder with --home"
    if error.errno in _IN_THE_WAY:
        blocking = next((part for part in (path, *path.parents) if part.exists() and not part.is_dir()), None)
        if blocking is not None:
            return f"{blocking} is a file where a folder is needed; move it away, and run again"
        if path.is_dir() and error.errno == errno.EISDIR:
            return f"{path} is a folder where a file is needed; move it away, and run again"
    return None


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


class SplitError(InvalidInputError):
    """A split that cannot be evaluated: names the file, column, row and value, and the remedy."""


class SplitChangedError(SplitError):
    """A file of a split is no longer the one that was indexed: names the file. What was read of it is not used."""


def changed(path: str, what: str = "was replaced or written to") -> SplitChangedError:
    """The error for a file that is not the one that was indexed."""
    return SplitChangedError(
        f"{path}: {what} since the split was opened, so that its rows are no longer those that were indexed; nothing "
        "that was read of it is used; let whatever writes it finish, and run again"
    )


def unknown_column(name: str, role: str, available: Iterable[str], where: str) -> SplitError:
    """The error for a column that does not exist: lists those that do and points at the nearest name."""
    names = list(available)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    listed = ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
    return SplitError(f"{where}: there is no column {name!r} ({role}){hint} the columns are: {listed or 'none'}")


class ContractError(InvalidInputError):
    """A model whose input or output is not what its settings promise: names the column, shape, row or value."""
